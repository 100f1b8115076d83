/*-------------------------------------------------------------------------
 *
 * replicate.h
 *		A batch in the WAL: how it travels to standbys.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_REPLICATE_H
#define PINPOINT_REPLICATE_H

#include "batch.h"

/*
 * Prefix of our logical messages.  It ends with one zero more than a prefix has
 * that comes from SQL, so nobody can write such a message by
 * pg_logical_emit_message().  Who reads messages does not see the difference.
 */
#define PINPOINT_MESSAGE_PREFIX		"pg_pinpoint\0"

/* The form of a message; a standby ignores what it does not know. */
#define PINPOINT_MESSAGE_VERSION	1

extern void pinpoint_replicate(PinpointBatch *batch);

#endif							/* PINPOINT_REPLICATE_H */
