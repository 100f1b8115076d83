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

/* Local to this session, so it needs no lock. */
typedef struct PinpointTransaction
{
	PinpointPhase phase;
	struct PinpointBatch *batch;	/* RESERVED to COMMITTED, until it becomes
									 * ready or is withdrawn; NULL if there is
									 * none */
	XLogRecPtr	stamp;			/* COMMITTED, with a batch: its position in the
								 * commit order */
	bool		entered_channels;	/* SEALED to COMMITTED: it may have
									 * channels in the channel map */
	bool		uses_own_queue; /* it has passed a notification to PostgreSQL,
								 * possibly in a subtransaction that was
								 * rolled back */

	/* The next transactions use these; see listening.c. */
	bool		changed_channels;	/* LISTENs or UNLISTENs have taken effect;
									 * reset before the next commit, or at an
									 * abort */
	bool		channels_in_doubt;	/* the channels may differ from
									 * PostgreSQL's own list */
} PinpointTransaction;

extern PinpointTransaction PinpointMyTransaction;

extern void pinpoint_transaction_enter(PinpointPhase phase);

#endif							/* PINPOINT_TRANSACTION_H */
