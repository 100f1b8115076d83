/*-------------------------------------------------------------------------
 *
 * transaction_events.c
 *		The steps of a commit, an abort and a PREPARE TRANSACTION.
 *
 * The steps of a commit that concern this library, in their order:
 *
 *	deferred triggers			the last user code that can LISTEN or NOTIFY
 *	XACT_EVENT_PRE_COMMIT		all steps that can fail
 *	commit record, flush, synchronous replication, visible to others
 *	XACT_EVENT_COMMIT			stamp: the end of the commit record is known
 *	locks released
 *	RESOURCE_RELEASE_AFTER_LOCKS	the batch is published, then LISTENs and
 *								UNLISTENs take effect
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "base/check.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "commit/commit_order.h"
#include "commit/early_commit_work.h"
#include "commit/own_queue.h"
#include "commit/waker_reserve.h"
#include "listener/delivery.h"
#include "listener/disconnect_reason.h"
#include "listener/listening.h"
#include "listener/evict.h"
#include "listener/slow_listener.h"
#include "live/applied_prepared.h"
#include "live/changes.h"
#include "live/commit_prepared.h"
#include "live/unnotified.h"
#include "live/watch.h"
#include "positions/positions.h"
#include "queue/message_log.h"
#include "sql/pending.h"
#include "sql/replacement.h"
#include "standby/replication_status.h"
#include "standby/wal_messages.h"
#include "transaction_events.h"
#include "wakeup/sharing.h"
#include "wakeup/slots.h"
#include "wakeup/wakeup.h"

/* Was trace_notify on, before this library turned it off for a commit? */
static bool trace_notify_was_on = false;

static void at_transaction_event(XactEvent event, void *arg);
static void at_subtransaction_event(SubXactEvent event,
									SubTransactionId my_subid,
									SubTransactionId parent_subid, void *arg);
static void at_resource_release(ResourceReleasePhase phase, bool is_commit,
								bool is_top_level, void *arg);
static void notify_changes(void);
static void find_own_queue(void);
static void write_left_out(bool uses_own_queue);
static void begin_actions_of_others(void);
static void register_callbacks(void);
static void pre_commit(void);
static void write_to_wal(void);
static void end_transaction(void);
static void at_exit(int code, Datum is_last);

/*
 * Called once, while the server preloads its libraries.
 */
void
pinpoint_transaction_events_register(void)
{
	RegisterXactCallback(at_transaction_event, NULL);
	RegisterSubXactCallback(at_subtransaction_event, NULL);
}

static void
at_transaction_event(XactEvent event, void *arg)
{
	AssertNoLockHeld();

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			pinpoint_waker_reserve_at_pre_commit();
			pinpoint_transaction_enter(PINPOINT_SEALED);
			pinpoint_listening_at_pre_commit();
			if (pinpoint_replacement_extension_created())
			{
				pinpoint_watch_labels_take_effect();
				pinpoint_wal_messages_write_floor();
			}
			if (pinpoint_changes_can_exist())
				notify_changes();
			find_own_queue();
			if (pinpoint_pending_exists())
			{
				pinpoint_delivery_look_afterwards();
				pre_commit();
			}
			else
				pinpoint_delivery_at_pre_commit();
			break;

		case XACT_EVENT_COMMIT:
			pinpoint_replication_status_end_commit();
			if (pinpoint_own_queue_was_used())
				pinpoint_positions_count_database();
			pinpoint_unnotified_at_commit();
			pinpoint_listening_commit_others();
			if (pinpoint_pending_exists())
			{
				pinpoint_transaction_enter(PINPOINT_COMMITTED);
				pinpoint_commit_order_stamp();
			}
			else
				end_transaction();
			break;

		case XACT_EVENT_ABORT:
			pinpoint_replication_status_end_commit();
			pinpoint_commit_order_withdraw();
			pinpoint_listening_abort(pinpoint_pending_actions());
			pinpoint_delivery_at_abort();
			pinpoint_unnotified_at_abort();
			end_transaction();
			break;

		case XACT_EVENT_PRE_PREPARE:
			pinpoint_transaction_enter(PINPOINT_SEALED);

			/*
			 * PostgreSQL will refuse a transaction that has notified, but may
			 * refuse it for another reason before, and so may the callbacks
			 * of other libraries.  So let PostgreSQL do this.
			 */
			if (pinpoint_pending_exists())
			{
				Async_Notify("pg_pinpoint", "");
				break;
			}
			if (pinpoint_replacement_extension_created())
				pinpoint_watch_labels_take_effect();
			pinpoint_commit_prepared_at_prepare();
			pinpoint_delivery_look_afterwards();
			break;

		case XACT_EVENT_PREPARE:
			pinpoint_applied_prepared_at_prepare();
			end_transaction();
			break;

		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			/* parallel workers execute no LISTEN or NOTIFY */
			break;
	}
}

static void
at_subtransaction_event(SubXactEvent event, SubTransactionId my_subid,
						SubTransactionId parent_subid, void *arg)
{
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		pinpoint_pending_at_subcommit();
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		pinpoint_pending_at_subabort();
		pinpoint_changes_at_subabort(my_subid);
	}
}

/*
 * Add the notifications of watched tables to those of the transaction.  The
 * current memory context may live longer, for instance in a procedure that
 * commits.
 *
 * Errors: out of memory, those of reading catalogs.
 */
static void
notify_changes(void)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(TopTransactionContext);

	pinpoint_changes_at_pre_commit();
	pinpoint_applied_prepared_at_pre_commit();
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Before the commit: does this transaction use PostgreSQL's own queue?  Then
 * other libraries may also have executed LISTEN or UNLISTEN, by calling
 * PostgreSQL's functions.  This is not seen in a transaction that has also
 * executed the statements.
 *
 * Errors: those of write_left_out() and begin_actions_of_others().
 */
static void
find_own_queue(void)
{
	bool		has_actions = pinpoint_pending_actions() != NIL;
	bool		uses_own_queue = pinpoint_own_queue_will_be_used(has_actions);

	if (uses_own_queue || pinpoint_pending_notifications() != NIL)
		write_left_out(uses_own_queue);
	if (uses_own_queue && !has_actions)
		begin_actions_of_others();
}

/*
 * Before the commit of a transaction with notifications: if the last
 * replication status is "on", and they are not replicated, write a message for
 * standbys.
 *
 * Errors: out of memory, those of writing WAL.
 */
static void
write_left_out(bool uses_own_queue)
{
	if (!pinpoint_replication_status_begin_commit())
		return;
	if (uses_own_queue || !pinpoint_replicate_notifications)
		pinpoint_wal_messages_write_left_out();
}

/*
 * Errors: out of memory.
 */
static void
begin_actions_of_others(void)
{
	if (!pinpoint_own_queue_has_actions())
		return;
	register_callbacks();
	pinpoint_listening_begin_others();
}

/*
 * Register the callbacks that sessions need which listen or notify.  Many
 * sessions never do.  PostgreSQL would call the first of these at least six
 * times in each of their transactions.
 */
static void
register_callbacks(void)
{
	static bool registered = false;

	if (registered)
		return;
	pinpoint_waker_reserve_register_timeout();
	RegisterResourceReleaseCallback(at_resource_release, NULL);
	before_shmem_exit(at_exit, BoolGetDatum(false));
	registered = true;
}

/*
 * Execute all steps of LISTEN, UNLISTEN and NOTIFY that can fail.
 *
 * Errors: those of pinpoint_listening_begin(),
 * pinpoint_commit_order_reserve() and write_to_wal(), and of early commit
 * work.  The transaction then aborts.
 */
static void
pre_commit(void)
{
	List	   *actions = pinpoint_pending_actions();
	List	   *notifications = pinpoint_pending_notifications();
	MemoryContext oldcontext;

	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);
	Assert(PinpointMyTransaction.batch == NULL);

	register_callbacks();
	oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	if (actions != NIL)
		pinpoint_listening_begin(actions);
	if (notifications != NIL)
	{
		pinpoint_evict_again();
		pinpoint_applied_prepared_take_over();
		if (pinpoint_message_log_kept() > 0)
		{
			if (pinpoint_wakeup_remind())
				pinpoint_waker_reserve_reassign();
			pinpoint_slow_listener_check();
		}
		else
			pinpoint_wakeup_give_back();

		/*
		 * First the steps that may take long, then those that take space in
		 * the log.
		 */
		pinpoint_early_commit_work();
		pinpoint_commit_order_reserve(notifications);
		write_to_wal();

		/*
		 * From here on, this commit can delay others.  With trace_notify,
		 * PostgreSQL would send a message to the client when it comes to its
		 * own queue, and might wait for the client.
		 */
		trace_notify_was_on = Trace_notify;
		Trace_notify = false;
		pinpoint_commit_order_announce();
	}
	MemoryContextSwitchTo(oldcontext);

	Assert((PinpointMyTransaction.phase == PINPOINT_ANNOUNCED) ==
		   (notifications != NIL));
}

/*
 * Write the batch of this transaction to the WAL, if notifications are
 * replicated.
 *
 * This is done after the space in the queue is reserved: the messages contain
 * the sizes of the batch, and a transaction that fails because the queue is
 * full has written nothing.
 *
 * It is done before the announcement, because it can fail, and because it takes
 * long for a large batch, whose messages are also flushed here.  From the
 * announcement on, later commits wait for this one to be published.
 *
 * The order of publication does not depend on it.  The lower bound of an
 * announced batch must be below the end of the commit record, which is written
 * later in any case.  The order on a standby is that of the commit records,
 * too.  Replay finds the messages of a transaction before its commit record,
 * because this session writes both.  If the transaction aborts in between,
 * replay drops them.  replication_status.c requires only that the flag is read
 * before (by write_left_out()), and that the commit record comes after.
 *
 * Errors: out of memory, those of writing WAL.
 */
static void
write_to_wal(void)
{
	Assert(PinpointMyTransaction.phase == PINPOINT_RESERVED);
	Assert(CurrentMemoryContext == TopTransactionContext);

	if (pinpoint_replicate_notifications && XLogIsNeeded())
		pinpoint_wal_messages_write(PinpointMyTransaction.batch);
}

/*
 * Called for every resource owner of the transaction, children first, and in
 * three phases.  Only one of these calls is used: that for the transaction's
 * own resource owner, after its locks are released.
 */
static void
at_resource_release(ResourceReleasePhase phase, bool is_commit,
					bool is_top_level, void *arg)
{
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS ||
		PinpointMyTransaction.phase != PINPOINT_COMMITTED || !is_commit ||
		!is_top_level ||
		CurrentResourceOwner != TopTransactionResourceOwner)
		return;

	/* No step may fail any more. */
	AssertInterruptsHeld();
	AssertNoLockHeld();

	/*
	 * Other batches may wait for this one, but no process waits for an
	 * UNLISTEN.
	 */
	pinpoint_commit_order_publish();
	pinpoint_delivery_after_publication();
	if (pinpoint_pending_actions() != NIL)
		pinpoint_listening_commit(pinpoint_pending_actions());
	end_transaction();
}

static void
end_transaction(void)
{
	AssertInterruptsHeld();
	Assert(PinpointMyTransaction.batch == NULL);

	pinpoint_pending_reset();
	pinpoint_replacement_end_transaction();
	pinpoint_changes_end_transaction();
	pinpoint_sharing_set_chains(false);
	pinpoint_transaction_enter(PINPOINT_RUNNING);
	if (trace_notify_was_on)
		Trace_notify = true;
	trace_notify_was_on = false;
	if (pinpoint_slot_registered())
	{
		pinpoint_disconnect_reason_register();
		pinpoint_disconnect_reason_end_evicted();
	}
	pinpoint_waker_reserve_watch();
}

/*
 * The session ends, possibly within a transaction, or by an error that was
 * raised while a lock was held.
 *
 * is_last: false at first.  A barrier can raise an error here; see turn.c.
 * Then PostgreSQL executes the remaining callbacks.  So this one registers
 * itself again before, and each step can be repeated.
 */
static void
at_exit(int code, Datum is_last)
{
	LWLockReleaseAll();
	if (!DatumGetBool(is_last))
		before_shmem_exit(at_exit, BoolGetDatum(true));
	pinpoint_commit_order_at_exit();
	pinpoint_listening_stop();
	pinpoint_wakeup_give_back();
	pinpoint_waker_reserve_at_exit();
	if (!DatumGetBool(is_last))
		cancel_before_shmem_exit(at_exit, BoolGetDatum(true));
}
