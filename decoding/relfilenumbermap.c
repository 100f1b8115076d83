/*-------------------------------------------------------------------------
 *
 * relfilenumbermap.c
 *		A map from file numbers to relations that removes the entries of one
 *		relation without a search of the whole map.
 *
 * The WAL contains files, and decoding needs relations.
 * RelidByRelfilenumber() reads pg_class or the relation mapper, and stores the
 * result for the rest of the session.  When a relation changes, its entries
 * must be removed.  PostgreSQL searches its whole map for them at every
 * invalidation message, so the time to decode DDL on N tables is proportional
 * to N squared.  With three structures, the time depends only on the one
 * relation:
 *
 *	relfilenumber_map			(tablespace, file number) -> entry
 *	relfilenumber_map_relations	relation -> list of its entries
 *	relfilenumber_map_negatives	list of the entries that mean "no such relation"
 *
 * An entry is in exactly one list, linked through the entry itself.  Lists are
 * singly linked, because only a whole list is ever removed:
 *
 *	- A change of a relation removes all its entries.  It may have had
 *	  several files: VACUUM FULL, TRUNCATE, and subtransactions that
 *	  were rolled back assign new ones, and decoding reads old WAL.
 *	- It also removes all negative entries: the relation may now have any of
 *	  these numbers.
 *
 * This is PostgreSQL's contract.  The cost of removing the negative entries is
 * bounded by that of the look-ups that made them.
 *
 * A session often looks up many tables for the first time in the order in
 * which they were created, which is the order of their file numbers.  After a
 * few such look-ups, the next one also reads the following rows in the index
 * of pg_class, and stores their relations.  These entries are like all others:
 * a change of the relation removes them.
 *
 * While tables are created, the snapshots of decoding see only the earlier
 * ones: the following rows exist, but are invisible, and checking them takes
 * most of the time.  So no search reads further than READ_AHEAD_RANGE, and
 * after a search that found few tables, the next READ_AHEAD_REST searches do
 * not read ahead.
 *
 * The same file is compiled into the library (PINPOINT_LIVE), and into
 * PostgreSQL itself instead of relfilenumbermap.c (15: relfilenodemap.c) by
 * "make check-in-tree".
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>				/* for OID_MAX */

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/rel.h"

#include "compat.h"

#ifdef PINPOINT_LIVE
#include "decoding.h"
#else
/* There are no counters in PostgreSQL itself. */
#define COUNT(counter)				((void) 0)
#define SET_GAUGE(counter, value)	((void) 0)
#endif

/*
 * Consecutive look-ups until one reads ahead, and the maximum distance of
 * their file numbers
 */
#define READ_AHEAD_AFTER	4
#define READ_AHEAD_DISTANCE	64

/* Maximum number of rows of pg_class to read ahead, and of file numbers */
#define READ_AHEAD_ROWS		64
#define READ_AHEAD_RANGE	256

/* With at most this many tables found, the next searches do not read ahead */
#define READ_AHEAD_FEW		8

/* Number of the next searches that do not read ahead then */
#define READ_AHEAD_REST		256

typedef struct RelfilenumberMapKey
{
	Oid			reltablespace;	/* 0: the database's default tablespace */
	RelFileNumber relfilenumber;
} RelfilenumberMapKey;

typedef struct RelfilenumberMapEntry
{
	RelfilenumberMapKey key;	/* must be first */
	Oid			relid;			/* InvalidOid: a negative entry */
	slist_node	link;			/* in the list of the relation, or of the
								 * negative entries */
} RelfilenumberMapEntry;

typedef struct RelfilenumberMapRelation
{
	Oid			relid;			/* must be first */

	/*
	 * Can be empty, if memory ran out while the first entry of the relation
	 * was being created.
	 */
	slist_head	entries;
} RelfilenumberMapRelation;

/*
 * Both exist or none, except after an error while they were being created.
 *
 * simplehash would be smaller and faster for the second one, but it becomes
 * unusable if memory runs out while it grows.
 */
static HTAB *relfilenumber_map = NULL;
static HTAB *relfilenumber_map_relations = NULL;
static slist_head relfilenumber_map_negatives =
SLIST_STATIC_INIT(relfilenumber_map_negatives);

/*
 * The last file number that was looked up in pg_class or read ahead, and the
 * number of consecutive look-ups before it
 */
static RelfilenumberMapKey relfilenumber_map_last = {InvalidOid, 0};
static int	relfilenumber_map_in_a_row = 0;

/* Number of the next searches that do not read ahead */
static int	relfilenumber_map_rest = 0;

/* Invalidations so far: used to detect an invalidation during a search */
static uint64 relfilenumber_map_invalidations = 0;

/* Entries in all lists: as many as in the map */
static long relfilenumber_map_listed PG_USED_FOR_ASSERTS_ONLY = 0;

/* Has this session registered its callback? */
static bool relfilenumber_map_initialized = false;

static void InitializeRelfilenumberMap(void);
static void CreateRelfilenumberMap(void);
static void RelfilenumberMapInvalidateCallback(Datum arg, Oid relid);
static void forget_relation(Oid relid);
static void forget_list(slist_head *entries, Oid relid);
static void forget_all(void);
static Oid	look_up(const RelfilenumberMapKey *key);
static Oid	look_up_pg_class(const RelfilenumberMapKey *key);
static bool is_in_a_row(const RelfilenumberMapKey *key);
static void remember_neighbors(const RelfilenumberMapEntry *neighbors,
							   int count);
static void remember(const RelfilenumberMapKey *key, Oid relid);

#ifdef USE_ASSERT_CHECKING
static bool is_consistent(void);
static bool has_list(const RelfilenumberMapEntry *entry);
static bool is_normalized(const RelfilenumberMapKey *key);
#endif

/*
 * Find the relation to which a file belongs.
 *
 * reltablespace: the file's tablespace.  For the database's default
 * tablespace, its OID or 0.  GLOBALTABLESPACE_OID means a shared relation.
 *
 * Returns InvalidOid if there is no such relation.  Temporary relations are
 * ignored (see pinpoint_ignores_temporary() for minor releases in which they
 * are not): temporary files of several sessions may have the same number, and
 * the arguments do not contain the session.
 *
 * Errors: several relations with this file in pg_class, which is corrupt then;
 * out of memory; those of reading a catalog.
 */
Oid
RelidByRelfilenumber(Oid reltablespace, RelFileNumber relfilenumber)
{
	RelfilenumberMapKey key;
	RelfilenumberMapEntry *entry;
	Oid			relid;

	if (!relfilenumber_map_initialized)
		InitializeRelfilenumberMap();
	if (relfilenumber_map == NULL)
		CreateRelfilenumberMap();

	/* pg_class contains 0 for the default tablespace of the database */
	key.reltablespace =
		reltablespace == MyDatabaseTableSpace ? InvalidOid : reltablespace;
	key.relfilenumber = relfilenumber;

	COUNT(PINPOINT_LOOKUPS);
	entry = hash_search(relfilenumber_map, &key, HASH_FIND, NULL);
	if (entry != NULL)
	{
		COUNT(PINPOINT_HITS);
		Assert(has_list(entry));
		return entry->relid;
	}

	/*
	 * The look-up opens pg_class, and so may process invalidations, which
	 * would not remove an incomplete entry.  So create the entry after it.
	 */
	relid = look_up(&key);
	remember(&key, relid);
	return relid;
}

/*
 * Called once in a session.  After an error, the next call can repeat all
 * steps: no step fails after the callback is registered.
 */
static void
InitializeRelfilenumberMap(void)
{
	Assert(!relfilenumber_map_initialized);
	if (CacheMemoryContext == NULL)
		CreateCacheMemoryContext();
	CreateRelfilenumberMap();
	CacheRegisterRelcacheCallback(RelfilenumberMapInvalidateCallback,
								  (Datum) 0);
	relfilenumber_map_initialized = true;
}

static void
CreateRelfilenumberMap(void)
{
	HASHCTL		ctl;

	if (relfilenumber_map_relations == NULL)
	{
		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(RelfilenumberMapRelation);
		ctl.hcxt = CacheMemoryContext;
		relfilenumber_map_relations = hash_create("Relfilenumber map by relation", 64, &ctl,
												  HASH_ELEM | HASH_BLOBS |
												  HASH_CONTEXT);
	}
	if (relfilenumber_map == NULL)
	{
		ctl.keysize = sizeof(RelfilenumberMapKey);
		ctl.entrysize = sizeof(RelfilenumberMapEntry);
		ctl.hcxt = CacheMemoryContext;
		relfilenumber_map = hash_create("Relfilenumber map", 64, &ctl,
										HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
}

/*
 * Callback for relation cache invalidations.
 *
 * relid: the relation that changed, or InvalidOid if any may have changed.
 */
static void
RelfilenumberMapInvalidateCallback(Datum arg, Oid relid)
{
	Assert(is_consistent());
	relfilenumber_map_invalidations++;
	COUNT(PINPOINT_INVALIDATIONS);
	if (!OidIsValid(relid))
		COUNT(PINPOINT_RESETS);
	if (relfilenumber_map == NULL)
		return;					/* the map is empty since the last reset */

	if (OidIsValid(relid))
	{
		forget_relation(relid);
		forget_list(&relfilenumber_map_negatives, InvalidOid);
		SET_GAUGE(PINPOINT_NEGATIVE_ENTRIES, 0);
		SET_GAUGE(PINPOINT_ENTRIES, hash_get_num_entries(relfilenumber_map));
	}
	else
		forget_all();
	Assert(is_consistent());
	Assert(slist_is_empty(&relfilenumber_map_negatives));
}

static void
forget_relation(Oid relid)
{
	RelfilenumberMapRelation *relation;

	relation = hash_search(relfilenumber_map_relations, &relid, HASH_FIND,
						   NULL);
	if (relation == NULL)
		return;

	forget_list(&relation->entries, relid);
	if (hash_search(relfilenumber_map_relations, &relid, HASH_REMOVE,
					NULL) == NULL)
		elog(ERROR, "relation-file map: a relation is not where it was");
}

/*
 * Remove all entries of a list.
 *
 * relid: the relation of the list, or InvalidOid for the negative entries.
 */
static void
forget_list(slist_head *entries, Oid relid)
{
	while (!slist_is_empty(entries))
	{
		slist_node *node = slist_pop_head_node(entries);
		RelfilenumberMapEntry *entry =
			slist_container(RelfilenumberMapEntry, link, node);
		RelfilenumberMapEntry *removed;

		Assert(entry->relid == relid);
		removed = hash_search(relfilenumber_map, &entry->key, HASH_REMOVE,
							  NULL);
		if (removed == NULL)
			elog(ERROR, "relation-file map: an entry is in a list only");
		Assert(removed == entry);
		relfilenumber_map_listed--;
	}
}

/*
 * Remove all entries.  A hash table never shrinks, so a session that has once
 * looked up many relations would keep the memory.  So both tables are
 * destroyed.
 */
static void
forget_all(void)
{
	hash_destroy(relfilenumber_map);
	relfilenumber_map = NULL;
	hash_destroy(relfilenumber_map_relations);
	relfilenumber_map_relations = NULL;
	slist_init(&relfilenumber_map_negatives);
	relfilenumber_map_listed = 0;
	SET_GAUGE(PINPOINT_NEGATIVE_ENTRIES, 0);
	SET_GAUGE(PINPOINT_ENTRIES, 0);
}

/*
 * Look up the relation in PostgreSQL's catalogs.  Any invalidation may be
 * processed meanwhile, including a reset.
 */
static Oid
look_up(const RelfilenumberMapKey *key)
{
	Oid			relid;

	Assert(IsTransactionState());
	Assert(is_normalized(key));

	/*
	 * Only the relation mapper contains the files of shared relations, and
	 * those of a few catalogs in each database, such as pg_class.
	 */
	if (key->reltablespace == GLOBALTABLESPACE_OID)
		return RelationMapFilenumberToOid(key->relfilenumber, true);

	relid = look_up_pg_class(key);
	if (OidIsValid(relid))
		return relid;
	return RelationMapFilenumberToOid(key->relfilenumber, false);
}

static Oid
look_up_pg_class(const RelfilenumberMapKey *key)
{
	bool		ignore_temporary =
		pinpoint_ignores_temporary(PINPOINT_SERVER_VERSION);
	bool		read_ahead = is_in_a_row(key);
	RelfilenumberMapEntry neighbors[READ_AHEAD_ROWS];
	int			num_neighbors = 0;
	int			rows_ahead = 0;
	uint64		invalidations;
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	ScanKeyData conditions[3];
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			relid = InvalidOid;

	ScanKeyInit(&conditions[0], Anum_pg_class_reltablespace,
				BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(key->reltablespace));
	ScanKeyInit(&conditions[1], Anum_pg_class_relfilenode,
				read_ahead ? BTGreaterEqualStrategyNumber :
				BTEqualStrategyNumber,
				read_ahead ? F_OIDGE : F_OIDEQ,
				ObjectIdGetDatum(key->relfilenumber));
	if (read_ahead)
		ScanKeyInit(&conditions[2], Anum_pg_class_relfilenode,
					BTLessEqualStrategyNumber, F_OIDLE,
					ObjectIdGetDatum(key->relfilenumber +
									 Min(READ_AHEAD_RANGE,
										 OID_MAX - key->relfilenumber)));
	scan = systable_beginscan(pg_class, ClassTblspcRelfilenodeIndexId, true,
							  NULL, read_ahead ? 3 : 2, conditions);
	invalidations = relfilenumber_map_invalidations;
	while (rows_ahead < READ_AHEAD_ROWS &&
		   (tuple = systable_getnext(scan)) != NULL)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (ignore_temporary && form->relpersistence == RELPERSISTENCE_TEMP)
			continue;
		if (form->relfilenode == key->relfilenumber)
		{
			if (OidIsValid(relid))
				elog(ERROR,
					 "unexpected duplicate for tablespace %u, " PINPOINT_FILE_NUMBER " %u",
					 key->reltablespace, key->relfilenumber);
			relid = form->oid;
			continue;
		}

		/* remember_neighbors() needs them in order. */
		Assert(read_ahead);
		Assert(form->relfilenode >=
			   (num_neighbors == 0 ? key :
				&neighbors[num_neighbors - 1].key)->relfilenumber);

		/* Decoding does not look up indexes. */
		rows_ahead++;
		if (RELKIND_HAS_TABLE_AM(form->relkind))
		{
			neighbors[num_neighbors].key.reltablespace = key->reltablespace;
			neighbors[num_neighbors].key.relfilenumber = form->relfilenode;
			neighbors[num_neighbors++].relid = form->oid;
		}
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	Assert(num_neighbors <= rows_ahead && rows_ahead <= READ_AHEAD_ROWS);

	relfilenumber_map_last = *key;
	if (read_ahead && num_neighbors <= READ_AHEAD_FEW)
		relfilenumber_map_rest = READ_AHEAD_REST;
	if (invalidations == relfilenumber_map_invalidations)
		remember_neighbors(neighbors, num_neighbors);
	return relid;
}

/*
 * Does this look-up read ahead?  This needs enough consecutive look-ups before
 * it, and a scan of the index, because only that returns rows in order.
 */
static bool
is_in_a_row(const RelfilenumberMapKey *key)
{
	const RelfilenumberMapKey *last = &relfilenumber_map_last;

	if (key->reltablespace == last->reltablespace &&
		key->relfilenumber > last->relfilenumber &&
		key->relfilenumber - last->relfilenumber <= READ_AHEAD_DISTANCE)
		relfilenumber_map_in_a_row++;
	else
		relfilenumber_map_in_a_row = 0;

	if (relfilenumber_map_rest > 0)
	{
		relfilenumber_map_rest--;
		return false;
	}
	return relfilenumber_map_in_a_row >= READ_AHEAD_AFTER &&
		!IgnoreSystemIndexes &&
		!ReindexIsProcessingIndex(ClassTblspcRelfilenodeIndexId);
}

/*
 * Enter the relations that were read ahead.  If two relations have the same
 * file, neither is entered, because a look-up of this file must raise an
 * error.  The last one is not entered, because the row after it is not known.
 */
static void
remember_neighbors(const RelfilenumberMapEntry *neighbors, int count)
{
	for (int i = 0; i + 1 < count; i++)
	{
		const RelfilenumberMapKey *key = &neighbors[i].key;

		if (key->relfilenumber == neighbors[i + 1].key.relfilenumber ||
			(i > 0 && key->relfilenumber == neighbors[i - 1].key.relfilenumber))
			continue;
		if (relfilenumber_map == NULL ||
			hash_search(relfilenumber_map, key, HASH_FIND, NULL) == NULL)
			remember(key, neighbors[i].relid);
		relfilenumber_map_last = *key;
	}
}

/*
 * Enter a new entry into the map and into its list.
 *
 * Errors: out of memory in one of the two hash_search().  The map does not
 * contain the entry then; a relation without entries may be left.
 */
static void
remember(const RelfilenumberMapKey *key, Oid relid)
{
	RelfilenumberMapEntry *entry;
	slist_head *list = &relfilenumber_map_negatives;
	bool		found;

	/* Without the callback, nothing would remove the entry. */
	Assert(relfilenumber_map_initialized);
	Assert(is_normalized(key));

	/* The look-up may have processed a reset. */
	if (relfilenumber_map == NULL)
		CreateRelfilenumberMap();

	if (OidIsValid(relid))
	{
		RelfilenumberMapRelation *relation;

		relation = hash_search(relfilenumber_map_relations, &relid, HASH_ENTER,
							   &found);
		if (!found)
			slist_init(&relation->entries);
		list = &relation->entries;
	}

	entry = hash_search(relfilenumber_map, key, HASH_ENTER, &found);
	if (found)
		elog(ERROR, "relation-file map: an entry was made twice");
	entry->relid = relid;
	slist_push_head(list, &entry->link);
	relfilenumber_map_listed++;

	if (!OidIsValid(relid))
		COUNT(PINPOINT_NEGATIVE_ENTRIES);
	SET_GAUGE(PINPOINT_ENTRIES, hash_get_num_entries(relfilenumber_map));
	Assert(is_consistent());
}

#ifdef USE_ASSERT_CHECKING
/*
 * Is every entry in the map and in a list?  This compares the numbers only,
 * because going through all entries takes too long.
 */
static bool
is_consistent(void)
{
	if (relfilenumber_map == NULL)
		return relfilenumber_map_listed == 0 &&
			slist_is_empty(&relfilenumber_map_negatives);
	return relfilenumber_map_relations != NULL &&
		relfilenumber_map_listed == hash_get_num_entries(relfilenumber_map);
}

/* Is there a list that an invalidation of the relation finds? */
static bool
has_list(const RelfilenumberMapEntry *entry)
{
	RelfilenumberMapRelation *relation;

	if (!OidIsValid(entry->relid))
		return !slist_is_empty(&relfilenumber_map_negatives);
	relation =
		hash_search(relfilenumber_map_relations, &entry->relid, HASH_FIND,
					NULL);
	return relation != NULL && !slist_is_empty(&relation->entries);
}

/* Is the default tablespace of the database 0 in this key, as in pg_class? */
static bool
is_normalized(const RelfilenumberMapKey *key)
{
	return !OidIsValid(key->reltablespace) ||
		key->reltablespace != MyDatabaseTableSpace;
}
#endif
