/*-------------------------------------------------------------------------
 *
 * wal_messages.h
 *		Writes the notifications of a transaction to the WAL, for standbys.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAL_MESSAGES_H
#define PINPOINT_WAL_MESSAGES_H

#include "queue/batch.h"

/*
 * Prefix of our logical messages.  It ends with one more zero byte than a
 * prefix from SQL, so pg_logical_emit_message() cannot write such a message.
 * For programs that read messages, the prefix is "pg_pinpoint".
 */
#define PINPOINT_MESSAGE_PREFIX		"pg_pinpoint\0"

/*
 * Version of the format of a message, and the oldest one that a standby reads.
 * A standby disconnects listeners if it receives a higher version; see
 * wal_message_parser.c.  script/stages/ha.sh builds a library with a higher
 * version.
 */
#ifndef PINPOINT_MESSAGE_VERSION
#define PINPOINT_MESSAGE_VERSION	1
#endif
#define PINPOINT_OLDEST_MESSAGE_VERSION	1

/*
 * A message without channels and notifications: the last number of its first
 * line contains its meaning, in place of an offset.  Version 1.0 ignores the
 * first one.  It takes the second one for a message whose beginning is missing,
 * so it does the same as later versions.
 */
#define PINPOINT_OFFSET_LEFT_OUT	0	/* the transaction does not replicate
										 * its notifications */
#define PINPOINT_OFFSET_RAISE_FLOOR	8	/* the transaction creates the
										 * extension */

/*
 * Messages without a transaction and without a database, which report whether
 * a server replicates; see replication_status.c.
 *
 * Version 1.0 wrote "1 replicate on".  It is ignored, because this version did
 * not write messages for notifications that are left out.
 */
#define PINPOINT_STATUS_ON			"2 replicate on\n"
#define PINPOINT_STATUS_OFF			"1 replicate off\n"

extern void pinpoint_wal_messages_write(PinpointBatch *batch);
extern void pinpoint_wal_messages_write_floor(void);
extern void pinpoint_wal_messages_write_left_out(void);

#endif							/* PINPOINT_WAL_MESSAGES_H */
