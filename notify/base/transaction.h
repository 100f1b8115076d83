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
	XLogRecPtr	stamp;			/* COMMITTED, with a batch: its stamp; see
								 * commit_order.c */
	bool		prepared_listening; /* SEALED to COMMITTED: the prepare step
									 * of listening.c was begun, so an abort
									 * must undo it */
	bool		sent_to_own_queue;	/* it has passed a notification to
									 * PostgreSQL, possibly in a
									 * subtransaction that was rolled back */
} PinpointTransaction;

extern PinpointTransaction PinpointMyTransaction;

extern void pinpoint_transaction_enter(PinpointPhase phase);

#endif							/* PINPOINT_TRANSACTION_H */
