/*-------------------------------------------------------------------------
 *
 * watch.c
 *		pinpoint.watch() and pinpoint.unwatch().
 *
 * A watched table has a security label of the provider "pinpoint".  The label
 * is the name of its channel.  So only the owner of a table can watch it.  The
 * label is transactional, stays when the table is renamed, is dropped with the
 * table, and is part of its definition in a dump.
 *
 * The command SECURITY LABEL FOR pinpoint does the same as pinpoint.watch(),
 * because pg_dump writes it.  The provider is registered when a session
 * executes this command for the first time, not before: if it were always
 * registered, SECURITY LABEL without FOR would have another meaning than
 * without this library.
 *
 * pinpoint.watch() locks the table and all its partitions and children as
 * CREATE TRIGGER locks a table: it waits until the transactions that have
 * changed one of them are over, and others wait until its own is.
 * watched_tables.c explains why.
 *
 * Applications call it each time they start.  If the table has the label
 * already, it takes no lock on the table, writes nothing and notifies nothing.
 * Nothing needs to be done for partitions and children either.  Those that
 * existed when the label was set were locked then, and those that were
 * attached later were locked when they were attached; see
 * pinpoint_watch_inheritance_changed().
 *
 * The lock of the labels.  CREATE EXTENSION and DROP EXTENSION of this library
 * read all labels of the database.  A label that is not committed yet is not
 * visible to them.  So a transaction that changes a label locks the labels of
 * the database, until it ends, in mode RowExclusiveLock, which does not
 * conflict with itself.  CREATE and DROP EXTENSION lock them in mode ShareLock
 * before they read.  There are two cases.  Either the label is committed or
 * rolled back before they read.  Or its transaction waits until they are over,
 * and then knows whether the extension exists.  The lock is that of an object
 * of pg_seclabel that does not exist, so nobody else requests it.
 *
 * Deadlocks.  The labels are locked before the table.  So a statement that
 * waits for the labels has not locked its table yet, and CREATE and DROP
 * EXTENSION, which lock tables when they have locked the labels, do not wait
 * for this statement.  If they wait for the labels, they have locked the
 * extension and its objects, and no table, unless by an earlier statement of
 * their transaction or by CASCADE.  watch(), unwatch() and SECURITY LABEL lock
 * no object of the extension.  A deadlock requires other statements in the
 * same transaction, which lock another watched table in a conflicting mode
 * before, or use a view of the extension afterwards.  PostgreSQL detects it.
 *
 * While CREATE or DROP EXTENSION waits for the labels, others that change
 * labels wait behind it.  Statements that change rows, and watch() of a
 * watched table, do not need this lock.
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
#include "catalog/indexing.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_seclabel.h"
#include "commands/seclabel.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/preload.h"
#include "base/request.h"
#include "live/changes.h"
#include "live/uncounted.h"
#include "live/watch.h"
#include "live/watched_tables.h"
#include "sql/listen_notify.h"
#include "sql/replacement.h"

PG_FUNCTION_INFO_V1(pinpoint_watch);
PG_FUNCTION_INFO_V1(pinpoint_unwatch);
PG_FUNCTION_INFO_V1(pinpoint_change_source);

static void check_label(const ObjectAddress *object, const char *label);
static void check_channel(const char *channel);
static void check_kind(Oid relid);
static Oid	get_relation(FunctionCallInfo fcinfo, const char *function);
static void check_owner(Oid relid);
static char *get_name(Oid relid);
static bool is_watched_on(Oid relid, const char *channel);
static void check_extension(void);
static void lock_descendants(Oid relid);
static void check_not_distributed(Oid relid);
static void warn_if_distributed(Oid relid);
static void warn_of_shards(Oid relid);
static Oid	find_distributed_below(Oid relid);
static Oid	find_distributed(List *relations);
static int	errhint_shards(const char *name);
static bool is_child(Oid child, Oid parent);
static void set_label(Oid relid, const char *label);
static bool has_label(const ObjectAddress *object, const char *label);
static void label_changes(const ObjectAddress *object, const char *label);
static void lock_labels(LOCKMODE lockmode);
static List *labelled_tables(void);

/*
 * Register the provider, once.
 *
 * Errors: out of memory.
 */
void
pinpoint_watch_register_provider(void)
{
	static bool registered = false;

	if (registered)
		return;
	register_label_provider(PINPOINT_LABEL_PROVIDER, check_label);
	registered = true;
}

/*
 * Called before SECURITY LABEL locks its table.  If several providers are
 * registered, the statement requires that one is named.
 *
 * provider: NULL if none is named.
 */
void
pinpoint_watch_before_security_label(const char *provider)
{
	if (provider != NULL && strcmp(provider, PINPOINT_LABEL_PROVIDER) != 0)
		return;
	if (provider != NULL)
		pinpoint_watch_register_provider();
	lock_labels(RowExclusiveLock);
}

/*
 * Called by SECURITY LABEL before it stores a label; NULL for none.  The
 * current user owns the object.  The lock on the object blocks sessions that
 * change its label, and no session that changes rows.
 *
 * If the library is preloaded, the labels are locked already.  Otherwise the
 * transaction can be prepared and committed when the library is preloaded.
 *
 * Errors: ERRCODE_WRONG_OBJECT_TYPE if the object is a column or no relation;
 * those of check_kind(), check_channel() and check_not_distributed().
 */
static void
check_label(const ObjectAddress *object, const char *label)
{
	if (object->classId != RelationRelationId || object->objectSubId != 0)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("only tables can be watched")));
	lock_labels(RowExclusiveLock);
	if (label != NULL)
	{
		check_kind(object->objectId);
		Assert(PINPOINT_OWNS_RELATION(object->objectId, GetUserId()));
		Assert(pinpoint_table_locked_by_me(object->objectId,
										   ShareUpdateExclusiveLock));
		check_channel(label);
	}
	if (has_label(object, label))
		return;
	if (label != NULL)
	{
		LockRelationOid(object->objectId, ShareRowExclusiveLock);
		lock_descendants(object->objectId);
		check_not_distributed(object->objectId);
	}
	label_changes(object, label);
}

/*
 * Errors: ERRCODE_INVALID_PARAMETER_VALUE, as for a notification;
 * ERRCODE_RESERVED_NAME.
 */
static void
check_channel(const char *channel)
{
	pinpoint_statement_check_channel_length(strlen(channel));
	if (pinpoint_is_heartbeat_channel(channel))
		pinpoint_statement_report_reserved_channel(channel);
}

/*
 * Check that changes of a relation can be noticed.
 *
 * Errors: ERRCODE_WRONG_OBJECT_TYPE; ERRCODE_INSUFFICIENT_PRIVILEGE for a
 * table that was created by initdb.
 */
static void
check_kind(Oid relid)
{
	char	   *name = get_name(relid);
	char		relkind = get_rel_relkind(relid);

	if (relkind != RELKIND_RELATION && relkind != RELKIND_PARTITIONED_TABLE &&
		relkind != RELKIND_MATVIEW)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("cannot watch relation \"%s\"", name),
				 errdetail_relkind_not_supported(relkind)));
	if (relid < FirstNormalObjectId)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied: \"%s\" is a system catalog", name)));
	if (get_rel_persistence(relid) == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("cannot watch relation \"%s\"", name),
				 errdetail("Other sessions cannot see the rows of a temporary table.")));
}

/*
 * pinpoint.watch(relation regclass, channel text): from now on, each
 * transaction that changes the table notifies the channel.  NULL means the
 * name of the table.  A table has one channel: a second call replaces it.
 *
 * Returns the channel.
 *
 * Errors: ERRCODE_INSUFFICIENT_PRIVILEGE if the current user does not own the
 * table; ERRCODE_UNDEFINED_OBJECT if the extension was dropped meanwhile; those
 * of check_kind(), check_channel() and check_not_distributed().
 */
Datum
pinpoint_watch(PG_FUNCTION_ARGS)
{
	Oid			relid = get_relation(fcinfo, "pinpoint.watch()");
	Name		channel = palloc0(sizeof(NameData));
	char	   *given;

	check_kind(relid);
	given = PG_ARGISNULL(1) ? get_name(relid) :
		text_to_cstring(PG_GETARG_TEXT_PP(1));
	check_channel(given);
	namestrcpy(channel, given);

	if (!is_watched_on(relid, NameStr(*channel)))
	{
		lock_labels(RowExclusiveLock);
		check_extension();
		LockRelationOid(relid, ShareRowExclusiveLock);
		check_owner(relid);
		lock_descendants(relid);
		check_not_distributed(relid);
		set_label(relid, NameStr(*channel));
	}
	PG_RETURN_NAME(channel);
}

/*
 * pinpoint.unwatch(relation regclass): returns whether the table was watched.
 * If it was not, takes no lock on it.
 *
 * Errors: ERRCODE_INSUFFICIENT_PRIVILEGE if the current user does not own the
 * table.
 */
Datum
pinpoint_unwatch(PG_FUNCTION_ARGS)
{
	Oid			relid = get_relation(fcinfo, "pinpoint.unwatch()");

	/* A label that was committed before this call is visible from here on. */
	AcceptInvalidationMessages();
	if (pinpoint_watched_table_channel(relid) == NULL)
		PG_RETURN_BOOL(false);

	lock_labels(RowExclusiveLock);
	LockRelationOid(relid, ShareUpdateExclusiveLock);
	check_owner(relid);
	if (pinpoint_watched_table_channel(relid) == NULL)
		PG_RETURN_BOOL(false);
	set_label(relid, NULL);
	warn_of_shards(relid);
	PG_RETURN_BOOL(true);
}

/*
 * pinpoint.change_source(relation regclass): how changes of a table are
 * noticed.  Returns "counts"; "locks" if the changes of the table, or of one of
 * its partitions and children, are not counted; "incomplete" if Citus
 * distributes one of them, so that not all changes are noticed.  See
 * uncounted.c.
 *
 * Errors: out of memory, those of reading catalogs.
 */
Datum
pinpoint_change_source(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	List	   *relations = pinpoint_watched_table_with_descendants(relid);
	const char *source = "counts";

	if (OidIsValid(find_distributed(relations)))
		source = "incomplete";
	else if (pinpoint_watched_table_is_partly_uncounted(relid))
		source = "locks";
	PG_RETURN_TEXT_P(cstring_to_text(source));
}

/*
 * Lock the labels of this database until the end of the transaction.
 *
 * lockmode: RowExclusiveLock to change the label of a table, ShareLock to read
 * all labels.
 */
static void
lock_labels(LOCKMODE lockmode)
{
	LockDatabaseObject(SecLabelRelationId, InvalidOid, 0, lockmode);
}

/*
 * The labels are locked: does the extension still exist?  A label that is set
 * now would stay.
 */
static void
check_extension(void)
{
	if (!pinpoint_replacement_extension_exists())
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" does not exist", "pg_pinpoint")));
}

/*
 * Get the relation that is the first argument.
 */
static Oid
get_relation(FunctionCallInfo fcinfo, const char *function)
{
	Oid			relid;

	PreventCommandIfReadOnly(function);
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("relation cannot be null")));
	relid = PG_GETARG_OID(0);
	check_owner(relid);
	return relid;
}

/*
 * Called before a relation is locked, so that only its owner can lock it, and
 * after that, since it may have been dropped or got another owner meanwhile.
 */
static void
check_owner(Oid relid)
{
	char	   *name = get_name(relid);

	if (!PINPOINT_OWNS_RELATION(relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER,
					   get_relkind_objtype(get_rel_relkind(relid)), name);
}

/*
 * Get the name of a relation, which may have been dropped meanwhile.
 *
 * Errors: ERRCODE_UNDEFINED_TABLE.
 */
static char *
get_name(Oid relid)
{
	char	   *name = get_rel_name(relid);

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	return name;
}

/*
 * Is the table watched, on this channel, and is no other transaction about to
 * change that?  Takes no lock on the table.
 *
 * The snapshot shows what other transactions have done before they commit.  So
 * if this returns true, there was a moment in this call at which the label was
 * committed, and nobody had changed it or dropped the table.  A lock could not
 * show more: one that is held until the end of the transaction would only make
 * later changes of the label wait.
 *
 * A lock that makes unwatch() wait would have to be ShareUpdateExclusiveLock,
 * which does not block sessions that change rows.  But VACUUM takes it, too.
 * So each start of an application would wait for it, and cancel an autovacuum
 * worker.
 *
 * False may be wrong, for instance if the scan misses a label that is replaced
 * meanwhile.  Then watch() takes its locks without need.
 *
 * Errors: out of memory, those of reading catalogs.
 */
static bool
is_watched_on(Oid relid, const char *channel)
{
	Relation	labels = table_open(SecLabelRelationId, AccessShareLock);
	SnapshotData snapshot;
	ScanKeyData keys[4];
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		is_watched = false;

	InitDirtySnapshot(snapshot);
	ScanKeyInit(&keys[0], Anum_pg_seclabel_objoid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(relid));
	ScanKeyInit(&keys[1], Anum_pg_seclabel_classoid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&keys[2], Anum_pg_seclabel_objsubid, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(0));
	ScanKeyInit(&keys[3], Anum_pg_seclabel_provider, BTEqualStrategyNumber,
				F_TEXTEQ, CStringGetTextDatum(PINPOINT_LABEL_PROVIDER));
	scan = systable_beginscan(labels, SecLabelObjectIndexId, true, &snapshot,
							  lengthof(keys), keys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple) && !TransactionIdIsValid(snapshot.xmin) &&
		!TransactionIdIsValid(snapshot.xmax))
	{
		bool		isnull;
		Datum		label = heap_getattr(tuple, Anum_pg_seclabel_label,
										 RelationGetDescr(labels), &isnull);

		Assert(!isnull);
		is_watched = strcmp(TextDatumGetCString(label), channel) == 0;
	}
	systable_endscan(scan);
	table_close(labels, AccessShareLock);
	return is_watched;
}

/*
 * The table is locked: wait until all transactions that have changed one of its
 * partitions or children are over, and make others wait until this one is.
 */
static void
lock_descendants(Oid relid)
{
	(void) find_all_inheritors(relid, ShareRowExclusiveLock, NULL);
}

/*
 * Check that Citus distributes neither a table nor one of its partitions and
 * children, which are locked.
 *
 * Errors: ERRCODE_FEATURE_NOT_SUPPORTED.
 */
static void
check_not_distributed(Oid relid)
{
	Oid			distributed = find_distributed_below(relid);

	if (OidIsValid(distributed))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot watch table \"%s\", which Citus distributes",
						get_name(distributed)),
				 errdetail("Its rows are changed in its shards, and by other nodes."),
				 errhint_shards(get_name(distributed))));
}

/*
 * The label of a table takes effect, although not all of its changes are
 * noticed.  An error would prevent the restore of a dump.
 */
static void
warn_if_distributed(Oid relid)
{
	Oid			distributed = find_distributed_below(relid);

	if (OidIsValid(distributed))
		ereport(WARNING,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("not all changes of watched table \"%s\" are notified",
						get_name(relid)),
				 errdetail("Citus distributes table \"%s\". Its rows are changed in its shards, and by other nodes.",
						   get_name(distributed)),
				 errhint_shards(get_name(distributed))));
}

/*
 * The label of a table is removed.  Citus has copied it to the shards if the
 * table was distributed later, and does not remove it there.
 */
static void
warn_of_shards(Oid relid)
{
	Oid			distributed = find_distributed_below(relid);

	if (OidIsValid(distributed))
		ereport(WARNING,
				(errmsg("shards of table \"%s\" can still be watched",
						get_name(distributed)),
				 errhint("End this: SELECT run_command_on_shards('%s', $$SELECT pinpoint.unwatch('%%s')$$).",
						 get_name(distributed))));
}

/*
 * A table, or one of its partitions and children, that Citus distributes;
 * InvalidOid if there is none.  The caller has locked the table.
 */
static Oid
find_distributed_below(Oid relid)
{
	return find_distributed(find_all_inheritors(relid, NoLock, NULL));
}

static Oid
find_distributed(List *relations)
{
	ListCell   *lc;

	foreach(lc, relations)
	{
		if (pinpoint_uncounted_is_distributed(lfirst_oid(lc)))
			return lfirst_oid(lc);
	}
	return InvalidOid;
}

static int
errhint_shards(const char *name)
{
	return errhint("Watch the shards: SELECT run_command_on_shards('%s', $$SELECT pinpoint.watch('%%s', '%s')$$).",
				   name, name);
}

/*
 * Set or, with NULL, remove the label of a table.  It may have this label by
 * now.
 */
static void
set_label(Oid relid, const char *label)
{
	ObjectAddress object;

	Assert(pinpoint_table_locked_by_me(relid, label != NULL ?
									   ShareRowExclusiveLock :
									   ShareUpdateExclusiveLock));
	Assert(PINPOINT_OWNS_RELATION(relid, GetUserId()));

	ObjectAddressSet(object, RelationRelationId, relid);
	if (has_label(&object, label))
		return;
	label_changes(&object, label);
	SetSecurityLabel(&object, PINPOINT_LABEL_PROVIDER, label);
	CommandCounterIncrement();
}

/*
 * Has the table this label, or, with NULL, none?  The caller holds a lock that
 * others need to change it.
 */
static bool
has_label(const ObjectAddress *object, const char *label)
{
	char	   *current = GetSecurityLabel(object, PINPOINT_LABEL_PROVIDER);

	if (current == NULL || label == NULL)
		return current == label;

	return strcmp(current, label) == 0;
}

/*
 * A table is about to get a label, or, with NULL, to lose it.  Both channels
 * are notified: changes of the table before this transaction have not notified
 * the new channel, and later ones will not notify the old one.
 */
static void
label_changes(const ObjectAddress *object, const char *label)
{
	char	   *old_label = GetSecurityLabel(object, PINPOINT_LABEL_PROVIDER);

	if (pinpoint_preload_is_done() && pinpoint_replacement_extension_exists())
	{
		if (old_label != NULL)
			pinpoint_changes_report_channel(old_label);
		if (label != NULL)
			pinpoint_changes_report_channel(label);
	}
	pinpoint_watch_labels_changed(object->objectId);
}

/*
 * This transaction changes the label of a table.  When it has committed, all
 * sessions of this database read it again before its next use.
 */
void
pinpoint_watch_labels_changed(Oid relid)
{
	Assert(IsTransactionState());
	Assert(OidIsValid(relid));

	CacheInvalidateRelcacheByRelid(relid);
	CacheInvalidateRelcacheByRelid(SecLabelRelationId);
}

/*
 * A table has become a partition or a child of another one, or is none any
 * more.  Called before the transaction commits.
 *
 * ALTER TABLE ... INHERIT does not always invalidate the relcache entry of the
 * child.  This is necessary even if nothing is watched: the parent, or a table
 * above it, can be watched later.
 *
 * If the parent or one of its ancestors is watched, transactions that have
 * changed descendants of the child must end first, as in watch().  ATTACH
 * PARTITION locks them all, ALTER TABLE ... INHERIT does not.  If the child
 * leaves its parent, it takes its rows along, so the changes of these
 * transactions are not changes of the parent.
 *
 * Errors: those of check_not_distributed(), not if the child leaves its parent.
 */
void
pinpoint_watch_inheritance_changed(Oid child, Oid parent)
{
	Assert(IsTransactionState());
	Assert(OidIsValid(child) && OidIsValid(parent));

	CacheInvalidateRelcacheByRelid(child);
	if (!pinpoint_watched_tables_exist() ||
		pinpoint_watched_tables_to_notify(parent) == NIL)
		return;
	if (!is_child(child, parent))
		return;
	if (get_rel_relkind(parent) != RELKIND_PARTITIONED_TABLE)
		lock_descendants(child);
	check_not_distributed(child);
}

/*
 * Is a table a child of another one now?  This transaction may have just
 * changed that.
 */
static bool
is_child(Oid child, Oid parent)
{
	Relation	inherits = table_open(InheritsRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&key, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(child));

	/* With this snapshot, what the current command has changed is visible. */
	scan = systable_beginscan(inherits, InheritsRelidSeqnoIndexId, true,
							  SnapshotSelf, 1, &key);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
		found = ((Form_pg_inherits) GETSTRUCT(tuple))->inhparent == parent;
	systable_endscan(scan);
	table_close(inherits, AccessShareLock);
	return found;
}

/*
 * The extension is dropped in this database: remove all labels, and notify all
 * their channels for the last time.
 *
 * DROP TABLE deletes the label of its table without the lock of the labels.  So
 * the tables are locked, too, in a mode that conflicts only with those of DROP
 * TABLE and similar statements.
 *
 * Errors: those of waiting for locks and of deleting rows of a catalog.
 */
void
pinpoint_watch_remove_all(void)
{
	Relation	labels;
	SysScanDesc scan;
	HeapTuple	tuple;
	ListCell   *lc;

	lock_labels(ShareLock);
	foreach(lc, labelled_tables())
		LockRelationOid(lfirst_oid(lc), AccessShareLock);

	labels = table_open(SecLabelRelationId, RowExclusiveLock);
	scan = pinpoint_watched_tables_begin_scan(labels);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Oid			relid;
		bool		isnull;
		Datum		label = heap_getattr(tuple, Anum_pg_seclabel_label,
										 RelationGetDescr(labels), &isnull);

		/* Changes of this transaction can no longer find the label. */
		Assert(!isnull);
		pinpoint_changes_report_channel(TextDatumGetCString(label));
		relid = ((FormData_pg_seclabel *) GETSTRUCT(tuple))->objoid;
		if (SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
			pinpoint_watch_labels_changed(relid);
		CatalogTupleDelete(labels, &tuple->t_self);
	}
	systable_endscan(scan);
	table_close(labels, RowExclusiveLock);
}

/*
 * Called before a transaction commits that has created the extension.  From
 * then on, tables are watched that have got a label while it did not exist.
 * As in watch(), transactions that have changed them must end first, because
 * they may notify nothing, and the channels are notified.  DROP TABLE may
 * delete a label before its table is locked.
 *
 * Errors: out of memory, those of reading catalogs and of waiting for locks.
 */
void
pinpoint_watch_labels_take_effect(void)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	ListCell   *lc;

	lock_labels(ShareLock);
	foreach(lc, labelled_tables())
	{
		LockRelationOid(lfirst_oid(lc), ShareRowExclusiveLock);
		if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(lfirst_oid(lc))))
			continue;
		lock_descendants(lfirst_oid(lc));
		warn_if_distributed(lfirst_oid(lc));
	}
	foreach(lc, pinpoint_watched_tables_channels())
		pinpoint_changes_report_channel(lfirst(lc));
	MemoryContextSwitchTo(oldcontext);
}

/*
 * The tables with a label, as a list of OIDs.
 */
static List *
labelled_tables(void)
{
	List	   *tables = NIL;
	Relation	labels = table_open(SecLabelRelationId, AccessShareLock);
	SysScanDesc scan = pinpoint_watched_tables_begin_scan(labels);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		FormData_pg_seclabel *label = (FormData_pg_seclabel *) GETSTRUCT(tuple);

		tables = lappend_oid(tables, label->objoid);
	}
	systable_endscan(scan);
	table_close(labels, AccessShareLock);
	return tables;
}
