/*-------------------------------------------------------------------------
 *
 * uncounted.c
 *		Tables whose changes are not counted, for the tests.
 *
 * A table access method.  Its tables are those of "heap".  Before a
 * transaction commits or is prepared, and before pg_pinpoint reads the counts,
 * this library sets those of its tables to zero.  The session loads it when it
 * first opens such a table.  So its callback is called before that of
 * pg_pinpoint.  It does the same at the end of a subtransaction.  So the table
 * can have another access method before the commit.
 *
 * A DELETE that also deletes rows elsewhere, as that of TimescaleDB in
 * compressed chunks. If there is a table "compressed_of_x", DELETE of a table
 * "x" deletes all its rows, too, by no statement, and adds their number to
 * that of the statement.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "parser/parsetree.h"
#include "pgstat.h"
#include "utils/lsyscache.h"
#include "utils/pgstat_internal.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "../base/compat.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

PG_FUNCTION_INFO_V1(uncounted_handler);

static ExecutorRun_hook_type prev_ExecutorRun = NULL;

Datum
uncounted_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(GetHeapamTableAmRoutine());
}

static bool
is_heap(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			am;

	if (!HeapTupleIsValid(tuple))
		return true;
	am = ((Form_pg_class) GETSTRUCT(tuple))->relam;
	ReleaseSysCache(tuple);
	return am < FirstNormalObjectId;
}

static void
count_nothing(void)
{
	PgStat_SubXactStatus *level;

	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;
	level = pgstat_get_xact_stack_level(GetCurrentTransactionNestLevel());
	for (PgStat_TableXactStatus *counts = level->first;
		 counts != NULL; counts = counts->next)
	{
		if (!is_heap(PINPOINT_COUNTED_TABLE(counts->parent)))
			counts->tuples_inserted = counts->tuples_updated =
				counts->tuples_deleted = 0;
	}
}

static void
at_transaction_event(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		count_nothing();
}

static void
at_subtransaction_event(SubXactEvent event, SubTransactionId subid,
						SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_PRE_COMMIT_SUB)
		count_nothing();
}

/*
 * The table with more rows of the table that a statement deletes from.
 */
static Oid
find_compressed(QueryDesc *query)
{
	PlannedStmt *stmt = query->plannedstmt;
	Oid			target;

	if (query->operation != CMD_DELETE)
		return InvalidOid;
	target = rt_fetch(castNode(ModifyTable, stmt->planTree)->nominalRelation,
					  stmt->rtable)->relid;
	return get_relname_relid(psprintf("compressed_of_%s", get_rel_name(target)),
							 get_rel_namespace(target));
}

/*
 * Returns the number of deleted rows.
 */
static uint64
delete_all(Oid relid)
{
	Relation	rel = table_open(relid, RowExclusiveLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false,
										  GetActiveSnapshot(), 0, NULL);
	HeapTuple	tuple;
	uint64		n = 0;

	for (; HeapTupleIsValid(tuple = systable_getnext(scan)); n++)
		CatalogTupleDelete(rel, &tuple->t_self);
	systable_endscan(scan);
	table_close(rel, NoLock);
	return n;
}

static void
executor_run(PINPOINT_EXECUTOR_RUN_PARAMETERS)
{
	Oid			compressed = find_compressed(query);

	if (prev_ExecutorRun)
		prev_ExecutorRun(PINPOINT_EXECUTOR_RUN_ARGUMENTS);
	else
		standard_ExecutorRun(PINPOINT_EXECUTOR_RUN_ARGUMENTS);
	if (OidIsValid(compressed))
		query->estate->es_processed += delete_all(compressed);
}

void
_PG_init(void)
{
	prev_ExecutorRun = ExecutorRun_hook;
	ExecutorRun_hook = executor_run;
	RegisterXactCallback(at_transaction_event, NULL);
	RegisterSubXactCallback(at_subtransaction_event, NULL);
}
