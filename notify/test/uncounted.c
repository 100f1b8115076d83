/*-------------------------------------------------------------------------
 *
 * uncounted.c
 *		A table access method whose changes are not counted, for the tests.
 *
 * Its tables are those of "heap".  Before a transaction commits or is prepared, and before
 * pg_pinpoint reads the counts, this library sets those of its tables to zero.  The session
 * loads it when it first opens such a table.  So its callback is called before that of
 * pg_pinpoint.  It does the same at the end of a subtransaction.  So the table can have
 * another access method before the commit.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "fmgr.h"
#include "pgstat.h"
#include "utils/pgstat_internal.h"
#include "utils/syscache.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

PG_FUNCTION_INFO_V1(uncounted_handler);

#if PG_VERSION_NUM >= 160000
#define COUNTED_TABLE(status)	((status)->id)
#else
#define COUNTED_TABLE(status)	((status)->t_id)
#endif

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
		if (!is_heap(COUNTED_TABLE(counts->parent)))
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

void
_PG_init(void)
{
	RegisterXactCallback(at_transaction_event, NULL);
	RegisterSubXactCallback(at_subtransaction_event, NULL);
}
