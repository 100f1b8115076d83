/*-------------------------------------------------------------------------
 *
 * transaction.c
 *		The phase of the current transaction of this session.
 *
 *	RUNNING		statements can LISTEN and NOTIFY.
 *	SEALED		the transaction is about to commit or to be prepared.  Requests
 *				from callbacks of other libraries come too late.  Channels are
 *				entered into the channel map.
 *	RESERVED	its batch is written, and can still be withdrawn.
 *	ANNOUNCED	its batch is in the in-flight list, and holds back others.
 *	COMMITTED	the commit record is written, so no step may fail any more.
 *
 *					pre-commit	batch		announce	commit		end, abort,
 *								written					record		exit
 *	RUNNING			SEALED		-			-			-			RUNNING
 *	SEALED			-			RESERVED	-			COMMITTED	RUNNING
 *	RESERVED		-			-			ANNOUNCED	-			RUNNING
 *	ANNOUNCED		-			-			-			COMMITTED	RUNNING
 *	COMMITTED		-			-			-			-			RUNNING
 *
 * A transaction without notifications changes from SEALED to COMMITTED if it
 * has LISTENs or UNLISTENs to execute.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/check.h"
#include "base/transaction.h"

PinpointTransaction PinpointMyTransaction = {.phase = PINPOINT_RUNNING};

/*
 * Change to a phase; the table above contains the valid changes.
 */
void
pinpoint_transaction_enter(PinpointPhase phase)
{
	AssertNoLockHeld();
	Assert(phase == PINPOINT_RUNNING ||
		   phase == PinpointMyTransaction.phase + 1 ||
		   (phase == PINPOINT_COMMITTED &&
			PinpointMyTransaction.phase == PINPOINT_SEALED));

	/* Only a batch can be withdrawn, announced and published. */
	Assert(PinpointMyTransaction.batch != NULL ||
		   (phase != PINPOINT_RESERVED && phase != PINPOINT_ANNOUNCED));

	/* The commit record is written. */
	if (phase == PINPOINT_COMMITTED)
		AssertInterruptsHeld();

	PinpointMyTransaction.phase = phase;
	if (phase == PINPOINT_RUNNING)
	{
		Assert(PinpointMyTransaction.batch == NULL);
		PinpointMyTransaction.prepared_listening = false;
		PinpointMyTransaction.sent_to_own_queue = false;
	}
}
