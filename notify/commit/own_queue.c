/*-------------------------------------------------------------------------
 *
 * own_queue.c
 *		Detects transactions that use PostgreSQL's own queue, and its LISTEN and
 *		UNLISTEN, past this library.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/transaction.h"
#include "commit/own_queue.h"

static bool prepare_would_fail(void);

/*
 * Before the commit: will this transaction use PostgreSQL's own queue?
 *
 * has_actions: it has executed LISTEN or UNLISTEN.
 *
 * PostgreSQL's list of pending notifications is private.  But the function
 * that it calls before PREPARE TRANSACTION raises an error if there are any,
 * and has no other effect.  It also raises one for LISTEN and UNLISTEN.
 * Therefore, in a transaction with has_actions, only notifications are found
 * that have passed through this library: NOTIFY, and calls of pg_notify() that
 * are replaced.  Others are found in neither case if another library sends
 * them in a pre-commit callback that is executed later.
 */
bool
pinpoint_own_queue_will_be_used(bool has_actions)
{
	AssertNoLockHeld();
	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);

	if (PinpointMyTransaction.sent_to_own_queue)
		return true;
	return !has_actions && prepare_would_fail();
}

/*
 * Does the function that PostgreSQL calls before PREPARE TRANSACTION raise an
 * error?
 */
static bool
prepare_would_fail(void)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;
	bool		exit_on_error = ExitOnAnyError;
	volatile bool result = false;

	PG_TRY();
	{
		/*
		 * The error is discarded, so no context callback is needed.  With
		 * exit_on_error, which every role can set, it would end the session.
		 */
		error_context_stack = NULL;
		ExitOnAnyError = false;
		AtPrepare_Notify();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(oldcontext);
		FlushErrorState();
		InterruptHoldoffCount = holdoff;
		QueryCancelHoldoffCount = cancel_holdoff;
		result = true;
	}
	PG_END_TRY();
	ExitOnAnyError = exit_on_error;
	return result;
}

/*
 * Before the commit of a transaction for which
 * pinpoint_own_queue_will_be_used(false) is true: has it executed LISTEN or
 * UNLISTEN?
 *
 * PostgreSQL's list of pending actions is private.  But UNLISTEN of a channel
 * that cannot exist shows whether there are any.  The action uses memory of
 * CurTransactionContext, and that of TopTransactionContext only if it is the
 * first one.  If the session has never listened, PostgreSQL ignores it unless
 * there are other actions.
 *
 * Errors: out of memory.
 */
bool
pinpoint_own_queue_has_actions(void)
{
	MemoryContext top = TopTransactionContext;
	MemoryContext current = CurTransactionContext;
	MemoryContext list_memory;
	MemoryContext action_memory;

	AssertNoLockHeld();
	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);

	/* PostgreSQL uses this memory until the end of the transaction. */
	list_memory = AllocSetContextCreate(top, "pg_pinpoint action list",
										ALLOCSET_SMALL_SIZES);
	action_memory = AllocSetContextCreate(top, "pg_pinpoint action",
										  ALLOCSET_SMALL_SIZES);
	PG_TRY();
	{
		TopTransactionContext = list_memory;
		CurTransactionContext = action_memory;
		Async_Unlisten("");
	}
	PG_FINALLY();
	{
		TopTransactionContext = top;
		CurTransactionContext = current;
	}
	PG_END_TRY();
	return !MemoryContextIsEmpty(action_memory) &&
		MemoryContextIsEmpty(list_memory);
}

/*
 * After the commit: has the transaction used PostgreSQL's own queue?  If so,
 * it has an XID and a lock on "database 0", which it still holds, and which is
 * used for nothing else: see PreCommit_Notify().
 *
 * Most transactions have no lock in the partition of this one, so they need no
 * look-up.  The list of the partition is read without its lock: only this
 * process removes its own locks from it, and it is not removing any now.  So
 * if it has the lock, the list is not empty.
 */
bool
pinpoint_own_queue_was_used(void)
{
	static int	partition = -1;
	LOCKTAG		tag;

	AssertNoLockHeld();
	AssertInterruptsHeld();

	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return false;
	if (unlikely(partition < 0))
	{
		SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
		partition = LockHashPartition(LockTagHashCode(&tag));
	}
	if (PINPOINT_NO_LOCKS_IN_PARTITION(partition))
		return false;
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
	return PINPOINT_LOCK_HELD_BY_ME(&tag, AccessExclusiveLock);
}
