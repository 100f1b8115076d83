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
 * Prefix of our logical messages.  It ends with one zero more than a prefix has
 * that comes from SQL, so nobody can write such a message by
 * pg_logical_emit_message().  Who reads messages does not see the difference.
 */
#define PINPOINT_MESSAGE_PREFIX		"pg_pinpoint\0"

/* The form of a message; a standby ignores what it does not know. */
#define PINPOINT_MESSAGE_VERSION	1

/*
 * A message that tells whether a server replicates belongs to no transaction and to no
 * database, and is one of these; see replication_status.c.
 */
#define PINPOINT_STATUS_ON			"1 replicate on\n"
#define PINPOINT_STATUS_OFF			"1 replicate off\n"

extern void pinpoint_wal_messages_write(PinpointBatch *batch);
extern void pinpoint_wal_messages_write_floor(void);

#endif							/* PINPOINT_WAL_MESSAGES_H */
