/*
 * Tests the relation-file map from inside.
 *
 * This server module includes ../relfilenumbermap.c, and has SQL functions
 * that use and check it.  t/003_map.pl compiles and uses it.
 *
 * Some situations cannot be produced from outside: memory that runs out at a
 * given place, and an invalidation or a reset during a look-up.  Therefore
 * this module intercepts some calls of the file.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relmapper.h"

PG_MODULE_MAGIC;

/* 0: memory does not run out; n: at the n-th allocation from now */
static int	fail_at = 0;

/* Called when a look-up has opened pg_class, or has read a row of it */
static bool disturb = false;
static bool disturb_scan = false;
static Oid	disturb_relid;

static void maybe_fail(void);
static void disturb_lookup(bool *when);

static inline void *
checked_hash_search(HTAB *table, const void *key, HASHACTION action,
					bool *found)
{
	if (action == HASH_ENTER &&
		hash_search(table, key, HASH_FIND, NULL) == NULL)
		maybe_fail();
	return hash_search(table, key, action, found);
}

static inline HTAB *
checked_hash_create(const char *name, long size, const HASHCTL *info, int flags)
{
	maybe_fail();
	return hash_create(name, size, info, flags);
}

static inline Relation
disturbed_table_open(Oid relid, LOCKMODE lockmode)
{
	Relation	relation = table_open(relid, lockmode);

	disturb_lookup(&disturb);
	return relation;
}

static inline HeapTuple
disturbed_systable_getnext(SysScanDesc scan)
{
	disturb_lookup(&disturb_scan);
	return systable_getnext(scan);
}

#define hash_search		checked_hash_search
#define hash_create		checked_hash_create
#define table_open		disturbed_table_open
#define systable_getnext	disturbed_systable_getnext
#include "relfilenumbermap.c"
#undef hash_search
#undef hash_create
#undef table_open
#undef systable_getnext

/* What the library has elsewhere */
static pg_atomic_uint64 counters[PINPOINT_COUNTERS];
pg_atomic_uint64 *pinpoint_statistics_counters = counters;
int			pinpoint_decoding_server_version = PG_VERSION_NUM;

PG_FUNCTION_INFO_V1(map_lookup);
PG_FUNCTION_INFO_V1(map_invalidate);
PG_FUNCTION_INFO_V1(map_fail_at);
PG_FUNCTION_INFO_V1(map_disturb_lookup);
PG_FUNCTION_INFO_V1(map_disturb_scan);
PG_FUNCTION_INFO_V1(map_server_version);
PG_FUNCTION_INFO_V1(map_check);
PG_FUNCTION_INFO_V1(map_fill);
PG_FUNCTION_INFO_V1(map_compare);

static void
maybe_fail(void)
{
	if (fail_at > 0 && --fail_at == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
}

static void
disturb_lookup(bool *when)
{
	if (*when)
	{
		*when = false;
		RelfilenumberMapInvalidateCallback((Datum) 0, disturb_relid);
	}
}

/* map_lookup(reltablespace oid, relfilenumber oid) returns oid */
Datum
map_lookup(PG_FUNCTION_ARGS)
{
	PG_RETURN_OID(RelidByRelfilenumber(PG_GETARG_OID(0), PG_GETARG_OID(1)));
}

/* map_invalidate(relid oid) returns void */
Datum
map_invalidate(PG_FUNCTION_ARGS)
{
	RelfilenumberMapInvalidateCallback((Datum) 0, PG_GETARG_OID(0));
	PG_RETURN_VOID();
}

/* map_fail_at(allocation int) returns void */
Datum
map_fail_at(PG_FUNCTION_ARGS)
{
	fail_at = PG_GETARG_INT32(0);
	PG_RETURN_VOID();
}

/* map_disturb_lookup(relid oid) returns void: invalidate it during the next */
Datum
map_disturb_lookup(PG_FUNCTION_ARGS)
{
	disturb = true;
	disturb_relid = PG_GETARG_OID(0);
	PG_RETURN_VOID();
}

/* map_disturb_scan(relid oid) returns void: the same when it reads pg_class */
Datum
map_disturb_scan(PG_FUNCTION_ARGS)
{
	disturb_scan = true;
	disturb_relid = PG_GETARG_OID(0);
	PG_RETURN_VOID();
}

/* map_server_version(version int) returns void: behave as on that server */
Datum
map_server_version(PG_FUNCTION_ARGS)
{
	pinpoint_decoding_server_version = PG_GETARG_INT32(0);
	PG_RETURN_VOID();
}

/* What is in the map: entries, negative ones, relations with and without any */
typedef struct Contents
{
	int64		entries;
	int64		negative;
	int64		relations;
	int64		empty;
} Contents;

/* An entry of the map, which must be in the list that it is found in. */
static void
check_entry(const RelfilenumberMapEntry *entry, Oid relid)
{
	if (entry->relid != relid)
		elog(ERROR, "entry %u/%u of relation %u is in the list of relation %u",
			 entry->key.reltablespace, entry->key.relfilenumber, entry->relid,
			 relid);
	if (hash_search(relfilenumber_map, &entry->key, HASH_FIND, NULL) != entry)
		elog(ERROR, "entry %u/%u is in a list, but not in the map",
			 entry->key.reltablespace, entry->key.relfilenumber);
}

/*
 * Check that every entry is in exactly one list, and that lists have nothing
 * else.  An entry cannot be in two lists, as it has one link: so it is enough
 * that all in the lists are in the map, and that there are as many.
 */
static Contents
check_map(void)
{
	Contents	contents = {0};
	uint64		entries;
	uint64		negative;
	HASH_SEQ_STATUS status;
	RelfilenumberMapRelation *relation;
	slist_iter	iter;

	if (relfilenumber_map == NULL || relfilenumber_map_relations == NULL)
	{
		if (!slist_is_empty(&relfilenumber_map_negatives) ||
			(relfilenumber_map_relations != NULL &&
			 hash_get_num_entries(relfilenumber_map_relations) != 0))
			elog(ERROR, "there is no map, but something is left of it");
		return contents;
	}

	slist_foreach(iter, &relfilenumber_map_negatives)
	{
		check_entry(slist_container(RelfilenumberMapEntry, link, iter.cur),
					InvalidOid);
		contents.negative++;
		contents.entries++;
	}
	hash_seq_init(&status, relfilenumber_map_relations);
	while ((relation = hash_seq_search(&status)) != NULL)
	{
		if (slist_is_empty(&relation->entries))
			contents.empty++;
		else
			contents.relations++;
		slist_foreach(iter, &relation->entries)
		{
			check_entry(slist_container(RelfilenumberMapEntry, link, iter.cur),
						relation->relid);
			contents.entries++;
		}
	}
	if (contents.entries != hash_get_num_entries(relfilenumber_map))
		elog(ERROR, "the lists have " INT64_FORMAT " entries, and the map has %ld",
			 contents.entries, (long) hash_get_num_entries(relfilenumber_map));
	entries = pg_atomic_read_u64(&counters[PINPOINT_ENTRIES]);
	negative = pg_atomic_read_u64(&counters[PINPOINT_NEGATIVE_ENTRIES]);
	if ((int64) entries != contents.entries ||
		(int64) negative != contents.negative)
		elog(ERROR, "the counters do not agree with the map");
	return contents;
}

/* map_check(OUT entries, OUT negative, OUT relations, OUT empty) */
Datum
map_check(PG_FUNCTION_ARGS)
{
	TupleDesc	tupdesc;
	Contents	contents;
	Datum		values[4];
	bool		nulls[4] = {0};

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	contents = check_map();
	values[0] = Int64GetDatum(contents.entries);
	values[1] = Int64GetDatum(contents.negative);
	values[2] = Int64GetDatum(contents.relations);
	values[3] = Int64GetDatum(contents.empty);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc),
													  values, nulls)));
}

/*
 * map_fill(relations int, files int) returns void
 *
 * Enter so many relations with so many files each, without a look-up.  They
 * have numbers from 3,000,000,001 on.
 */
Datum
map_fill(PG_FUNCTION_ARGS)
{
	const Oid	base = 3000000000U;
	RelfilenumberMapKey key = {InvalidOid, base};

	if (!relfilenumber_map_initialized)
		InitializeRelfilenumberMap();
	for (int relation = 1; relation <= PG_GETARG_INT32(0); relation++)
	{
		for (int file = 0; file < PG_GETARG_INT32(1); file++)
		{
			key.relfilenumber++;
			remember(&key, base + (Oid) relation);
		}
	}
	PG_RETURN_VOID();
}

/* ---- The plain way, for comparison: one table, gone through each time ---- */

typedef struct PlainEntry
{
	RelfilenumberMapKey key;
	Oid			relid;
} PlainEntry;

static void
plain_invalidate(HTAB *plain, Oid relid)
{
	HASH_SEQ_STATUS status;
	PlainEntry *entry;

	hash_seq_init(&status, plain);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (!OidIsValid(relid) || !OidIsValid(entry->relid) ||
			entry->relid == relid)
			hash_search(plain, &entry->key, HASH_REMOVE, NULL);
	}
}

/* Do both have the same entries? */
static void
compare_with(HTAB *plain, int64 step)
{
	HASH_SEQ_STATUS status;
	PlainEntry *expected;
	int64		entries = check_map().entries;

	if (entries != hash_get_num_entries(plain))
		elog(ERROR, "step " INT64_FORMAT ": " INT64_FORMAT " entries instead of %ld",
			 step, entries, (long) hash_get_num_entries(plain));
	hash_seq_init(&status, plain);
	while ((expected = hash_seq_search(&status)) != NULL)
	{
		RelfilenumberMapEntry *entry = relfilenumber_map == NULL ? NULL :
			hash_search(relfilenumber_map, &expected->key, HASH_FIND, NULL);

		if (entry == NULL || entry->relid != expected->relid)
			elog(ERROR, "step " INT64_FORMAT ": %u/%u should be relation %u",
				 step, expected->key.reltablespace, expected->key.relfilenumber,
				 expected->relid);
	}
}

static bool
try_to_remember(const RelfilenumberMapKey *key, Oid relid)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool ok = true;

	PG_TRY();
	{
		remember(key, relid);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		ok = false;
	}
	PG_END_TRY();
	fail_at = 0;
	return ok;
}

/*
 * map_compare(seed bigint, steps bigint, OUT entered, OUT failed,
 * OUT invalidated, OUT resets, OUT largest)
 *
 * Do the same at random to the map and to a plain one, memory running out now
 * and then, and compare them after each step.
 */
Datum
map_compare(PG_FUNCTION_ARGS)
{
	int64		steps = PG_GETARG_INT64(1);
	pg_prng_state random;
	HASHCTL		ctl;
	HTAB	   *plain;
	TupleDesc	tupdesc;
	int64		numbers[5] = {0};
	Datum		values[5];
	bool		nulls[5] = {0};

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	ctl.keysize = sizeof(RelfilenumberMapKey);
	ctl.entrysize = sizeof(PlainEntry);
	ctl.hcxt = CurrentMemoryContext;
	plain = hash_create("plain map", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	pg_prng_seed(&random, (uint64) PG_GETARG_INT64(0));
	if (!relfilenumber_map_initialized)
		InitializeRelfilenumberMap();
	RelfilenumberMapInvalidateCallback((Datum) 0, InvalidOid);

	for (int64 step = 0; step < steps; step++)
	{
		int			action = (int) pg_prng_uint64_range(&random, 0, 999);
		Oid			relid = (Oid) pg_prng_uint64_range(&random, 1, 200);

		CHECK_FOR_INTERRUPTS();
		if (action == 0)
		{
			plain_invalidate(plain, InvalidOid);
			RelfilenumberMapInvalidateCallback((Datum) 0, InvalidOid);
			numbers[3]++;
		}
		else if (action < 150)
		{
			plain_invalidate(plain, relid);
			RelfilenumberMapInvalidateCallback((Datum) 0, relid);
			numbers[2]++;
		}
		else
		{
			RelfilenumberMapKey key;
			bool		found;

			key.reltablespace = (Oid) pg_prng_uint64_range(&random, 0, 2);
			key.relfilenumber = (Oid) pg_prng_uint64_range(&random, 1, 500);
			if (hash_search(plain, &key, HASH_FIND, NULL) != NULL)
				continue;
			if (action < 300)
				relid = InvalidOid;
			fail_at = action % 10 == 0 ? 1 + action / 10 % 2 : 0;
			if (!try_to_remember(&key, relid))
				numbers[1]++;
			else
			{
				((PlainEntry *) hash_search(plain, &key, HASH_ENTER,
											&found))->relid = relid;
				numbers[0]++;
			}
		}
		numbers[4] = Max(numbers[4], (int64) hash_get_num_entries(plain));
		compare_with(plain, step);
	}

	hash_destroy(plain);
	for (int i = 0; i < 5; i++)
		values[i] = Int64GetDatum(numbers[i]);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc),
													  values, nulls)));
}
