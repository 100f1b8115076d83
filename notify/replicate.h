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

/* Prefix of our logical messages. */
#define PINPOINT_MESSAGE_PREFIX		"pg_pinpoint"

/* The form of a message; a standby ignores what it does not know. */
#define PINPOINT_MESSAGE_VERSION	1

/*
 * What a message begins with; a piece of the batch's body follows.  The message is
 * not aligned in the WAL.
 */
typedef struct PinpointMessage
{
	uint32		version;
	int32		sender_pid;
	uint32		nchannels;
	uint32		nnotifications;
	uint64		total;			/* bytes of the whole body */
	uint64		offset;			/* where in the body this piece belongs */
} PinpointMessage;

extern void pinpoint_replicate(PinpointBatch *batch);

#endif							/* PINPOINT_REPLICATE_H */
