/*-------------------------------------------------------------------------
 *
 * uncounted.c
 *		Tables whose changes PostgreSQL does not count.
 *
 * The access method "heap" counts the rows that it inserts, updates and
 * deletes.  Others need not do so, and nobody counts the rows of a foreign
 * table.
 *
 * TimescaleDB can store rows of a hypertable in a table that inherits from
 * nothing.  The hypertable and its chunks are heap tables, but their counts do
 * not tell all changes.  Its catalogs are its own, so this library reads only
 * that the database has the extension.  Then each table with children counts
 * as a hypertable, and its children as chunks.  A transaction that drops the
 * extension may have changed hypertables before.
 *
 * A table of Citus cannot be watched at all.  It is known by its trigger,
 * which calls a function citus_truncate_trigger().
 *
 * Most databases can have no uncounted table: they have no other access
 * method, no foreign server and no TimescaleDB.  A session reads this from the
 * catalogs, again after they have changed.  Then it need not look at its locks
 * at each commit.  A table that a transaction has changed was created later
 * than what it needs, and the message about that was processed when the table
 * was locked.  Before 18, PostgreSQL sends no message about pg_extension, but
 * it does about the functions that CREATE EXTENSION creates.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_trigger.h"
#include "commands/extension.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "live/uncounted.h"

#define HYPERTABLE_EXTENSION	"timescaledb"
#define DISTRIBUTED_FUNCTION	"citus_truncate_trigger"

/* Can the database have such tables?  As in watched_tables.c. */
static bool any_uncounted = true;
static bool any_hypertable = true;
static uint64 messages = 1;
static uint64 read_at = 0;

/* Has this transaction dropped the extension? */
static bool extension_dropped = false;

static void read_catalogs(void);
static void catalog_changed(Datum arg, int cache, uint32 hash_value);
static bool any_row(Oid catalog, bool (*is_wanted) (HeapTuple tuple));
static bool is_other_access_method(HeapTuple tuple);
static bool is_foreign_server(HeapTuple tuple);
static bool has_trigger(Oid relid, const char *function);

/*
 * Does this session know that the changes of all tables of this database are
 * counted?
 */
bool
pinpoint_uncounted_known_none(void)
{
	return !any_uncounted && read_at == messages;
}

/*
 * Can this database have tables whose changes are not counted?
 *
 * Errors: out of memory, those of reading catalogs.
 */
bool
pinpoint_uncounted_exist(void)
{
	read_catalogs();
	return any_uncounted;
}

/*
 * Can it have hypertables?
 *
 * Errors: out of memory, those of reading catalogs.
 */
bool
pinpoint_uncounted_any_hypertable(void)
{
	read_catalogs();
	return any_hypertable;
}

static void
read_catalogs(void)
{
	static bool registered = false;
	uint64		at;

	if (!registered)
	{
		CacheRegisterSyscacheCallback(AMOID, catalog_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(FOREIGNSERVEROID, catalog_changed,
									  (Datum) 0);
		CacheRegisterSyscacheCallback(PROCNAMEARGSNSP, catalog_changed,
									  (Datum) 0);
		registered = true;
	}
	at = messages;
	if (read_at == at)
		return;
	any_hypertable = extension_dropped ||
		OidIsValid(get_extension_oid(HYPERTABLE_EXTENSION, true));
	any_uncounted = any_hypertable ||
		any_row(AccessMethodRelationId, is_other_access_method) ||
		any_row(ForeignServerRelationId, is_foreign_server);
	read_at = at;
}

/*
 * An extension will be dropped.
 *
 * Errors: out of memory, those of reading catalogs.
 */
void
pinpoint_uncounted_at_drop_extension(Oid extension)
{
	char	   *name = get_extension_name(extension);

	if (name != NULL && strcmp(name, HYPERTABLE_EXTENSION) == 0)
		extension_dropped = true;
}

/*
 * The transaction is over.
 */
void
pinpoint_uncounted_end_transaction(void)
{
	if (!extension_dropped)
		return;
	extension_dropped = false;
	messages++;					/* read the catalogs again */
}

static void
catalog_changed(Datum arg, int cache, uint32 hash_value)
{
	messages++;
}

/*
 * Has a catalog, which has few rows, one that is wanted?
 */
static bool
any_row(Oid catalog, bool (*is_wanted) (HeapTuple tuple))
{
	Relation	rel = table_open(catalog, AccessShareLock);
	SysScanDesc scan =
		systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;
	bool		found = false;

	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
		found = is_wanted(tuple);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

static bool
is_other_access_method(HeapTuple tuple)
{
	Form_pg_am	method = (Form_pg_am) GETSTRUCT(tuple);

	return method->amtype == AMTYPE_TABLE && method->oid != HEAP_TABLE_AM_OID;
}

static bool
is_foreign_server(HeapTuple tuple)
{
	return true;
}

/*
 * Does a relation have changes that matter and are not counted?  A partitioned
 * table has no rows of its own, and no other session sees those of a temporary
 * one.  Other relations, such as indexes, do not matter.
 */
bool
pinpoint_uncounted_relation(const FormData_pg_class *relation)
{
	if (relation->relpersistence == RELPERSISTENCE_TEMP)
		return false;
	if (relation->relkind == RELKIND_RELATION ||
		relation->relkind == RELKIND_MATVIEW)
		return relation->relam != HEAP_TABLE_AM_OID;
	return relation->relkind == RELKIND_FOREIGN_TABLE;
}

/*
 * Is this a hypertable, if the database has any?
 */
bool
pinpoint_uncounted_may_be_hypertable(const FormData_pg_class *relation)
{
	return relation->relkind == RELKIND_RELATION && relation->relhassubclass;
}

/*
 * Is this a table of Citus?  Most changes of its rows are made in shards, and
 * on other nodes.
 *
 * Errors: out of memory, those of reading catalogs.
 */
bool
pinpoint_uncounted_is_distributed(Oid relid)
{
	return has_trigger(relid, DISTRIBUTED_FUNCTION);
}

/*
 * Has a table a trigger that calls a function of this name?
 */
static bool
has_trigger(Oid relid, const char *function)
{
	Relation	triggers = table_open(TriggerRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(triggers, TriggerRelidNameIndexId, true, NULL,
							  1, &key);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		char	   *name =
			get_func_name(((Form_pg_trigger) GETSTRUCT(tuple))->tgfoid);

		found = name != NULL && strcmp(name, function) == 0;
	}
	systable_endscan(scan);
	table_close(triggers, AccessShareLock);
	return found;
}
