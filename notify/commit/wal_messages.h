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
 * Version of the format of a message.  A standby disconnects listeners if it
 * receives a higher version; see replay.c.
 */
#define PINPOINT_MESSAGE_VERSION	1

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
