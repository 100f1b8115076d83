/*-------------------------------------------------------------------------
 *
 * utility_rewrite.c
 *		Replaces calls of pg_notify() in utility statements, before they run.
 *
 * The planner does not see the arguments of CALL and EXECUTE, or the WHERE
 * clause of COPY FROM.  The arguments of CALL are analyzed together with the
 * statement, and calls in them are replaced as in a query.  The others are
 * analyzed only while the statement runs.  Before that, there is only a raw
 * parse tree: a name, which may mean another function, or none.  Therefore
 * they are analyzed here as PostgreSQL will do it, which also raises
 * PostgreSQL's errors.  Calls that mean pg_notify() get the name of its
 * replacement.  PostgreSQL will look up this name again, so the arguments get
 * casts to the exact types of the replacement.  Then the name cannot mean
 * another function, even if a user has created one in the schema.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "commands/prepare.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "parser/parse_expr.h"
#include "parser/parse_relation.h"
#include "parser/parser.h"
#include "utils/rel.h"

#include "sql/replacement.h"
#include "sql/utility_rewrite.h"

/* The calls in a raw expression. */
typedef struct RawCalls
{
	List	   *calls;			/* FuncCalls that may be of pg_notify() */
	Node	   *analysed;		/* the expression, after analysis */
} RawCalls;

/* The function that is meant by the call at a location of the query. */
typedef struct CallMeaning
{
	int			location;
	Oid			funcid;			/* InvalidOid if it is not replaced */
} CallMeaning;

static ExecuteStmt *find_execute(Node *stmt);
static bool has_raw_calls(Node *raw);
static bool find_raw_calls(Node *node, void *context);
static void replace_in_execute(ExecuteStmt *execute, const char *query_string);
static void replace_in_copy(CopyStmt *copy, const char *query_string);
static void replace_raw_calls(Node *raw, ParseState *pstate,
							  ParseExprKind kind);
static bool find_meaning(Node *node, void *context);
static void rename_call(FuncCall *call, char *schema, char *name);

/*
 * Returns the statement to execute: the same one if it cannot contain a call
 * to replace, else a copy, because the statement may be in a cache and be used
 * again.
 *
 * Errors: those that PostgreSQL would raise for the arguments.
 */
PlannedStmt *
pinpoint_utility_rewrite(PlannedStmt *pstmt, const char *query_string)
{
	Node	   *stmt = pstmt->utilityStmt;
	ExecuteStmt *execute;

	if (IsA(stmt, CallStmt))
	{
		FuncExpr   *call = ((CallStmt *) stmt)->funcexpr;

		if (pinpoint_replacement_is_needed((Node *) call) &&
			pinpoint_replacement_exists())
		{
			pstmt = copyObject(pstmt);
			call = castNode(CallStmt, pstmt->utilityStmt)->funcexpr;
			pinpoint_replacement_apply((Node *) call);
		}
		return pstmt;
	}

	if (IsA(stmt, CopyStmt))
	{
		if (((CopyStmt *) stmt)->relation != NULL &&
			has_raw_calls(((CopyStmt *) stmt)->whereClause))
		{
			pstmt = copyObject(pstmt);
			replace_in_copy(castNode(CopyStmt, pstmt->utilityStmt),
							query_string);
		}
		return pstmt;
	}

	execute = find_execute(stmt);
	if (execute != NULL && has_raw_calls((Node *) execute->params))
	{
		pstmt = copyObject(pstmt);
		replace_in_execute(find_execute(pstmt->utilityStmt), query_string);
	}
	return pstmt;
}

/*
 * Returns the EXECUTE in a statement, NULL if there is none.  EXPLAIN and
 * CREATE TABLE AS can contain one.
 */
static ExecuteStmt *
find_execute(Node *stmt)
{
	while (stmt != NULL)
	{
		if (IsA(stmt, ExecuteStmt))
			return (ExecuteStmt *) stmt;
		else if (IsA(stmt, ExplainStmt))
			stmt = ((ExplainStmt *) stmt)->query;
		else if (IsA(stmt, CreateTableAsStmt))
			stmt = ((CreateTableAsStmt *) stmt)->query;
		else if (IsA(stmt, Query))
			stmt = ((Query *) stmt)->utilityStmt;
		else
			break;
	}
	return NULL;
}

static bool
has_raw_calls(Node *raw)
{
	RawCalls	found = {0};

	return find_raw_calls(raw, &found) || found.calls != NIL;
}

/*
 * Collect the calls of functions that have the name of a replaced function.
 */
static bool
find_raw_calls(Node *node, void *context)
{
	RawCalls   *found = context;

	if (node == NULL)
		return false;
	if (IsA(node, FuncCall))
	{
		const char *name = strVal(llast(((FuncCall *) node)->funcname));

		if (strcmp(name, "pg_notify") == 0 ||
			strcmp(name, "pg_notification_queue_usage") == 0)
			found->calls = lappend(found->calls, node);
	}
	return raw_expression_tree_walker(node, find_raw_calls, context);
}

/*
 * Replace the calls in the arguments of EXECUTE.  Analyzes them as
 * EvaluateParams() does.
 */
static void
replace_in_execute(ExecuteStmt *execute, const char *query_string)
{
	PreparedStatement *prepared = FetchPreparedStatement(execute->name, false);
	ParseState *pstate;
	ListCell   *lc;

	/* PostgreSQL raises an error for this. */
	if (prepared == NULL ||
		prepared->plansource->num_params != list_length(execute->params))
		return;

	pstate = make_parsestate(NULL);
	pstate->p_sourcetext = query_string;
	foreach(lc, execute->params)
		replace_raw_calls(lfirst(lc), pstate, EXPR_KIND_EXECUTE_PARAMETER);
	free_parsestate(pstate);
}

/*
 * Replace the calls in the WHERE clause of COPY FROM.  Analyzes it as DoCopy()
 * does.
 */
static void
replace_in_copy(CopyStmt *copy, const char *query_string)
{
	Relation	rel = table_openrv_extended(copy->relation, RowExclusiveLock,
											true);
	ParseState *pstate;
	ParseNamespaceItem *nsitem;

	if (rel == NULL)
		return;

	pstate = make_parsestate(NULL);
	pstate->p_sourcetext = query_string;
	nsitem = addRangeTableEntryForRelation(pstate, rel, RowExclusiveLock,
										   NULL, false, false);
	addNSItemToQuery(pstate, nsitem, false, true, true);
	replace_raw_calls(copy->whereClause, pstate, EXPR_KIND_COPY_WHERE);
	free_parsestate(pstate);
	table_close(rel, NoLock);
}

/*
 * Rename the calls in a raw expression that mean a function to replace.
 */
static void
replace_raw_calls(Node *raw, ParseState *pstate, ParseExprKind kind)
{
	RawCalls	found = {0};
	ListCell   *lc;

	(void) find_raw_calls(raw, &found);
	if (found.calls == NIL)
		return;

	/* Analysis may modify its input. */
	found.analysed = transformExpr(pstate, copyObject(raw), kind);

	foreach(lc, found.calls)
	{
		FuncCall   *call = lfirst(lc);
		CallMeaning meaning = {call->location, InvalidOid};
		char	   *schema;
		char	   *name;

		(void) find_meaning(found.analysed, &meaning);
		if (OidIsValid(meaning.funcid) &&
			pinpoint_replacement_by_name(meaning.funcid, &schema, &name))
			rename_call(call, schema, name);
	}
}

/*
 * Rename a call, and cast its arguments.  All arguments of the replaced
 * functions are of type text, and have no names.
 */
static void
rename_call(FuncCall *call, char *schema, char *name)
{
	ListCell   *lc;

	call->funcname = list_make2(makeString(pstrdup(schema)),
								makeString(pstrdup(name)));
	foreach(lc, call->args)
	{
		TypeCast   *cast = makeNode(TypeCast);

		cast->arg = lfirst(lc);
		cast->typeName = SystemTypeName("text");
		cast->location = -1;
		lfirst(lc) = cast;
	}
}

/*
 * Find the function that is meant by the call at a location.
 */
static bool
find_meaning(Node *node, void *context)
{
	CallMeaning *meaning = context;

	if (node == NULL)
		return false;
	if (IsA(node, FuncExpr))
	{
		FuncExpr   *call = (FuncExpr *) node;

		if (call->location == meaning->location &&
			pinpoint_replacement_concerns(call->funcid))
		{
			meaning->funcid = call->funcid;
			return true;
		}
	}
	return expression_tree_walker(node, find_meaning, context);
}
