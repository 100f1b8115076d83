/*-------------------------------------------------------------------------
 *
 * watched_tables.c
 *		The watched tables of this database, and the channels of changed tables.
 *
 * A watched table has a security label of the provider "pinpoint", which is the name
 * of its channel; see watch.c.  This session keeps two tables in its memory:
 *
 *	watched		the labels of all watched tables of the database
 *	changed		for each table that this session has changed, the channels to
 *				notify: those of the table itself, and of all tables of which it
 *				is a partition or a child, directly or not
 *
 * The first one is loaded when the session first commits a change.  So a transaction
 * that changes only unwatched tables pays for one look-up per table.
 *
 * Invalidation.  A transaction that changes a label invalidates the relcache entry of
 * pg_seclabel.  At this message, the labels are loaded again before their next use,
 * and the second table is emptied.  It is also emptied at an invalidation message for
 * any table in it.  It contains the ancestors of each table that it contains, and a
 * change of the ancestors of a table invalidates the relcache entry of that table; see
 * pinpoint_inheritance_changed() for the case in which PostgreSQL does not do so.
 *
 * Why no change of a watched table is overlooked.  A transaction that has changed a
 * table holds a lock on it, of mode RowExclusiveLock at least, until it ends.  To watch
 * a table, its descendants included, means to lock all of them in a mode that conflicts
 * with this one, until the label is committed; see watch.c.  So there are two cases.
 * Either the transaction got its lock on the table before, and has ended when the lock
 * is granted to watch(): it has committed before the table was watched.  Or it got its
 * lock after the label was committed.  PostgreSQL sends invalidation messages before
 * it releases the locks of a transaction, and processes them after it has acquired a
 * lock on a table, so this session knows of the label, or knows that it has to load it.
 * The same is true when a table becomes a partition or a child of a watched one: all
 * descendants of the table are locked then.  A label that is committed while this file
 * reads the catalogs belongs to a table that the transaction has not changed.
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
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_seclabel.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "live/watched_tables.h"
#include "sql/replacement.h"

typedef struct WatchedTable
{
	Oid			relid;			/* hash key, must be first */
	NameData	channel;
} WatchedTable;

/* A table that this session has changed, or an ancestor of one. */
typedef struct ChangedTable
{
	Oid			relid;			/* hash key, must be first */
	bool		resolved;		/* is the next field valid? */
	List	   *channels;		/* of char *, of the table and its ancestors */
} ChangedTable;

static HTAB *watched = NULL;
static MemoryContext watched_context = NULL;
static HTAB *changed = NULL;
static MemoryContext changed_context = NULL;

/*
 * Numbers of invalidation messages, and those at which the tables were filled.
 * The callback only counts, because an entry may be in use.
 */
static uint64 label_changes = 1;
static uint64 loaded_at = 0;
static uint64 table_changes = 1;
static uint64 resolved_at = 0;

static void relation_changed(Datum arg, Oid relid);
static void load_labels(void);
static void empty_changed(void);
static ChangedTable *enter_changed(Oid relid);

/*
 * An invalidation message for a table; InvalidOid for all tables.
 */
static void
relation_changed(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == SecLabelRelationId)
		label_changes++;
	else if (changed != NULL &&
			 hash_search(changed, &relid, HASH_FIND, NULL) != NULL)
		table_changes++;
}

/*
 * Is any table of this database watched, and does the extension exist?  To be
 * called in a transaction, before any of the functions below.
 *
 * Errors: out of memory, those of reading catalogs.
 */
bool
pinpoint_any_watched(void)
{
	Assert(IsTransactionState());
	Assert(OidIsValid(MyDatabaseId));

	if (loaded_at != label_changes)
		load_labels();
	return hash_get_num_entries(watched) > 0 && pinpoint_extension_exists();
}

static void
load_labels(void)
{
	static bool callback_registered = false;
	uint64		at;
	HASHCTL		ctl;
	Relation	labels;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	if (!callback_registered)
	{
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
		callback_registered = true;
	}
	if (watched_context == NULL)
		watched_context = AllocSetContextCreate(TopMemoryContext,
												"pg_pinpoint watched tables",
												ALLOCSET_SMALL_SIZES);

	/*
	 * If a message arrives during the scan, or if the scan fails, the next
	 * call loads again.
	 */
	at = label_changes;
	loaded_at = 0;
	watched = NULL;
	MemoryContextReset(watched_context);
	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(WatchedTable);
	ctl.hcxt = watched_context;
	watched = hash_create("pg_pinpoint watched tables", 32, &ctl,
						  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	/* There is no index on the provider. */
	ScanKeyInit(&key, Anum_pg_seclabel_provider, BTEqualStrategyNumber,
				F_TEXTEQ, CStringGetTextDatum(PINPOINT_LABEL_PROVIDER));
	key.sk_collation = C_COLLATION_OID;
	labels = table_open(SecLabelRelationId, AccessShareLock);
	scan = systable_beginscan(labels, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		FormData_pg_seclabel *label = (FormData_pg_seclabel *) GETSTRUCT(tuple);
		WatchedTable *table;
		Datum		channel;
		bool		isnull;

		if (label->classoid != RelationRelationId || label->objsubid != 0)
			continue;
		channel = heap_getattr(tuple, Anum_pg_seclabel_label,
							   RelationGetDescr(labels), &isnull);
		Assert(!isnull);
		table = hash_search(watched, &label->objoid, HASH_ENTER, NULL);
		namestrcpy(&table->channel, TextDatumGetCString(channel));
	}
	systable_endscan(scan);
	table_close(labels, AccessShareLock);

	table_changes++;
	loaded_at = at;
	pinpoint_watched_tables_check();
}

/*
 * The channel of a watched table; NULL if it is not watched.
 */
const char *
pinpoint_watched_channel(Oid relid)
{
	WatchedTable *table;

	Assert(loaded_at != 0 && watched != NULL);
	Assert(OidIsValid(relid));

	table = hash_search(watched, &relid, HASH_FIND, NULL);
	return table ? NameStr(table->channel) : NULL;
}

/*
 * The channels of all watched tables, as a list of char *.
 */
List *
pinpoint_all_watched_channels(void)
{
	List	   *channels = NIL;
	HASH_SEQ_STATUS seq;
	WatchedTable *table;

	Assert(IsTransactionState());
	Assert(loaded_at != 0 && watched != NULL);

	hash_seq_init(&seq, watched);
	while ((table = hash_seq_search(&seq)) != NULL)
		channels = lappend(channels, NameStr(table->channel));
	return channels;
}

/*
 * The channels to notify if a table was changed, as a list of char *.  Valid
 * until the next call of a function of this file.
 *
 * Errors: out of memory, those of reading catalogs.
 */
List *
pinpoint_channels_of_changed(Oid relid)
{
	ChangedTable *table;
	List	   *channels = NIL;
	List	   *relations;
	ListCell   *lc;
	MemoryContext oldcontext;

	Assert(IsTransactionState());
	Assert(loaded_at != 0 && watched != NULL);

	if (changed == NULL || resolved_at != table_changes)
		empty_changed();

	table = enter_changed(relid);
	if (table->resolved)
		return table->channels;

	relations = pinpoint_with_ancestors(relid);
	oldcontext = MemoryContextSwitchTo(changed_context);
	foreach(lc, relations)
	{
		const char *channel = pinpoint_watched_channel(lfirst_oid(lc));

		if (channel != NULL)
			channels = lappend(channels, pstrdup(channel));
	}
	MemoryContextSwitchTo(oldcontext);
	list_free(relations);

	table->channels = channels;
	table->resolved = true;
	pinpoint_watched_tables_check();
	return channels;
}

static void
empty_changed(void)
{
	HASHCTL		ctl;

	if (changed_context == NULL)
		changed_context = AllocSetContextCreate(TopMemoryContext,
												"pg_pinpoint changed tables",
												ALLOCSET_SMALL_SIZES);
	changed = NULL;
	MemoryContextReset(changed_context);
	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(ChangedTable);
	ctl.hcxt = changed_context;
	changed = hash_create("pg_pinpoint changed tables", 32, &ctl,
						  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	resolved_at = table_changes;
}

static ChangedTable *
enter_changed(Oid relid)
{
	bool		found;
	ChangedTable *table;

	Assert(changed != NULL && OidIsValid(relid));
	table = hash_search(changed, &relid, HASH_ENTER, &found);
	if (!found)
	{
		table->resolved = false;
		table->channels = NIL;
	}
	return table;
}

/*
 * A table, followed by all tables of which it is a partition or a child,
 * directly or not; a list of OIDs, the nearest first.  All of them are entered
 * into the second table, if it exists, so that their invalidation is noticed.
 *
 * A partition whose DETACH CONCURRENTLY has begun still has its ancestors.
 *
 * Errors: out of memory, those of reading catalogs.
 */
List *
pinpoint_with_ancestors(Oid relid)
{
	List	   *relations = list_make1_oid(relid);
	Relation	inherits = table_open(InheritsRelationId, AccessShareLock);

	for (int i = 0; i < list_length(relations); i++)
	{
		Oid			child = list_nth_oid(relations, i);
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple	tuple;

		/* From here on, an invalidation of this table is noticed. */
		if (changed != NULL)
			(void) enter_changed(child);

		ScanKeyInit(&key, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber,
					F_OIDEQ, ObjectIdGetDatum(child));
		scan = systable_beginscan(inherits, InheritsRelidSeqnoIndexId, true,
								  NULL, 1, &key);
		while (HeapTupleIsValid(tuple = systable_getnext(scan)))
			relations = list_append_unique_oid(relations,
											   ((Form_pg_inherits) GETSTRUCT(tuple))->inhparent);
		systable_endscan(scan);
	}
	table_close(inherits, AccessShareLock);
	return relations;
}

#ifdef USE_ASSERT_CHECKING
/* Tables that the check looks at, at most. */
#define MAX_CHECKED		16

static bool
contains_channel(List *channels, const char *channel)
{
	ListCell   *lc;

	foreach(lc, channels)
	{
		if (strcmp(lfirst(lc), channel) == 0)
			return true;
	}
	return false;
}

void
pinpoint_watched_tables_check(void)
{
	HASH_SEQ_STATUS seq;
	ChangedTable *table = NULL;

	Assert(loaded_at <= label_changes && resolved_at <= table_changes);
	Assert(loaded_at == 0 || watched != NULL);
	Assert(changed == NULL || changed_context != NULL);
	if (loaded_at == 0 || changed == NULL || resolved_at != table_changes)
		return;

	/* A changed table that is watched notifies its own channel. */
	hash_seq_init(&seq, changed);
	for (int i = 0; i < MAX_CHECKED; i++)
	{
		const char *channel;

		table = hash_seq_search(&seq);
		if (table == NULL)
			break;
		Assert(OidIsValid(table->relid));
		Assert(table->resolved || table->channels == NIL);
		channel = pinpoint_watched_channel(table->relid);
		Assert(channel == NULL || !table->resolved ||
			   contains_channel(table->channels, channel));
	}
	if (table != NULL)
		hash_seq_term(&seq);
}
#endif
