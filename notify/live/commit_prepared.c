/*-------------------------------------------------------------------------
 *
 * commit_prepared.c
 *		PREPARE TRANSACTION and COMMIT PREPARED of changes of watched tables.
 *
 * At COMMIT PREPARED, the counts of the prepared transaction are not
 * accessible.  But the transaction still has its locks, also after a restart
 * of the server.  All tables that it has locked for writing count as changed.
 * If it has locked the extension, it drops it, and all watched tables count as
 * changed.
 *
 * The notifications belong to the transaction of the statement COMMIT
 * PREPARED, which ends directly after the prepared one has committed; see
 * unnotified.c.
 *
 * A standby could replay the first commit, and never the second one, if this
 * server ends in between.  Therefore PREPARE TRANSACTION writes the
 * notifications to the WAL, too.  The standby publishes them when the changes
 * are visible there, and those of the second commit in addition.
 *
 * The channels are determined twice.  Before the commit, no other session can
 * change them, because watch() waits for the prepared transaction.  After the
 * commit, labels that the prepared transaction itself has set are visible.  A
 * label that another session commits in this moment can be visible, too.  Its
 * channel is then notified without need, which does no harm.
 *
 * If no table is watched before the commit, the prepared transaction is not
 * even looked up, because that reads all prepared transactions of the server.
 * It may still watch the first table of the database.  So the labels are also
 * read after the commit.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_seclabel.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "base/check.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "live/changes.h"
#include "live/commit_prepared.h"
#include "live/prepared_transactions.h"
#include "live/unnotified.h"
#include "live/watched_tables.h"
#include "sql/pending.h"
#include "sql/replacement.h"
#include "standby/wal_messages.h"

/* The current COMMIT PREPARED. */
static struct
{
	const char *gid;
	bool		any_watched;	/* was any table watched before it? */
	TransactionId xid;			/* the prepared transaction; invalid if it was
								 * not looked up, or not found */
	List	   *tables;			/* OIDs of tables that it may have changed */
	XLogRecPtr	last_record;	/* last WAL record of this session before */
} current;

static void notify_standbys(const char *channel);
static void lock_catalogs(void);
static void find_changes(void);
static void found_lock(const PinpointPreparedLock *lock);
static bool is_prepared(void);

/*
 * Called in XACT_EVENT_PRE_PREPARE: write the notifications of the watched
 * tables that this transaction has changed to the WAL, or that they are left
 * out.  This server keeps nothing.
 *
 * Errors: out of memory, those of reading catalogs and of writing WAL.
 */
void
pinpoint_commit_prepared_at_prepare(void)
{
	MemoryContext oldcontext;
	List	   *notifications;

	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);

	/* PostgreSQL refuses to prepare a transaction with temporary objects. */
	if (!XLogIsNeeded() ||
		(MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE) != 0)
		return;

	oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	pinpoint_changes_for_each_channel(notify_standbys);
	notifications = pinpoint_pending_notifications();
	if (notifications != NIL && pinpoint_enabled &&
		pinpoint_replicate_notifications)
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
 * Called before COMMIT PREPARED: adds the notifications of the watched tables
 * that the prepared transaction may have changed to this transaction.  If
 * COMMIT PREPARED fails, they are discarded with it.
 *
 * Returns whether to call one of the next two functions.
 *
 * Errors: out of memory, those of reading catalogs; a request to cancel has
 * arrived.
 */
bool
pinpoint_commit_prepared_before(const char *gid)
{
	/* COMMIT PREPARED reports these errors. */
	if (!IsTransactionState() || IsTransactionBlock())
		return false;

	/*
	 * This session has no lock on the tables.  Labels that were committed
	 * before the transaction was prepared have to be known from here on.
	 */
	lock_catalogs();
	AcceptInvalidationMessages();
	current.	gid = gid;
	current.	any_watched = pinpoint_watched_tables_exist();
	current.	xid = InvalidTransactionId;
	current.	tables = NIL;

	pinpoint_unnotified_set_unknown(true);
	if (current.any_watched)
		find_changes();

	pinpoint_unnotified_begin();
	pinpoint_unnotified_set_committed();
	current.	last_record = ProcLastRecPtr;

	return true;
}

/*
 * Lock the catalogs that are read after the commit until the end of this
 * transaction, so that it does not wait for them then.
 */
static void
lock_catalogs(void)
{
	LockRelationOid(SecLabelRelationId, AccessShareLock);
	LockRelationOid(InheritsRelationId, AccessShareLock);
	LockRelationOid(ExtensionRelationId, AccessShareLock);
}

/*
 * If the transaction is not found, PREPARE TRANSACTION may be about to end.
 */
static void
find_changes(void)
{
	List	   *xids = pinpoint_prepared_transactions_find(current.gid, false);
	PinpointPreparedLock *locks;
	int			n;

	if (xids == NIL)
		return;
	current.	xid = linitial_oid(xids);

	pinpoint_unnotified_set_unknown(false);
	locks = pinpoint_prepared_transaction_locks(current.xid, &n);
	for (int i = 0; i < n; i++)
		found_lock(&locks[i]);
}

static void
found_lock(const PinpointPreparedLock *lock)
{
	if (lock->type == LOCKTAG_OBJECT)
	{
		if (pinpoint_replacement_is_extension(lock->oid))
			pinpoint_unnotified_notify(pinpoint_watched_tables_channels());
		return;
	}
	current.	tables = lappend_oid(current.tables, lock->oid);

	pinpoint_unnotified_notify(pinpoint_watched_tables_to_notify(lock->oid));

	/* watch() and SECURITY LABEL take this lock: there may be a new label. */
	if (lock->modes & LOCKBIT_ON(ShareRowExclusiveLock))
		pinpoint_unnotified_set_unknown(true);
}

/*
 * Called after it.
 *
 * If no table was watched before, all tables that are watched now count as
 * changed: the prepared transaction itself may have set their labels.  The same
 * is true if it was not found before.
 *
 * Errors: out of memory, those of reading catalogs.
 */
void
pinpoint_commit_prepared_after(void)
{
	ListCell   *lc;

	Assert(IsTransactionState());
	Assert(PinpointMyTransaction.phase == PINPOINT_RUNNING);
	AssertInterruptsHeld();

	AcceptInvalidationMessages();
	if (pinpoint_watched_tables_exist())
	{
		if (!TransactionIdIsValid(current.xid))
			pinpoint_unnotified_notify(pinpoint_watched_tables_channels());
		foreach(lc, current.tables)
		{
			List	   *channels;

			channels = pinpoint_watched_tables_to_notify(lfirst_oid(lc));
			pinpoint_unnotified_notify(channels);
		}
	}
	pinpoint_unnotified_set_unknown(false);
}

/*
 * Called instead if COMMIT PREPARED has failed.  It can fail after its commit
 * record.  It has written no record if it fails because another session ends
 * the same transaction.
 *
 * Errors: out of memory.
 */
void
pinpoint_commit_prepared_failed(void)
{
	bool		wrote_record = ProcLastRecPtr != current.last_record;

	pinpoint_unnotified_failed(wrote_record);
	if (!wrote_record)
		return;

	/* It may have been a record of something else. */
	HOLD_INTERRUPTS();
	if (is_prepared())
		pinpoint_unnotified_failed(false);
	RESUME_INTERRUPTS();
}

/*
 * Errors: out of memory.
 */
static bool
is_prepared(void)
{
	if (TransactionIdIsValid(current.xid))
		return TransactionIdIsInProgress(current.xid);
	return pinpoint_prepared_transactions_find(current.gid, false) != NIL;
}
