/*-------------------------------------------------------------------------
 *
 * watched_tables.c
 *		The watched tables of this database, and the channels of changed tables.
 *
 * A watched table has a security label of the provider "pinpoint", which is
 * the name of its channel; see watch.c.  This session keeps in its memory:
 *
 *	any_watched		is any table of the database watched?
 *	known			for each table that this session has changed, and for each
 *					ancestor of one: its channel, its parents (the tables of
 *					which it is a partition or a child), and whether its changes
 *					are counted; see uncounted.c.  In a database with watched
 *					tables, also for each relation that was locked for writing
 *
 * So a transaction reads no catalog if nothing is watched, or if the session
 * knows the tables that it has changed.
 *
 * Invalidation.  Each of these invalidates the relcache entry of a table when
 * it commits, and for its own transaction at the end of the command:
 *
 *	a change of the label of the table		pinpoint_watch_labels_changed()
 *	a change of the parents of the table	pinpoint_watch_inheritance_changed()
 *	CREATE and DROP of the table			PostgreSQL
 *	a change of its access method, its		PostgreSQL
 *	first child
 *
 * At a message for a table, the table is no longer known.  It is read again,
 * by the indexes of both catalogs, when the session has changed it the next
 * time.  Other tables stay known.  PostgreSQL sends messages for other
 * reasons, too, for instance after ANALYZE.  They cost the same, and only for
 * tables that the session changes.
 *
 * A transaction that changes a label also invalidates the relcache entry of
 * pg_seclabel.  So a session learns that the first table is watched.  If
 * any_watched is true, this message has no effect: otherwise all sessions
 * would read pg_seclabel after each change of a label.  So any_watched can
 * stay true when no table is watched any more.  This costs the look-ups of
 * known tables, and nothing is notified.
 *
 * The messages are sent whether or not something is watched, and whether or
 * not the extension exists.  So what a session knows stays true while nothing
 * is watched, and when the extension is dropped and created again.  In a
 * database without the extension, nothing is read.  A transaction that creates
 * the extension waits until all others that have changed a label are over.
 * Then it locks the tables that have a label, as watch() does: they are
 * watched from its commit on.
 *
 * Why no change of a watched table is overlooked.  A transaction that has
 * changed a table holds a lock on it, of mode RowExclusiveLock at least, until
 * it ends.  To watch a table, its descendants included, means to lock all of
 * them in a mode that conflicts with this one, until the label is committed;
 * see watch.c.  So there are two cases.  Either the transaction got its lock
 * on the table before, and has ended when the lock is granted to watch(): it
 * has committed before the table was watched.  Or it got its lock after the
 * label was committed.  PostgreSQL sends invalidation messages before it
 * releases the locks of a transaction, and processes them after it has
 * acquired a lock on a table, so this session knows that it has to read the
 * label: the message is for the table with the label, which can be an ancestor
 * of the changed one.
 *
 * The same is true when a table becomes a partition or a child of a watched
 * one: all descendants of the table are locked then.  If the new parent is not
 * watched, and has no watched ancestor, they are not locked.  A transaction
 * that has changed one of them may process the message of the child only after
 * its end.  It need not notify the parent, because watching the parent means
 * to wait for this transaction.  The next one of the session processes both
 * messages.
 *
 * A label that is committed while this file reads the catalogs belongs to a
 * table that the transaction has not changed.  A message that arrives
 * meanwhile is not lost: what was read counts as older than the message.  When
 * a transaction or subtransaction aborts, PostgreSQL processes its messages in
 * its own session.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_seclabel.h"
#include "commands/seclabel.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "base/preload.h"
#include "live/uncounted.h"
#include "live/watched_tables.h"
#include "sql/replacement.h"

/*
 * A relation that this session has changed or locked for writing, or an
 * ancestor of one.
 */
typedef struct KnownTable
{
	Oid			relid;			/* hash key, must be first */
	char	   *channel;		/* NULL if it is not watched */
	List	   *parents;		/* of OIDs */
	bool		is_counted;		/* are its changes counted? */
	bool		may_be_hypertable;
	uint64		read_at;		/* value of "messages" before the channel and
								 * the parents were read, or 0 */
	uint64		storage_read_at;	/* the same for the other two */
	uint64		changed_at;		/* value at the last message for it, or 0 */
} KnownTable;

/* With so many tables, all are forgotten; each takes about 100 bytes. */
#define MAX_KNOWN		10000

static HTAB *known = NULL;
static MemoryContext known_context = NULL;

/*
 * Invalidation messages are numbered.  The callback only stores numbers,
 * because a table may be in use.
 */
static uint64 messages = 1;
static uint64 all_changed_at = 1;	/* the last message for all tables */
static uint64 labels_changed_at = 1;	/* the last one for pg_seclabel, or
										 * all */

static bool any_watched = false;
static uint64 any_read_at = 0;	/* value of "messages" before it was read */

static void register_callback(void);
static void relation_changed(Datum arg, Oid relid);
static List *read_labels(bool only_one, LOCKMODE lockmode);
static void make_room(void);
static List *channels_of(Oid relid);
static bool is_uncounted(Oid relid);
static void forget_all(void);
static KnownTable *know_table(Oid relid);
static bool is_current(const KnownTable *table, uint64 read_at);
static KnownTable *know_storage(Oid relid);
static KnownTable *enter_table(Oid relid);
static void read_table(KnownTable *table);
static void read_storage(KnownTable *table);
static bool read_relation(Oid relid, FormData_pg_class *relation);
static List *read_inherits(Oid relid, bool children);
static List *with_relatives(Oid relid, bool children);

static void
register_callback(void)
{
	static bool registered = false;

	if (registered)
		return;
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	registered = true;
}

/*
 * An invalidation message for a table; InvalidOid for all tables.
 */
static void
relation_changed(Datum arg, Oid relid)
{
	KnownTable *table;

	messages++;
	if (relid == InvalidOid)
	{
		all_changed_at = labels_changed_at = messages;
		any_watched = false;
	}
	else if (relid == SecLabelRelationId)
		labels_changed_at = messages;
	else if (known != NULL &&
			 (table = hash_search(known, &relid, HASH_FIND, NULL)) != NULL)
		table->changed_at = messages;
}

/*
 * Does this session know that no table of this database is watched?
 */
bool
pinpoint_watched_tables_known_none(void)
{
	return !any_watched && any_read_at >= labels_changed_at;
}

/*
 * Is any table of this database watched, and does the extension exist?  Can be
 * true if no table is watched any more.
 *
 * Errors: out of memory, those of reading catalogs.
 */
bool
pinpoint_watched_tables_exist(void)
{
	Assert(IsTransactionState());
	Assert(OidIsValid(MyDatabaseId));

	if (pinpoint_watched_tables_known_none())
		return false;
	if (!pinpoint_replacement_extension_exists())
		return false;
	if (!any_watched)
	{
		uint64		at;

		register_callback();
		at = messages;
		any_watched = read_labels(true, NoLock) != NIL;
		any_read_at = at;
	}
	return any_watched;
}

/*
 * Begin to read the labels of the provider in pg_seclabel.
 *
 * Errors: out of memory.
 */
SysScanDesc
pinpoint_watched_tables_begin_scan(Relation labels)
{
	ScanKeyData key;

	/* There is no index on the provider. */
	ScanKeyInit(&key, Anum_pg_seclabel_provider, BTEqualStrategyNumber,
				F_TEXTEQ, CStringGetTextDatum(PINPOINT_LABEL_PROVIDER));
	key.sk_collation = C_COLLATION_OID;
	return systable_beginscan(labels, InvalidOid, false, NULL, 1, &key);
}

/*
 * Read the labels of all watched tables, or only one of them.  Returns them as
 * a list of char *.
 *
 * lockmode: only those of tables that this session has locked in this mode;
 * NoLock for all.
 */
static List *
read_labels(bool only_one, LOCKMODE lockmode)
{
	List	   *channels = NIL;
	Relation	labels = table_open(SecLabelRelationId, AccessShareLock);
	SysScanDesc scan = pinpoint_watched_tables_begin_scan(labels);
	HeapTuple	tuple;

	while ((channels == NIL || !only_one) &&
		   HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		FormData_pg_seclabel *label = (FormData_pg_seclabel *) GETSTRUCT(tuple);
		Datum		channel;
		bool		isnull;

		if (label->classoid != RelationRelationId || label->objsubid != 0 ||
			(lockmode != NoLock &&
			 !pinpoint_table_locked_by_me(label->objoid, lockmode)))
			continue;
		channel = heap_getattr(tuple, Anum_pg_seclabel_label,
							   RelationGetDescr(labels), &isnull);
		Assert(!isnull);
		channels = lappend(channels, TextDatumGetCString(channel));
	}
	systable_endscan(scan);
	table_close(labels, AccessShareLock);
	return channels;
}

/*
 * The channels of all watched tables, as a list of char *.
 *
 * Errors: out of memory, those of reading catalogs.
 */
List *
pinpoint_watched_tables_channels(void)
{
	Assert(IsTransactionState());

	return read_labels(false, NoLock);
}

/*
 * The channels of the watched tables that this session has locked in a mode,
 * as a list of char *.
 *
 * Errors: out of memory, those of reading catalogs.
 */
List *
pinpoint_watched_tables_locked_channels(LOCKMODE lockmode)
{
	Assert(IsTransactionState());
	Assert(lockmode != NoLock);

	return read_labels(false, lockmode);
}

/*
 * The channel of a watched table; NULL if it is not watched.
 *
 * Errors: out of memory, those of reading catalogs.
 */
const char *
pinpoint_watched_table_channel(Oid relid)
{
	ObjectAddress object;

	Assert(IsTransactionState());
	Assert(OidIsValid(relid));

	ObjectAddressSet(object, RelationRelationId, relid);
	return GetSecurityLabel(&object, PINPOINT_LABEL_PROVIDER);
}

/*
 * The channels to notify if a table was changed, as a list of char *: those of
 * the table, and of all tables of which it is a partition or a child, directly
 * or not.  The channels are valid until the next call of this function.
 *
 * Errors: out of memory, those of reading catalogs.
 */
List *
pinpoint_watched_tables_to_notify(Oid relid)
{
	make_room();
	return channels_of(relid);
}

/*
 * The same for a relation that was locked for writing; NIL if its changes are
 * counted.
 *
 * Errors: out of memory, those of reading catalogs.
 */
List *
pinpoint_watched_tables_if_uncounted(Oid relid)
{
	make_room();
	return is_uncounted(relid) ? channels_of(relid) : NIL;
}

/*
 * Forget all tables if there are too many.
 */
static void
make_room(void)
{
	Assert(IsTransactionState());

	/* Otherwise changes of the parents would not be noticed. */
	Assert(pinpoint_preload_is_done());

	if (known == NULL || hash_get_num_entries(known) >= MAX_KNOWN)
		forget_all();
}

static List *
channels_of(Oid relid)
{
	List	   *relations = list_make1_oid(relid);
	List	   *channels = NIL;

	for (int i = 0; i < list_length(relations); i++)
	{
		KnownTable *table = know_table(list_nth_oid(relations, i));

		if (table->channel != NULL)
			channels = lappend(channels, table->channel);
		relations = list_concat_unique_oid(relations, table->parents);
	}
	list_free(relations);
	pinpoint_watched_tables_check();
	return channels;
}

/*
 * Are the changes of a relation not counted?  It can be a chunk of a
 * hypertable.
 */
static bool
is_uncounted(Oid relid)
{
	List	   *relations;
	bool		in_hypertable = false;

	if (!know_storage(relid)->is_counted)
		return true;
	if (!pinpoint_uncounted_any_hypertable())
		return false;

	relations = list_make1_oid(relid);
	for (int i = 0; i < list_length(relations) && !in_hypertable; i++)
	{
		Oid			relation = list_nth_oid(relations, i);

		in_hypertable = know_storage(relation)->may_be_hypertable;
		relations = list_concat_unique_oid(relations,
										   know_table(relation)->parents);
	}
	list_free(relations);
	return in_hypertable;
}

static void
forget_all(void)
{
	HASHCTL		ctl;

	register_callback();
	if (known_context == NULL)
		known_context = AllocSetContextCreate(TopMemoryContext,
											  "pg_pinpoint known tables",
											  ALLOCSET_SMALL_SIZES);
	known = NULL;
	MemoryContextReset(known_context);
	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(KnownTable);
	ctl.hcxt = known_context;
	known = hash_create("pg_pinpoint known tables", 32, &ctl,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * Find a table, and read its channel and its parents if they are not current.
 */
static KnownTable *
know_table(Oid relid)
{
	KnownTable *table = enter_table(relid);

	if (!is_current(table, table->read_at))
		read_table(table);
	return table;
}

/*
 * Find a table, and read how it is stored if that is not current.  It is read
 * only before a commit: COMMIT PREPARED has locked only the catalogs that
 * know_table() reads.
 */
static KnownTable *
know_storage(Oid relid)
{
	KnownTable *table = enter_table(relid);

	if (!is_current(table, table->storage_read_at))
		read_storage(table);
	return table;
}

/*
 * From here on, a message for this table is noticed.
 */
static KnownTable *
enter_table(Oid relid)
{
	bool		found;
	KnownTable *table;

	Assert(known != NULL && OidIsValid(relid));

	table = hash_search(known, &relid, HASH_ENTER, &found);
	if (!found)
	{
		table->channel = NULL;
		table->parents = NIL;
		table->is_counted = true;
		table->may_be_hypertable = false;
		table->read_at = 0;
		table->storage_read_at = 0;
		table->changed_at = 0;
	}
	return table;
}

static bool
is_current(const KnownTable *table, uint64 read_at)
{
	return read_at >= Max(table->changed_at, all_changed_at);
}

/*
 * If a message arrives meanwhile, or if this fails, the table is not current.
 */
static void
read_table(KnownTable *table)
{
	uint64		at = messages;
	const char *channel = pinpoint_watched_table_channel(table->relid);
	List	   *parents = read_inherits(table->relid, false);
	MemoryContext oldcontext = MemoryContextSwitchTo(known_context);

	if (channel != NULL)
		channel = pstrdup(channel);
	parents = list_copy(parents);
	MemoryContextSwitchTo(oldcontext);

	if (table->channel != NULL)
		pfree(table->channel);
	list_free(table->parents);
	table->channel = unconstify(char *, channel);
	table->parents = parents;
	table->read_at = at;
}

static void
read_storage(KnownTable *table)
{
	uint64		at = messages;
	FormData_pg_class relation;
	bool		exists = read_relation(table->relid, &relation);

	table->is_counted = !exists || !pinpoint_uncounted_relation(&relation);
	table->may_be_hypertable = exists &&
		pinpoint_uncounted_may_be_hypertable(&relation);
	table->storage_read_at = at;
}

/*
 * Copy the entry of a relation from pg_class.  Returns false if it does not
 * exist, for instance because this transaction has dropped it.
 */
static bool
read_relation(Oid relid, FormData_pg_class *relation)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));

	if (!HeapTupleIsValid(tuple))
		return false;
	memcpy(relation, GETSTRUCT(tuple), CLASS_TUPLE_SIZE);
	ReleaseSysCache(tuple);
	return true;
}

/*
 * The partitions and children of a table, or else the tables of which it is a
 * partition or a child; a list of OIDs.
 *
 * A partition whose DETACH CONCURRENTLY has begun still has its parent.
 */
static List *
read_inherits(Oid relid, bool children)
{
	List	   *relations = NIL;
	Relation	inherits = table_open(InheritsRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, children ? Anum_pg_inherits_inhparent :
				Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(inherits, children ? InheritsParentIndexId :
							  InheritsRelidSeqnoIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_inherits row = (Form_pg_inherits) GETSTRUCT(tuple);

		relations = lappend_oid(relations,
								children ? row->inhrelid : row->inhparent);
	}
	systable_endscan(scan);
	table_close(inherits, AccessShareLock);
	return relations;
}

/*
 * A table, followed by all tables of which it is a partition or a child,
 * directly or not; a list of OIDs, the nearest first.  Reads the catalog.
 *
 * Errors: out of memory, those of reading catalogs.
 */
List *
pinpoint_watched_table_with_ancestors(Oid relid)
{
	return with_relatives(relid, false);
}

/*
 * The same with all its partitions and children.
 */
List *
pinpoint_watched_table_with_descendants(Oid relid)
{
	return with_relatives(relid, true);
}

static List *
with_relatives(Oid relid, bool children)
{
	List	   *relations = list_make1_oid(relid);

	for (int i = 0; i < list_length(relations); i++)
	{
		Oid			relation = list_nth_oid(relations, i);

		relations = list_concat_unique_oid(relations,
										   read_inherits(relation, children));
	}
	return relations;
}

/*
 * Are changes of a table, or of one of its partitions and children, not
 * counted?  Reads the catalogs.  A table may be dropped meanwhile.
 *
 * Errors: out of memory, those of reading catalogs.
 */
bool
pinpoint_watched_table_is_partly_uncounted(Oid relid)
{
	bool		any_hypertable = pinpoint_uncounted_any_hypertable();
	FormData_pg_class relation;
	ListCell   *lc;

	/* It can be a chunk. */
	foreach(lc, pinpoint_watched_table_with_ancestors(relid))
	{
		if (any_hypertable && read_relation(lfirst_oid(lc), &relation) &&
			pinpoint_uncounted_may_be_hypertable(&relation))
			return true;
	}
	foreach(lc, pinpoint_watched_table_with_descendants(relid))
	{
		if (read_relation(lfirst_oid(lc), &relation) &&
			(pinpoint_uncounted_relation(&relation) ||
			 (any_hypertable &&
			  pinpoint_uncounted_may_be_hypertable(&relation))))
			return true;
	}
	return false;
}

#ifdef USE_ASSERT_CHECKING
/* Tables that the check looks at, at most. */
#define MAX_CHECKED		16

void
pinpoint_watched_tables_check(void)
{
	HASH_SEQ_STATUS seq;
	KnownTable *table = NULL;

	Assert(any_read_at <= messages);
	Assert(all_changed_at <= labels_changed_at &&
		   labels_changed_at <= messages);
	if (known == NULL)
		return;

	hash_seq_init(&seq, known);
	for (int i = 0; i < MAX_CHECKED; i++)
	{
		table = hash_seq_search(&seq);
		if (table == NULL)
			break;
		Assert(OidIsValid(table->relid));
		Assert(table->read_at <= messages && table->changed_at <= messages);
		Assert(table->read_at != 0 ||
			   (table->channel == NULL && table->parents == NIL));
		Assert(table->channel == NULL || table->channel[0] != '\0');
		Assert(!list_member_oid(table->parents, table->relid));
	}
	if (table != NULL)
		hash_seq_term(&seq);
}
#endif
