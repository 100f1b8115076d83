/*-------------------------------------------------------------------------
 *
 * transaction.h
 *		The phase of the current transaction of this session.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_TRANSACTION_H
#define PINPOINT_TRANSACTION_H

#include "access/xlogdefs.h"

/* See transaction.c. */
typedef enum PinpointPhase
{
	PINPOINT_RUNNING,
	PINPOINT_SEALED,
	PINPOINT_RESERVED,
	PINPOINT_ANNOUNCED,
	PINPOINT_COMMITTED
} PinpointPhase;

/* Of this session alone, so there is no lock. */
typedef struct PinpointTransaction
{
	PinpointPhase phase;
	struct PinpointBatch *batch;	/* RESERVED to COMMITTED, until it is
									 * published or withdrawn; NULL if there is
									 * none */
	XLogRecPtr	stamp;			/* COMMITTED, with a batch: its place in the
								 * commit order */
	bool		entered_channels;	/* SEALED to COMMITTED: in the channel map */

	/* These outlive the transaction. */
	bool		changed_channels;	/* its commit was the last thing that happened
									 * to the channels of this session */
	bool		channels_in_doubt;	/* PostgreSQL's own list of them may differ */
} PinpointTransaction;

extern PinpointTransaction PinpointMyTransaction;

extern void pinpoint_transaction_enter(PinpointPhase phase);

#endif							/* PINPOINT_TRANSACTION_H */
