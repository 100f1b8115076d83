/*-------------------------------------------------------------------------
 *
 * uncounted.c
 *		Tables whose changes PostgreSQL does not count.
 *
 * The access method "heap" counts the rows that it inserts, updates and deletes.  Others
 * need not do so, and nobody counts the rows of a foreign table.
 *
 * TimescaleDB can store rows of a hypertable in a table that inherits from nothing.  The
 * hypertable and its chunks are heap tables, but their counts do not tell all changes.
 * A hypertable is known by its trigger, which calls a function named insert_blocker.
 * The chunks are children of it, and have no such trigger.
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
#include "catalog/pg_trigger.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "live/uncounted.h"

/*
 * Can a relation be watched, or be a partition or a child of one that is?
 */
bool
pinpoint_is_table(const FormData_pg_class *relation)
{
	return relation->relkind == RELKIND_RELATION ||
		relation->relkind == RELKIND_MATVIEW ||
		relation->relkind == RELKIND_PARTITIONED_TABLE ||
		relation->relkind == RELKIND_FOREIGN_TABLE;
}

/*
 * Are the changes of a table counted, as far as they matter?  A partitioned
 * table has no rows of its own, and no other session sees those of a temporary
 * one.
 */
bool
pinpoint_is_counted(const FormData_pg_class *relation)
{
	if (relation->relkind == RELKIND_PARTITIONED_TABLE ||
		relation->relpersistence == RELPERSISTENCE_TEMP)
		return true;
	return relation->relkind != RELKIND_FOREIGN_TABLE &&
		relation->relam == HEAP_TABLE_AM_OID;
}

/*
 * Errors: out of memory, those of reading catalogs.
 */
bool
pinpoint_is_hypertable(const FormData_pg_class *relation)
{
	Relation	triggers;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	if (!relation->relhastriggers)
		return false;
	triggers = table_open(TriggerRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relation->oid));
	scan = systable_beginscan(triggers, TriggerRelidNameIndexId, true, NULL,
							  1, &key);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Oid			function = ((Form_pg_trigger) GETSTRUCT(tuple))->tgfoid;
		char	   *name = get_func_name(function);

		found = name != NULL && strcmp(name, "insert_blocker") == 0;
	}
	systable_endscan(scan);
	table_close(triggers, AccessShareLock);
	return found;
}
