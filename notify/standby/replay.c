/*-------------------------------------------------------------------------
 *
 * replay.c
 *		Reads notifications from the WAL on a standby.
 *
 * wal_messages.c writes them.  The startup process, which replays the WAL,
 * calls this file for these records, after PostgreSQL has replayed them:
 *
 *	logical message		with our prefix: add it to the batch of its transaction;
 *						see wal_message_parser.c and unfinished.c.
 *	commit				of a transaction with a batch: publish the batch.
 *						PostgreSQL has made the transaction visible and
 *						released its locks before, so a listener that is
 *						notified sees its rows.  Commits are replayed in the
 *						order of their records, which is the order of
 *						publication.
 *	abort				free the space.
 *	commit, abort of a	the same: its messages are those of watched tables, and
 *	prepared one		precede PREPARE TRANSACTION.
 *	running transactions	a transaction that is older than all of these has
 *							ended,
 *						although its end is not in the WAL, because the primary
 *						has crashed: free the space.
 *
 * At the end of recovery, all remaining transactions have ended, too.  An
 * error in the startup process would end the standby, so no function of this
 * file raises one.
 *
 * A notification that cannot be delivered is never skipped silently.  If the
 * notifications of a transaction may be incomplete here, all listeners of its
 * database are disconnected at its commit: why_incomplete() determines this.
 * One case needs an argument.  A standby begins to replay at the redo point of
 * a checkpoint.  If a transaction has written its messages before that point,
 * and its commit record after it, then only the commit is replayed.  Such a
 * transaction had its XID before it wrote a message, and so before the redo
 * point was determined.  The checkpoint stores the next XID after that, so the
 * XID of the transaction is lower than the XID at the start of replay
 * (first_redo_xid).  Its commit record is also marked; see wal_messages.c.  A
 * commit with both properties always disconnects listeners, unless all its
 * messages were replayed.  Other transactions have both properties if they
 * began before the checkpoint and have locked a table exclusively: they
 * disconnect listeners without need.  This ends when no transaction is left
 * that began before the checkpoint, as the records of running transactions
 * show.  A listener that begins after the commit is replayed cannot miss
 * anything.
 *
 * A primary also reports whether it replicates, and which transactions have
 * left out notifications; see primary_status.c.
 *
 * This file is active only with hot standby.  A server that recovers from a
 * crash has no sessions that could listen.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog_internal.h"
#include "access/xlogutils.h"
#include "miscadmin.h"
#include "replication/message.h"
#include "storage/standbydefs.h"

#include "base/check.h"
#include "commit/commit_order.h"
#include "listener/evict.h"
#include "positions/positions.h"
#include "standby/primary_status.h"
#include "standby/replay.h"
#include "standby/replay_blockers.h"
#include "standby/unfinished.h"
#include "standby/wal_message_parser.h"
#include "standby/wal_messages.h"
#include "wakeup/wakeup.h"

/*
 * The next XID when replay began, or a later one: the XID after that of a
 * transaction for which the list had no space.  Invalid if no transaction is
 * left that began before this XID.
 */
static TransactionId first_redo_xid = InvalidTransactionId;

/* The reasons of why_incomplete(), for the server log. */
static const char *const incomplete_details[] = {
	[PINPOINT_EVICTED_NO_ROOM] =
	gettext_noop("There was no room for them in the NOTIFY queue."),
	[PINPOINT_EVICTED_INCOMPLETE] =
	gettext_noop("They were incomplete in the WAL."),
	[PINPOINT_EVICTED_NEWER_FORM] =
	gettext_noop("The primary has a newer version of pg_pinpoint."),
	[PINPOINT_EVICTED_BEFORE_REDO] =
	gettext_noop("The transaction may have written them before the WAL location at which replay began."),
};

static void (*prev_message_redo) (XLogReaderState *record) = NULL;
static void (*prev_xact_redo) (XLogReaderState *record) = NULL;
static void (*prev_standby_redo) (XLogReaderState *record) = NULL;
static void (*prev_message_startup) (void) = NULL;
static void (*prev_message_cleanup) (void) = NULL;

static void do_without_context(void (*work) (XLogReaderState *),
							   XLogReaderState *record);
static void message_redo(XLogReaderState *record);
static void read_message(XLogReaderState *record);
static void add_message(TransactionId xid, Oid dboid,
						const PinpointMessage *message);
static void xact_redo_end(XLogReaderState *record);
static void decide_counting(XLogReaderState *record);
static void end_transaction(XLogReaderState *record);
static void end_by_commit(TransactionId xid,
						  const xl_xact_parsed_commit *commit);
static void end_by_abort(TransactionId xid);
static PinpointEviction why_incomplete(PinpointUnfinished *transaction,
									   TransactionId xid,
									   const xl_xact_parsed_commit *commit);
static bool began_before_redo(TransactionId xid);
static void count_as_before_redo(TransactionId xid);
static void disconnect_listeners(Oid dboid, PinpointEviction reason,
								 uint32 nnotifications);
static void publish(PinpointUnfinished *transaction);
static void standby_redo_running(XLogReaderState *record);
static void drop_not_running(XLogReaderState *record);
static void message_startup(void);
static void message_cleanup(void);

/*
 * When the library is loaded: wrap the functions for these records.
 */
void
pinpoint_replay_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);

	prev_message_redo = RmgrTable[RM_LOGICALMSG_ID].rm_redo;
	RmgrTable[RM_LOGICALMSG_ID].rm_redo = message_redo;
	prev_message_startup = RmgrTable[RM_LOGICALMSG_ID].rm_startup;
	RmgrTable[RM_LOGICALMSG_ID].rm_startup = message_startup;
	prev_message_cleanup = RmgrTable[RM_LOGICALMSG_ID].rm_cleanup;
	RmgrTable[RM_LOGICALMSG_ID].rm_cleanup = message_cleanup;
	prev_xact_redo = RmgrTable[RM_XACT_ID].rm_redo;
	RmgrTable[RM_XACT_ID].rm_redo = xact_redo_end;
	prev_standby_redo = RmgrTable[RM_STANDBY_ID].rm_redo;
	RmgrTable[RM_STANDBY_ID].rm_redo = standby_redo_running;
	pinpoint_primary_status_init();
}

/*
 * Call a function of this file for a record.  The error context callback of
 * PostgreSQL would describe the whole record, with all payloads, in each
 * message.  Our messages are not about the record, and the description could
 * run out of memory.  Therefore there is no error context during the call.
 */
static void
do_without_context(void (*work) (XLogReaderState *), XLogReaderState *record)
{
	ErrorContextCallback *save_error_context_stack = error_context_stack;

	AssertStartupProcess();
	AssertNoLockHeld();
	Assert(CritSectionCount == 0);

	error_context_stack = NULL;
	work(record);
	error_context_stack = save_error_context_stack;

	AssertNoLockHeld();
	pinpoint_unfinished_check();
}

static void
message_redo(XLogReaderState *record)
{
	prev_message_redo(record);
	if (standbyState != STANDBY_DISABLED)
		do_without_context(read_message, record);
}

static void
read_message(XLogReaderState *record)
{
	xl_logical_message *logical = (xl_logical_message *) XLogRecGetData(record);
	const char *contents;

	if (logical->prefix_size != sizeof(PINPOINT_MESSAGE_PREFIX) ||
		memcmp(logical->message, PINPOINT_MESSAGE_PREFIX,
			   sizeof(PINPOINT_MESSAGE_PREFIX)) != 0)
		return;

	contents = logical->message + logical->prefix_size;
	if (logical->transactional && TransactionIdIsValid(XLogRecGetXid(record)))
	{
		PinpointMessage message;

		pinpoint_wal_message_parser_read(contents, logical->message_size,
										 &message);
		if (message.kind != PINPOINT_MESSAGE_INVALID)
			add_message(XLogRecGetXid(record), logical->dbId, &message);
	}
	else if (!logical->transactional && !OidIsValid(logical->dbId))
		pinpoint_primary_status_set(contents, logical->message_size);
}

/*
 * Add the contents of a message to its transaction.
 */
static void
add_message(TransactionId xid, Oid dboid, const PinpointMessage *message)
{
	PinpointUnfinished *transaction = pinpoint_unfinished_find(xid);

	if (transaction == NULL)
		transaction = pinpoint_unfinished_enter(xid, dboid);
	if (transaction == NULL)
	{
		count_as_before_redo(xid);
		return;
	}

	switch (message->kind)
	{
		case PINPOINT_MESSAGE_LEFT_OUT:
			pinpoint_unfinished_set_left_out(transaction);
			break;

			/*
			 * At the commit, the floor is raised as for a transaction whose
			 * notifications are incomplete.
			 */
		case PINPOINT_MESSAGE_RAISE_FLOOR:
			pinpoint_unfinished_set_incomplete(transaction,
											   PINPOINT_EVICTED_INCOMPLETE, 0);
			break;
		case PINPOINT_MESSAGE_NEWER:
			pinpoint_unfinished_set_incomplete(transaction,
											   PINPOINT_EVICTED_NEWER_FORM, 0);
			break;
		case PINPOINT_MESSAGE_NOTIFICATIONS:
			pinpoint_unfinished_add(transaction, message);
			break;
		case PINPOINT_MESSAGE_INVALID:
			Assert(false);
			break;
	}
}

/*
 * Wrapper for records of transactions.
 */
static void
xact_redo_end(XLogReaderState *record)
{
	prev_xact_redo(record);
	if (standbyState != STANDBY_DISABLED)
		do_without_context(decide_counting, record);
	if (pinpoint_unfinished_exist() || TransactionIdIsValid(first_redo_xid))
		do_without_context(end_transaction, record);
}

/*
 * Called after each record of the resource managers Transaction and Standby.
 */
static void
decide_counting(XLogReaderState *record)
{
	uint8		kind = XLogRecGetInfo(record) & XLOG_XACT_OPMASK;
	bool		is_commit = XLogRecGetRmid(record) == RM_XACT_ID &&
		(kind == XLOG_XACT_COMMIT || kind == XLOG_XACT_COMMIT_PREPARED);

	pinpoint_primary_status_decide_counting(is_commit);
}

static void
end_transaction(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record);
	xl_xact_parsed_commit commit;
	xl_xact_parsed_abort abort;

	switch (info & XLOG_XACT_OPMASK)
	{
		case XLOG_XACT_COMMIT:
			ParseCommitRecord(info, (xl_xact_commit *) XLogRecGetData(record),
							  &commit);
			end_by_commit(XLogRecGetXid(record), &commit);
			break;
		case XLOG_XACT_COMMIT_PREPARED:
			ParseCommitRecord(info, (xl_xact_commit *) XLogRecGetData(record),
							  &commit);
			end_by_commit(commit.twophase_xid, &commit);
			break;
		case XLOG_XACT_ABORT:
			end_by_abort(XLogRecGetXid(record));
			break;
		case XLOG_XACT_ABORT_PREPARED:
			ParseAbortRecord(info, (xl_xact_abort *) XLogRecGetData(record),
							 &abort);
			end_by_abort(abort.twophase_xid);
			break;
		default:
			break;
	}
}

static void
end_by_abort(TransactionId xid)
{
	PinpointUnfinished *transaction = pinpoint_unfinished_find(xid);

	if (transaction != NULL)
		pinpoint_unfinished_drop(transaction);
}

/*
 * A transaction has committed: publish its batch, or disconnect listeners.
 */
static void
end_by_commit(TransactionId xid, const xl_xact_parsed_commit *commit)
{
	/* NULL if none of its messages was replayed. */
	PinpointUnfinished *transaction = pinpoint_unfinished_find(xid);
	PinpointEviction reason;

	if (transaction == NULL && !began_before_redo(xid))
		return;

	/* A listener that is notified must see the rows. */
	Assert(TransactionIdDidCommit(xid));
	AssertNoLockHeld();

	reason = why_incomplete(transaction, xid, commit);
	if (reason == PINPOINT_NOT_EVICTED)
	{
		if (transaction == NULL)
			return;

		/*
		 * This comes first: a heartbeat that covers the batch must not reach
		 * sessions that have missed what was left out.
		 */
		if (transaction->left_out)
			pinpoint_primary_status_left_out(transaction->dboid);
		if (transaction->begun)
			publish(transaction);
		else
			(void) pinpoint_unfinished_remove(transaction);
		return;
	}

	/*
	 * The record may contain no database if no catalog was changed.
	 */
	disconnect_listeners(transaction != NULL ? transaction->dboid :
						 commit->dbId,
						 reason,
						 transaction != NULL ? transaction->nnotifications : 0);
	if (transaction != NULL)
		pinpoint_unfinished_drop(transaction);
}

/*
 * Can the notifications of a committed transaction be incomplete here?
 * Returns the reason, or PINPOINT_NOT_EVICTED.  See the top of this file.
 *
 * transaction: NULL if none of its messages was replayed.
 */
static PinpointEviction
why_incomplete(PinpointUnfinished *transaction, TransactionId xid,
			   const xl_xact_parsed_commit *commit)
{
	if (transaction == NULL)
		return began_before_redo(xid) &&
			(commit->xinfo & XACT_XINFO_HAS_AE_LOCKS) != 0 ?
			PINPOINT_EVICTED_BEFORE_REDO : PINPOINT_NOT_EVICTED;

	if (!transaction->begun)
		return PINPOINT_NOT_EVICTED;
	if (transaction->writer.batch == NULL)
		return transaction->incomplete;
	if (!pinpoint_batch_is_complete(&transaction->writer))
		return PINPOINT_EVICTED_INCOMPLETE;
	return PINPOINT_NOT_EVICTED;
}

/*
 * Did a transaction have its XID before replay began?
 */
static bool
began_before_redo(TransactionId xid)
{
	return TransactionIdIsValid(first_redo_xid) &&
		TransactionIdIsNormal(xid) &&
		TransactionIdPrecedes(xid, first_redo_xid);
}

/*
 * The list of unfinished transactions has no space for this one.  Its commit is
 * treated as if its messages were before the start of replay.
 */
static void
count_as_before_redo(TransactionId xid)
{
	Assert(TransactionIdIsNormal(xid));

	if (!began_before_redo(xid))
	{
		first_redo_xid = xid;
		TransactionIdAdvance(first_redo_xid);
	}
	Assert(began_before_redo(xid));
}

/*
 * The notifications of a transaction may be incomplete: disconnect all
 * listeners of its database, or of all databases if dboid is InvalidOid.
 *
 * nnotifications: how many it has sent, 0 if not known.
 */
static void
disconnect_listeners(Oid dboid, PinpointEviction reason, uint32 nnotifications)
{
	int			n;

	AssertNoLockHeld();
	Assert(reason < lengthof(incomplete_details) &&
		   incomplete_details[reason] != NULL);

	/*
	 * Both are done in one hold of the lock: a session that begins to listen
	 * later finds the floor raised, and a session that is disconnected
	 * receives no heartbeat from above the floor.
	 */
	n = pinpoint_evict_database(dboid, reason,
								pinpoint_positions_raise_floor_locked);
	pinpoint_positions_wake();
	if (n == 0)
		return;
	ereport(LOG,
			(nnotifications > 0 ?
			 errmsg_plural("cannot deliver the %u notification of a transaction",
						   "cannot deliver the %u notifications of a transaction",
						   nnotifications, nnotifications) :
			 errmsg("cannot deliver the notifications of a transaction"),
			 errdetail("%s %s", _(incomplete_details[reason]),
					   OidIsValid(dboid) ?
					   _("All sessions that listen in its database are disconnected.") :
					   _("All sessions that listen are disconnected.")),
			 reason == PINPOINT_EVICTED_NO_ROOM ?
			 errhint("If this happens more than once, increase \"pinpoint.queue_size\" on this server.") : 0,
			 reason == PINPOINT_EVICTED_NEWER_FORM ?
			 errhint("Install the primary's version of pg_pinpoint on this server.") : 0));
}

/*
 * Publish the complete batch of a transaction that has committed.
 */
static void
publish(PinpointUnfinished *transaction)
{
	PinpointBatch *batch;

	Assert(pinpoint_batch_is_complete(&transaction->writer));

	batch = pinpoint_unfinished_remove(transaction);
	pinpoint_wakeup_find_replayed(batch);
	pinpoint_commit_order_publish_replayed(batch);
}

static void
standby_redo_running(XLogReaderState *record)
{
	prev_standby_redo(record);
	if (standbyState != STANDBY_DISABLED)
		do_without_context(decide_counting, record);
	if ((pinpoint_unfinished_exist() || TransactionIdIsValid(first_redo_xid)) &&
		(XLogRecGetInfo(record) & ~XLR_INFO_MASK) == XLOG_RUNNING_XACTS)
		do_without_context(drop_not_running, record);
}

static void
drop_not_running(XLogReaderState *record)
{
	xl_running_xacts *running = (xl_running_xacts *) XLogRecGetData(record);

	pinpoint_unfinished_drop_older_than(running->oldestRunningXid);
	if (TransactionIdIsValid(first_redo_xid) &&
		!TransactionIdPrecedes(running->oldestRunningXid, first_redo_xid))
		first_redo_xid = InvalidTransactionId;
}

/*
 * Replay begins at a checkpoint, which contains the next XID.
 */
static void
message_startup(void)
{
	AssertStartupProcess();
	Assert(!pinpoint_unfinished_exist());

	if (prev_message_startup)
		prev_message_startup();
	first_redo_xid = XidFromFullTransactionId(ReadNextFullTransactionId());
	pinpoint_primary_status_begin();
	pinpoint_replay_blockers_begin();
}

/*
 * The end of recovery: all remaining transactions have ended.
 */
static void
message_cleanup(void)
{
	AssertStartupProcess();
	AssertNoLockHeld();

	if (prev_message_cleanup)
		prev_message_cleanup();
	pinpoint_unfinished_drop_all();
	pinpoint_primary_status_end();
}
