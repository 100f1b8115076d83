/*-------------------------------------------------------------------------
 *
 * changes.c
 *		Notifies the channels of the watched tables that a transaction has
 *		changed.
 *
 * PostgreSQL counts the rows that a transaction inserts, updates and deletes,
 * for each table and subtransaction, and whether the transaction truncates a
 * table.  When a subtransaction is rolled back, its counts are discarded.
 * Before the commit, all counts are in the list of the outermost level.  The
 * table access method counts them, so it does not matter which statement,
 * trigger or worker has made a change.
 *
 * These changes are not counted: those of ALTER TABLE, which changes rows by
 * writing a new table, and those of some tables; see uncounted.c.  Such a
 * table counts as changed if the transaction has locked it for writing; see
 * written_tables.c.  A transaction that changes it can have no XID, for
 * instance if its rows are on another server.  postgres_fdw commits there in
 * XACT_EVENT_PRE_COMMIT, before this transaction commits and its notification
 * is sent.  So a session that receives it sees the changed rows.
 *
 * DETACH PARTITION CONCURRENTLY has two transactions.  The first one removes
 * the rows from the parent, and calls no hook.  It marks a row of pg_inherits.
 * No other statement updates that catalog, whose changes are counted, too.  So
 * the parent is found before the commit, when it is locked.  The second
 * transaction can fail; it notifies nothing.
 *
 * The hooks in live.c and watch.c report other changes here: a table is
 * altered or dropped, or gets another channel; a partition or child is
 * attached, detached or dropped, which changes the rows of its parent.  The
 * channels are notified at the commit, and not by the statement, because a
 * transaction that has notified cannot be prepared.  PREPARE TRANSACTION
 * discards what was reported: such a statement locks the table, or the child,
 * so COMMIT PREPARED notifies the same channels; see commit_prepared.c.
 *
 * Without track_counts nothing is counted.  If the setting was off during a
 * part of the transaction, and the transaction has an XID, all watched tables
 * count as changed.  If one statement switches it off and on again, this is
 * not noticed.  An apply worker executes no statements, but can reload its
 * configuration within a transaction, more than once.  If it has done so since
 * the end of the previous transaction, the setting may have been off, and all
 * watched tables count as changed, too.
 *
 * A notification becomes part of the transaction like one of the statement
 * NOTIFY. With pinpoint.enabled = off it uses PostgreSQL's own queue.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/logicalworker.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/pgstat_internal.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/preload.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "live/changes.h"
#include "live/uncounted.h"
#include "live/watched_tables.h"
#include "live/written_tables.h"
#include "sql/pending.h"

/* Was track_counts off at the start of this transaction, or later? */
static bool uncounted = false;

/*
 * When this process had reloaded its configuration last, at the end of the
 * previous transaction.  This is not known in the first transaction of a
 * process, in which an apply worker changes no table.
 */
static TimestampTz reloaded_before = 0;

/*
 * Has this transaction executed more than queries?  A worker can write without
 * a statement.
 */
static bool may_have_written = true;

/* A change that was reported: either a table or a channel. */
typedef struct ReportedChange
{
	Oid			relid;			/* InvalidOid for a channel */
	NameData	channel;
	SubTransactionId subid;		/* the subtransaction of the change */
} ReportedChange;

/* List of these, in TopTransactionContext. */
static List *reported = NIL;

/* So many of the last ones are compared with a new one. */
#define MAX_CHECKED		64

static void report(Oid relid, const char *channel);
static void for_each_reported(bool any_watched,
							  void (*action) (const char *channel));
static void for_each_counted(void (*action) (const char *channel));
static void for_each_uncounted(void (*action) (const char *channel));
static void for_each(List *channels, void (*action) (const char *channel));
static bool is_uncounted(void);
static bool cannot_be_watched(PgStat_TableStatus *table);
static List *parents_of_detached(void);
static void notify_channel(const char *channel);

/*
 * A statement is about to be executed.  may_write: is it more than a query?
 */
void
pinpoint_changes_at_statement(bool may_write)
{
	may_have_written |= may_write;
	if (unlikely(!pgstat_track_counts))
		uncounted = true;
}

/*
 * The transaction is over.  The next one may begin to change tables without a
 * call of pinpoint_changes_at_statement(), for instance in an apply worker.
 */
void
pinpoint_changes_end_transaction(void)
{
	uncounted = !pgstat_track_counts;
	reloaded_before = PgReloadTime;
	may_have_written = MyBackendType != B_BACKEND;
	reported = NIL;
	pinpoint_uncounted_end_transaction();
}

/*
 * A table has changed in a way that is not counted.  Its channels are
 * determined before the commit.
 *
 * Errors: out of memory.
 */
void
pinpoint_changes_report_table(Oid relid)
{
	Assert(OidIsValid(relid));
	report(relid, "");
}

/*
 * The same for a channel, which the table may no longer have before the commit.
 *
 * Errors: out of memory.
 */
void
pinpoint_changes_report_channel(const char *channel)
{
	Assert(channel[0] != '\0');
	report(InvalidOid, channel);
}

static void
report(Oid relid, const char *channel)
{
	MemoryContext oldcontext;
	ReportedChange *change;
	ListCell   *lc;

	Assert(IsTransactionState());

	/* Otherwise the list would not be emptied at the end of the transaction. */
	Assert(pinpoint_preload_is_done());

	/*
	 * Subtransactions get ascending numbers.  So an abort that removes an
	 * element would also remove a later one.  An element that is there twice
	 * does no harm.
	 */
	for_each_from(lc, reported, Max(0, list_length(reported) - MAX_CHECKED))
	{
		change = lfirst(lc);
		if (change->relid == relid &&
			strcmp(NameStr(change->channel), channel) == 0)
			return;
	}

	oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	change = palloc(sizeof(ReportedChange));
	change->relid = relid;
	namestrcpy(&change->channel, channel);
	change->subid = GetCurrentSubTransactionId();
	reported = lappend(reported, change);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * A subtransaction aborts.  Later numbers are those of its children.
 */
void
pinpoint_changes_at_subabort(SubTransactionId subid)
{
	ListCell   *lc;

	foreach(lc, reported)
	{
		ReportedChange *change = lfirst(lc);

		if (change->subid >= subid)
		{
			reported = foreach_delete_current(reported, lc);
			pfree(change);
		}
	}
}

/*
 * Can this transaction have changed a table?  True in all processes that are no
 * session of a client.
 */
bool
pinpoint_changes_can_exist(void)
{
	return may_have_written ||
		TransactionIdIsValid(GetTopTransactionIdIfAny());
}

/*
 * Called in XACT_EVENT_PRE_COMMIT, after the last user code: add the
 * notifications of the watched tables to those of the transaction.
 *
 * Errors: out of memory, those of reading catalogs.
 */
void
pinpoint_changes_at_pre_commit(void)
{
	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);
	Assert(CurrentMemoryContext == TopTransactionContext);

	pinpoint_changes_for_each_channel(notify_channel);
}

/*
 * Call a function for each channel to notify because of the changes of this
 * transaction; more than once for a channel of more than one table.
 *
 * Errors: out of memory, those of reading catalogs.
 */
void
pinpoint_changes_for_each_channel(void (*action) (const char *channel))
{
	/* No subtransaction is left: all counts are of the outermost level. */
	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);
	Assert(GetCurrentTransactionNestLevel() == 1);

	if (!OidIsValid(MyDatabaseId))
		return;

	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
	{
		/* The last watched table may have been dropped. */
		bool		any_watched = pinpoint_watched_tables_exist();

		for_each_reported(any_watched, action);
		if (!any_watched)
			return;
		for_each_counted(action);
	}
	else if (!may_have_written || pinpoint_watched_tables_known_none())
		return;					/* it has changed nothing that is counted */
	for_each_uncounted(action);
}

/*
 * The changes that were reported.
 */
static void
for_each_reported(bool any_watched, void (*action) (const char *channel))
{
	ListCell   *lc;

	foreach(lc, reported)
	{
		ReportedChange *change = lfirst(lc);

		if (!OidIsValid(change->relid))
			action(NameStr(change->channel));
		else if (any_watched)
			for_each(pinpoint_watched_tables_to_notify(change->relid), action);
	}
}

/*
 * The changes that PostgreSQL has counted.
 */
static void
for_each_counted(void (*action) (const char *channel))
{
	bool		detaches = false;
	ListCell   *lc;

	if (is_uncounted())
	{
		for_each(pinpoint_watched_tables_channels(), action);
		return;
	}

	for (PgStat_TableXactStatus *counts = pgstat_get_xact_stack_level(1)->first;
		 counts != NULL; counts = counts->next)
	{
		Oid			relid = PINPOINT_COUNTED_TABLE(counts->parent);

		if ((counts->tuples_inserted > 0 || counts->tuples_updated > 0 ||
			 counts->tuples_deleted > 0 || counts->truncdropped) &&
			!cannot_be_watched(counts->parent))
			for_each(pinpoint_watched_tables_to_notify(relid), action);
		if (relid == InheritsRelationId)
			detaches = counts->tuples_updated > 0;
	}
	if (!detaches)
		return;
	foreach(lc, parents_of_detached())
		for_each(pinpoint_watched_tables_to_notify(lfirst_oid(lc)), action);
}

/*
 * The changes of tables whose changes nobody counts.  They need no XID: the
 * rows can be on another server.
 */
static void
for_each_uncounted(void (*action) (const char *channel))
{
	const Oid  *relids;
	int			n;

	if (pinpoint_uncounted_known_none())
		return;
	n = pinpoint_written_tables(&relids);
	if (n == 0 || RecoveryInProgress() ||
		!pinpoint_watched_tables_exist() || !pinpoint_uncounted_exist())
		return;
	for (int i = 0; i < n; i++)
		for_each(pinpoint_watched_tables_if_uncounted(relids[i]), action);
}

static void
for_each(List *channels, void (*action) (const char *channel))
{
	ListCell   *lc;

	foreach(lc, channels)
		action(lfirst(lc));
}

/*
 * May changes of this transaction be missing in the counts?
 */
static bool
is_uncounted(void)
{
	return uncounted || !pgstat_track_counts ||
		(unlikely(PgReloadTime != reloaded_before) && IsLogicalWorker());
}

/*
 * Is this a catalog, a TOAST table or a temporary table?  This is only to save
 * look-ups: the relcache entry may have been freed.
 */
static bool
cannot_be_watched(PgStat_TableStatus *table)
{
	if (PINPOINT_COUNTED_TABLE(table) < FirstNormalObjectId)
		return true;
	return table->relation != NULL &&
		(table->relation->rd_rel->relkind == RELKIND_TOASTVALUE ||
		 table->relation->rd_rel->relpersistence == RELPERSISTENCE_TEMP);
}

/*
 * The tables that this transaction has begun to detach a partition from, as a
 * list of OIDs.
 *
 * Errors: out of memory, those of reading catalogs.
 */
static List *
parents_of_detached(void)
{
	List	   *parents = NIL;
	Relation	inherits = table_open(InheritsRelationId, AccessShareLock);
	SysScanDesc scan;
	HeapTuple	tuple;

	/* With this snapshot, what the last command has changed is visible. */
	scan = systable_beginscan(inherits, InvalidOid, false, SnapshotSelf, 0,
							  NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_inherits row = (Form_pg_inherits) GETSTRUCT(tuple);
		TransactionId xmin = HeapTupleHeaderGetXmin(tuple->t_data);

		if (row->inhdetachpending && TransactionIdIsCurrentTransactionId(xmin))
			parents = lappend_oid(parents, row->inhparent);
	}
	systable_endscan(scan);
	table_close(inherits, AccessShareLock);
	return parents;
}

/*
 * Add notifications without payload to those of the transaction.
 *
 * channels: a list of char *.
 *
 * Errors: out of memory.
 */
void
pinpoint_changes_notify(List *channels)
{
	for_each(channels, notify_channel);
}

static void
notify_channel(const char *channel)
{
	Assert(PinpointMyTransaction.phase <= PINPOINT_SEALED);
	if (pinpoint_enabled)
		pinpoint_pending_notify(channel, "");
	else
	{
		PinpointMyTransaction.sent_to_own_queue = true;
		Async_Notify(channel, "");
	}
}
