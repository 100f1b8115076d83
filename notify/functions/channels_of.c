/*-------------------------------------------------------------------------
 *
 * channels_of.c
 *		The function pinpoint.channels_of().
 *
 * It analyzes and rewrites a query, as PostgreSQL does to execute it.  This
 * replaces views with their queries, and adds the policies of row-level
 * security.  Then it collects the tables that the query reads.  Tables that
 * only functions read are not found.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "base/compat.h"
#include "live/watched_tables.h"

PG_FUNCTION_INFO_V1(pinpoint_channels_of);

static Query *analyze(const char *source);
static void report_position(void *source);
static bool collect(Node *node, void *context);
static bool check_function(Oid funcid, void *context);
static Oid	table_to_watch(Oid relid);

/*
 * pinpoint.channels_of(query text): the tables that a query reads, and the
 * channels of those that are watched.  The query can have parameters.
 *
 * Errors: those of analyzing the query; ERRCODE_INSUFFICIENT_PRIVILEGE if the
 * current user may not execute it; ERRCODE_FEATURE_NOT_SUPPORTED if it is not
 * one SELECT.
 */
Datum
pinpoint_channels_of(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Query	   *query = analyze(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	List	   *tables = NIL;
	List	   *reported = NIL;
	bool		any_watched;
	ListCell   *lc;

	(void) collect((Node *) query, &tables);

	InitMaterializedSRF(fcinfo, 0);
	any_watched = pinpoint_watched_tables_exist();
	foreach(lc, tables)
	{
		Oid			relid = table_to_watch(lfirst_oid(lc));
		const char *channel;
		NameData	name;
		Datum		values[2];
		bool		nulls[2] = {false, false};

		if (list_member_oid(reported, relid))
			continue;
		reported = lappend_oid(reported, relid);

		channel = any_watched ? pinpoint_watched_table_channel(relid) : NULL;
		nulls[1] = channel == NULL;
		if (channel != NULL)
			namestrcpy(&name, channel);
		values[0] = ObjectIdGetDatum(relid);
		values[1] = NameGetDatum(&name);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * Parse, analyze and rewrite a query.  Nothing is planned or executed.
 */
static Query *
analyze(const char *source)
{
	ErrorContextCallback callback;
	List	   *statements;
	List	   *queries;
	Query	   *query = NULL;
	Oid		   *types = NULL;
	int			ntypes = 0;

	callback.callback = report_position;
	callback.arg = unconstify(char *, source);
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	statements = pg_parse_query(source);
	if (list_length(statements) == 1 &&
		IsA(linitial_node(RawStmt, statements)->stmt, SelectStmt))
	{
		queries =
			pg_analyze_and_rewrite_varparams(linitial_node(RawStmt, statements),
											 source, &types, &ntypes,
											 NULL);
		if (list_length(queries) == 1)
			query = linitial_node(Query, queries);
	}

	error_context_stack = callback.previous;

	if (query == NULL || query->commandType != CMD_SELECT ||
		query->hasModifyingCTE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the query must be one SELECT statement"),
				 errdetail("SELECT INTO, and WITH clauses that change data, are not supported.")));
	return query;
}

/*
 * The position of an error is one in this query, not in the statement that
 * calls the function.
 */
static void
report_position(void *source)
{
	int			position = geterrposition();

	if (position > 0)
	{
		errposition(0);
		internalerrposition(position);
		internalerrquery((const char *) source);
	}
}

/*
 * Add the tables of a query to the list of OIDs, and check the privileges to
 * read them and to execute functions.
 */
static bool
collect(Node *node, void *context)
{
	List	  **tables = context;

	if (node == NULL)
		return false;
	if (IsA(node, Query))
	{
		Query	   *query = (Query *) node;
		ListCell   *lc;

		PINPOINT_CHECK_PERMISSIONS(query);
		foreach(lc, query->rtable)
		{
			RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);

			/* Before 16, the query of a view contains the view. */
			if (rte->rtekind == RTE_RELATION &&
				get_rel_relkind(rte->relid) != RELKIND_VIEW)
				*tables = list_append_unique_oid(*tables, rte->relid);
		}
		return query_tree_walker(query, collect, context, 0);
	}
	(void) check_functions_in_node(node, check_function, NULL);
	return expression_tree_walker(node, collect, context);
}

static bool
check_function(Oid funcid, void *context)
{
	AclResult	aclresult = PINPOINT_FUNCTION_ACLCHECK(funcid, GetUserId());

	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, OBJECT_FUNCTION, get_func_name(funcid));
	return false;
}

/*
 * The table to watch for a table that a query reads: the nearest watched one
 * among it and the tables of which it is a partition or a child.  If there is
 * none: for a partition, the table at the root; otherwise the table itself.
 */
static Oid
table_to_watch(Oid relid)
{
	List	   *relations = pinpoint_watched_table_with_ancestors(relid);
	ListCell   *lc;

	if (pinpoint_watched_tables_exist())
	{
		foreach(lc, relations)
		{
			if (pinpoint_watched_table_channel(lfirst_oid(lc)) != NULL)
				return lfirst_oid(lc);
		}
	}
	return get_rel_relispartition(relid) ? llast_oid(relations) : relid;
}
