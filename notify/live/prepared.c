/*-------------------------------------------------------------------------
 *
 * prepared.c
 *		Notifies the channels of watched tables at COMMIT PREPARED.
 *
 * At COMMIT PREPARED, the counts of the prepared transaction are not accessible.  But
 * the transaction still has its locks, also after a restart of the server.  All tables
 * that it has locked for writing count as changed.
 *
 * The notifications belong to the transaction of the statement COMMIT PREPARED, which
 * ends directly after the prepared one has committed.  If it fails in between, because
 * the queue is full, the change is committed and cannot be notified.  Then the sessions
 * that listen in this database are disconnected, and all positions count as outdated,
 * so that clients read their tables again.
 *
 * A standby could replay the first commit, and never the second one, if this server
 * ends in between.  Therefore PREPARE TRANSACTION writes the notifications to the WAL,
 * too.  The standby publishes them when the changes are visible there, and those of the
 * second commit in addition.
 *
 * The channels are determined twice.  Before the commit, no other session can change
 * them, because watch() waits for the prepared transaction.  After the commit, labels
 * that the prepared transaction itself has set are visible.  A label that another
 * session commits in this moment can be visible, too.  Its channel is then notified
 * without need, which does no harm.
 *
 * The apply worker of a subscription commits prepared transactions without a statement.
 * So such a worker has a list of transactions that are prepared for subscriptions: at
 * its first commit, those that an earlier worker has prepared, and then its own.  Before
 * each commit, it notifies the changes of those that have been committed.  The list has
 * no transactions that a parallel apply worker has prepared.  Their changes are not
 * notified, unless a worker is started before they are committed.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "commit/positions.h"
#include "listener/eviction.h"
#include "live/changes.h"
#include "live/prepared.h"
#include "live/watched_tables.h"
#include "sql/pending.h"
#include "standby/replication_status.h"
#include "standby/wal_messages.h"

/*
 * Has this transaction committed a prepared one, whose changes it has to
 * notify?
 */
static bool must_notify = false;

/* Was any table watched before the current COMMIT PREPARED? */
static bool any_watched_before = false;

/*
 * The prepared transaction that the current COMMIT PREPARED commits, and the
 * last WAL record of this session before.
 */
static TransactionId committing = InvalidTransactionId;
static XLogRecPtr committing_after = InvalidXLogRecPtr;

/* The beginning of the names of transactions that apply workers prepare. */
#define APPLY_GID	"pg_gid_"

/* In an apply worker: a transaction that is prepared for a subscription. */
typedef struct AppliedTransaction
{
	TransactionId xid;
	List	   *channels;		/* of char * */
} AppliedTransaction;

/* List of these, in TopMemoryContext. */
static List *applied = NIL;

/* Is the worker's list complete? */
static bool found_applied = false;

static void replicate(void);
static void notify_standbys(const char *channel);
static void find_applied(void);
static void add_applied(TransactionId xid);
static void add_channel(const char *channel);
static void notify_applied(void);
static List *xids_of_prepared(const char *gid, bool is_prefix);
static List *tables_locked_for_writing(TransactionId xid);

/*
 * Called before COMMIT PREPARED: adds the notifications of the watched tables
 * that the prepared transaction may have changed to this transaction.  If
 * COMMIT PREPARED fails, they are discarded with it.
 *
 * *relations: set to the OIDs of all tables that it may have changed; to NIL if
 * no table of the database is watched, to save the look at all locks of the
 * server.
 *
 * Returns whether to call the next function.
 *
 * Errors: out of memory, those of reading catalogs.
 */
bool
pinpoint_before_commit_prepared(const char *gid, List **relations)
{
	List	   *xids;
	ListCell   *lc;

	*relations = NIL;

	/* COMMIT PREPARED reports these errors. */
	if (!IsTransactionState() || IsTransactionBlock())
		return false;
	xids = xids_of_prepared(gid, false);
	if (xids == NIL)
		return false;

	/*
	 * This session has no lock on the tables.  Labels that were committed
	 * before the transaction was prepared have to be known from here on.
	 */
	AcceptInvalidationMessages();
	any_watched_before = pinpoint_any_watched();
	committing = linitial_oid(xids);
	committing_after = ProcLastRecPtr;
	if (any_watched_before)
	{
		*relations = tables_locked_for_writing(committing);
		foreach(lc, *relations)
			pinpoint_changes_notify(pinpoint_channels_of_changed(lfirst_oid(lc)));
	}
	return true;
}

/*
 * Called after it, with the list of the function above.
 *
 * If no table was watched before, all tables that are watched now count as
 * changed: the prepared transaction itself may have set their labels.
 */
void
pinpoint_after_commit_prepared(List *relations)
{
	bool		any = false;
	ListCell   *lc;

	Assert(IsTransactionState());
	Assert(PinpointMyTransaction.phase == PINPOINT_RUNNING);

	committing = InvalidTransactionId;
	must_notify = true;
	AcceptInvalidationMessages();
	if (pinpoint_any_watched())
	{
		if (!any_watched_before)
		{
			pinpoint_changes_notify(pinpoint_all_watched_channels());
			any = true;
		}
		foreach(lc, relations)
		{
			List	   *channels = pinpoint_channels_of_changed(lfirst_oid(lc));

			pinpoint_changes_notify(channels);
			any = any || channels != NIL;
		}
	}
	must_notify = any || pinpoint_pending_exists();
}

void
pinpoint_prepared_at_commit(void)
{
	must_notify = false;
}

/*
 * The transaction has aborted.  Does not fail.
 */
void
pinpoint_prepared_at_abort(void)
{
	TransactionId xid = committing;

	AssertInterruptsHeld();
	AssertNoLockHeld();

	/*
	 * COMMIT PREPARED can fail after its commit record.  It has written no
	 * record if it fails because another session ends the same transaction.
	 * If the look at the list of transactions fails, the next abort does not
	 * look.
	 */
	if (TransactionIdIsValid(xid))
	{
		committing = InvalidTransactionId;
		must_notify = ProcLastRecPtr != committing_after;
		if (must_notify && TransactionIdIsInProgress(xid))
			must_notify = false;
	}
	if (must_notify)
	{
		must_notify = false;
		(void) pinpoint_evict_database(MyDatabaseId, PINPOINT_EVICTED_PREPARED,
									   pinpoint_positions_raise_floor_locked);
		pinpoint_positions_wake();
		pinpoint_replication_status_begin_again();
	}
}

/*
 * Called in XACT_EVENT_PRE_PREPARE, in all sessions.
 *
 * Errors: out of memory, those of reading catalogs and of writing WAL.
 */
void
pinpoint_prepared_at_pre_prepare(void)
{
	TransactionId xid = GetTopTransactionIdIfAny();

	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);
	Assert(!must_notify);

	replicate();
	if (IsLogicalWorker() && TransactionIdIsValid(xid))
	{
		add_applied(xid);
		pinpoint_changes_for_each_channel(add_channel);
	}
}

/*
 * Write the notifications of the watched tables that this transaction has changed to
 * the WAL, or that they are left out.  This server keeps nothing.
 *
 * Errors: out of memory, those of reading catalogs and of writing WAL.
 */
static void
replicate(void)
{
	MemoryContext oldcontext;
	List	   *notifications;

	/* PostgreSQL refuses to prepare a transaction with temporary objects. */
	if (!XLogIsNeeded() ||
		(MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE) != 0)
		return;

	oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	pinpoint_changes_for_each_channel(notify_standbys);
	notifications = pinpoint_pending_notifications();
	if (notifications != NIL && pinpoint_enabled && pinpoint_replicate_notifications)
	{
		PinpointBatchLayout *layout = pinpoint_batch_layout(notifications);
		PinpointBatch *batch = palloc0(layout->size);

		batch->size = layout->size;
		pinpoint_batch_write(batch, layout);
		pinpoint_wal_messages_write(batch);
	}
	else if (notifications != NIL)
		pinpoint_wal_messages_write_left_out();
	MemoryContextSwitchTo(oldcontext);
}

static void
notify_standbys(const char *channel)
{
	pinpoint_pending_notify(channel, "");
}

/*
 * Called in XACT_EVENT_PRE_COMMIT, in all sessions.
 *
 * Errors: out of memory, those of reading catalogs.
 */
void
pinpoint_prepared_at_pre_commit(void)
{
	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);
	Assert(CurrentMemoryContext == TopTransactionContext);

	if (likely(!IsLogicalWorker()) || max_prepared_xacts == 0 ||
		!OidIsValid(MyDatabaseId))
		return;
	if (!found_applied)
	{
		find_applied();
		found_applied = true;
	}
	notify_applied();
}

/*
 * Find the transactions that earlier workers have prepared.  While one is
 * prepared, its channels cannot change, because watch() waits for it.
 */
static void
find_applied(void)
{
	List	   *xids = xids_of_prepared(APPLY_GID, true);
	ListCell   *xid;
	ListCell   *table;
	ListCell   *channel;

	Assert(IsLogicalWorker() && !found_applied);

	AcceptInvalidationMessages();
	if (!pinpoint_any_watched())
		return;
	foreach(xid, xids)
	{
		add_applied(lfirst_oid(xid));
		foreach(table, tables_locked_for_writing(lfirst_oid(xid)))
		{
			foreach(channel, pinpoint_channels_of_changed(lfirst_oid(table)))
				add_channel(lfirst(channel));
		}
	}
}

static void
add_applied(TransactionId xid)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	AppliedTransaction *transaction = palloc0(sizeof(AppliedTransaction));

	Assert(IsLogicalWorker() && TransactionIdIsValid(xid));

	transaction->xid = xid;
	applied = lappend(applied, transaction);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Add a channel to the transaction that was added last.
 */
static void
add_channel(const char *channel)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	AppliedTransaction *transaction = llast(applied);

	Assert(IsLogicalWorker());
	transaction->channels = lappend(transaction->channels, pstrdup(channel));
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Notify the changes of prepared transactions that have been committed, by
 * this transaction or by another session.
 */
static void
notify_applied(void)
{
	ListCell   *lc;

	foreach(lc, applied)
	{
		AppliedTransaction *transaction = lfirst(lc);

		if (TransactionIdIsInProgress(transaction->xid))
			continue;
		if (TransactionIdDidCommit(transaction->xid) &&
			transaction->channels != NIL)
		{
			must_notify = true;
			if (pinpoint_any_watched())
				pinpoint_changes_notify(transaction->channels);
		}
		applied = foreach_delete_current(applied, lc);
		list_free_deep(transaction->channels);
		pfree(transaction);
	}
}

/*
 * The XIDs of the prepared transactions of this database with a name, or with
 * names that begin so.  Calls the function that the view pg_prepared_xacts
 * calls.
 *
 * Errors: out of memory.
 */
static List *
xids_of_prepared(const char *gid, bool is_prefix)
{
	List	   *xids = NIL;
	LOCAL_FCINFO(fcinfo, 0);
	FmgrInfo	flinfo;
	ReturnSetInfo rsinfo = {.type = T_ReturnSetInfo};

	fmgr_info(F_PG_PREPARED_XACT, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 0, InvalidOid, NULL,
							 (Node *) &rsinfo);
	rsinfo.econtext = CreateStandaloneExprContext();
	rsinfo.allowedModes = SFRM_ValuePerCall;
	for (;;)
	{
		Datum		row;
		HeapTupleHeader tuple;
		char	   *name;
		bool		isnull;

		rsinfo.isDone = ExprSingleResult;
		row = FunctionCallInvoke(fcinfo);
		if (rsinfo.isDone != ExprMultipleResult)
			break;
		tuple = DatumGetHeapTupleHeader(row);
		name = TextDatumGetCString(GetAttributeByName(tuple, "gid", &isnull));
		if ((is_prefix ? strncmp(name, gid, strlen(gid)) : strcmp(name, gid)) == 0 &&
			DatumGetObjectId(GetAttributeByName(tuple, "dbid", &isnull)) == MyDatabaseId)
			xids = lappend_oid(xids,
							   DatumGetTransactionId(GetAttributeByName(tuple,
																		"transaction",
																		&isnull)));
	}
	FreeExprContext(rsinfo.econtext, true);
	return xids;
}

/*
 * The OIDs of the tables that a prepared transaction has locked for writing.
 * INSERT, UPDATE, DELETE, MERGE and COPY take RowExclusiveLock; TRUNCATE,
 * REFRESH MATERIALIZED VIEW and DDL a stronger one, as do watch() and
 * unwatch().  CREATE INDEX takes ShareLock.
 *
 * The locks of a prepared transaction belong to a process entry of its own,
 * which has no PID, and which has an exclusive lock on its XID.
 *
 * Errors: out of memory.
 */
static List *
tables_locked_for_writing(TransactionId xid)
{
	LockData   *locks = GetLockStatusData();
	LockInstanceData *own = NULL;
	List	   *relations = NIL;

	for (int i = 0; i < locks->nelements; i++)
	{
		LockInstanceData *lock = &locks->locks[i];

		if (lock->locktag.locktag_type == LOCKTAG_TRANSACTION &&
			lock->locktag.locktag_field1 == xid && lock->pid == 0 &&
			(lock->holdMask & LOCKBIT_ON(ExclusiveLock)))
			own = lock;
	}
	if (own == NULL)
		return NIL;

	for (int i = 0; i < locks->nelements; i++)
	{
		LockInstanceData *lock = &locks->locks[i];

		if (lock->locktag.locktag_type == LOCKTAG_RELATION &&
			lock->locktag.locktag_field1 == MyDatabaseId &&
			lock->locktag.locktag_field2 >= FirstNormalObjectId &&
			PINPOINT_SAME_LOCK_OWNER(lock, own) &&
			(lock->holdMask & (LOCKBIT_ON(RowExclusiveLock) |
							   LOCKBIT_ON(ShareUpdateExclusiveLock) |
							   LOCKBIT_ON(ShareRowExclusiveLock) |
							   LOCKBIT_ON(ExclusiveLock) |
							   LOCKBIT_ON(AccessExclusiveLock))))
			relations = lappend_oid(relations, lock->locktag.locktag_field2);
	}
	return relations;
}
