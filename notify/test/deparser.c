/*-------------------------------------------------------------------------
 *
 * deparser.c
 *		A library that makes an SQL text of each query, for the tests.
 *
 * It stands for an extension that sends queries to other servers, as Citus
 * does.  It does so in the planner, before and after the query is planned, for
 * queries that read a table "shipped": the texts are NOTICE messages.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "optimizer/planner.h"
#include "utils/lsyscache.h"
#include "utils/ruleutils.h"

#include "../base/compat.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static planner_hook_type prev_planner = NULL;

static PlannedStmt *plan_query(PINPOINT_PLANNER_PARAMETERS);
static bool reads_shipped(Query *query);

void
_PG_init(void)
{
	prev_planner = planner_hook;
	planner_hook = plan_query;
}

static PlannedStmt *
plan_query(PINPOINT_PLANNER_PARAMETERS)
{
	Query	   *original = reads_shipped(parse) ? copyObject(parse) : NULL;
	PlannedStmt *result;

	if (original != NULL)
		ereport(NOTICE, (errmsg_internal("before: %s;", pg_get_querydef(parse, false))));
	result = prev_planner != NULL ? prev_planner(PINPOINT_PLANNER_ARGUMENTS) :
		standard_planner(PINPOINT_PLANNER_ARGUMENTS);
	if (original != NULL)
		ereport(NOTICE, (errmsg_internal("after: %s;", pg_get_querydef(original, false))));
	return result;
}

static bool
reads_shipped(Query *query)
{
	ListCell   *lc;

	foreach(lc, query->rtable)
	{
		RangeTblEntry *entry = lfirst(lc);

		if (entry->rtekind == RTE_RELATION &&
			strcmp(get_rel_name(entry->relid), "shipped") == 0)
			return true;
	}
	return false;
}
