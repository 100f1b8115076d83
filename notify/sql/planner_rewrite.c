/*-------------------------------------------------------------------------
 *
 * planner_rewrite.c
 *		Replaces calls of pg_notify() in queries, when the query is planned.
 *
 * All queries are planned, including sub-queries, views, rules, and the
 * queries of functions.  planner_hook replaces calls of pg_notify() in the
 * finished plan with calls of its replacement; see replacement.c.  The Query
 * keeps them: another library may make an SQL text of it and send this to a
 * server that does not have the extension, as Citus does.
 *
 * PostgreSQL may inline an SQL function that contains such a call, and the
 * call then appears in an expression that is not in the Query.  PostgreSQL
 * calls needs_fmgr_hook before it inlines, and the hook can prevent it.
 * Within the planner, the hook allows inlining: the finished plan contains
 * the call.  Elsewhere, PostgreSQL prepares expressions without a plan
 * (defaults in COPY, CHECK constraints, arguments of CALL and EXECUTE), so the
 * hook prevents inlining: then the function is executed, and its body is
 * planned.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/plannodes.h"
#include "utils/syscache.h"

#include "sql/planner_rewrite.h"
#include "sql/replacement.h"

/* Is the planner running, in a database that may have the extension? */
static bool planning = false;

static PlannedStmt *plan_and_replace(planner_hook_type planner,
									 PINPOINT_PLANNER_PARAMETERS);
static bool statement_needs_replacement(PlannedStmt *stmt);
static void replace_calls_in_statement(PlannedStmt *stmt);
static bool replace_calls(Node *expression);
static bool visit_plan(Plan *plan, bool (*visit) (Node *expression));
static bool visit_special_fields(Plan *plan,
								 bool (*visit) (Node *expression));
static bool visit_plans(List *plans, bool (*visit) (Node *expression));

/*
 * Plan a query, with calls of PostgreSQL's functions replaced.
 *
 * In a database without the extension, nothing else is done.  Most of the
 * catalogs are read only for plans that contain a call to replace.
 *
 * planner: plans the query.
 */
PlannedStmt *
pinpoint_planner_rewrite_plan(planner_hook_type planner,
							  PINPOINT_PLANNER_PARAMETERS)
{
	if (!pinpoint_replacement_may_exist())
		return planner(PINPOINT_PLANNER_ARGUMENTS);
	return plan_and_replace(planner, PINPOINT_PLANNER_ARGUMENTS);
}

static pg_noinline PlannedStmt *
plan_and_replace(planner_hook_type planner, PINPOINT_PLANNER_PARAMETERS)
{
	bool		save_planning = planning;
	PlannedStmt *result;

	planning = true;
	PG_TRY();
	{
		result = planner(PINPOINT_PLANNER_ARGUMENTS);
	}
	PG_FINALLY();
	{
		planning = save_planning;
	}
	PG_END_TRY();

	if (statement_needs_replacement(result) && pinpoint_replacement_exists())
		replace_calls_in_statement(result);
	return result;
}

/*
 * Does the function have to be executed, so that its body is planned?  Then
 * PostgreSQL does not inline it.
 *
 * Only volatile functions and functions that return sets need to be examined.
 * PostgreSQL does not inline others if their body calls pg_notify(), which is
 * volatile.  Their inlining must not be prevented: an index on the result of
 * such a function is used only if the function is inlined everywhere.
 *
 * Outside of the planner, inlining of functions that return void is not
 * prevented either.  Inlined, such a function returns the result of
 * pg_notify(), which is not null.  Executed, it returns null.  The inlined
 * call is not replaced, and uses PostgreSQL's own queue.
 */
bool
pinpoint_planner_rewrite_prevents_inlining(Oid funcid)
{
	HeapTuple	tuple;
	bool		calls_replaced = false;
	bool		returns_void = false;

	if (planning)
		return false;

	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(funcid));
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(tuple);

		if (proc->prolang == SQLlanguageId &&
			(proc->provolatile == PROVOLATILE_VOLATILE || proc->proretset))
			calls_replaced = pinpoint_replacement_is_needed_in_body(tuple);
		returns_void = proc->prorettype == VOIDOID;
		ReleaseSysCache(tuple);
	}
	return calls_replaced && !returns_void && pinpoint_replacement_exists();
}

/*
 * Does a finished plan contain a call to replace?
 */
static bool
statement_needs_replacement(PlannedStmt *stmt)
{
	return visit_plan(stmt->planTree, pinpoint_replacement_is_needed) ||
		visit_plans(stmt->subplans, pinpoint_replacement_is_needed);
}

/*
 * Replace the calls in a finished plan.
 *
 * The plan then depends on the replacements.  These dependencies are added to
 * the plan, so that it is not kept when the extension is dropped.
 */
static void
replace_calls_in_statement(PlannedStmt *stmt)
{
	ListCell   *lc;

	(void) visit_plan(stmt->planTree, replace_calls);
	(void) visit_plans(stmt->subplans, replace_calls);

	foreach(lc, pinpoint_replacement_functions())
	{
		PlanInvalItem *item = makeNode(PlanInvalItem);

		item->cacheId = PROCOID;
		item->hashValue =
			GetSysCacheHashValue1(PROCOID, ObjectIdGetDatum(lfirst_oid(lc)));
		stmt->invalItems = lappend(stmt->invalItems, item);
	}
}

static bool
replace_calls(Node *expression)
{
	pinpoint_replacement_apply(expression);
	return false;
}

/*
 * Call a function for the expressions of a plan and its children that can
 * contain calls to replace, until it returns true.  Returns whether it has.
 *
 * Both functions are volatile, so they are not in keys, index conditions and
 * the like.
 */
static bool
visit_plan(Plan *plan, bool (*visit) (Node *expression))
{
	if (plan == NULL)
		return false;

	check_stack_depth();

	return visit((Node *) plan->targetlist) || visit((Node *) plan->qual) ||
		visit_special_fields(plan, visit) ||
		visit_plan(plan->lefttree, visit) ||
		visit_plan(plan->righttree, visit);
}

/*
 * The same for the fields that only plans of this type have.
 */
static bool
visit_special_fields(Plan *plan, bool (*visit) (Node *expression))
{
	switch (nodeTag(plan))
	{
		case T_Result:
			return visit(((Result *) plan)->resconstantqual);
		case T_ModifyTable:
			{
				ModifyTable *modify = (ModifyTable *) plan;

				return visit((Node *) modify->returningLists) ||
					visit((Node *) modify->onConflictSet) ||
					visit(modify->onConflictWhere) ||
					visit((Node *) modify->mergeActionLists) ||
					visit(PINPOINT_MERGE_JOIN_CONDITIONS(modify)) ||
					visit((Node *) modify->withCheckOptionLists);
			}
		case T_Append:
			return visit_plans(((Append *) plan)->appendplans, visit);
		case T_MergeAppend:
			return visit_plans(((MergeAppend *) plan)->mergeplans, visit);
		case T_SampleScan:
			return visit((Node *) ((SampleScan *) plan)->tablesample);
		case T_SubqueryScan:
			return visit_plan(((SubqueryScan *) plan)->subplan, visit);
		case T_FunctionScan:
			return visit((Node *) ((FunctionScan *) plan)->functions);
		case T_ValuesScan:
			return visit((Node *) ((ValuesScan *) plan)->values_lists);
		case T_TableFuncScan:
			return visit((Node *) ((TableFuncScan *) plan)->tablefunc);
		case T_ForeignScan:
			return visit((Node *) ((ForeignScan *) plan)->fdw_exprs);
		case T_CustomScan:
			return visit((Node *) ((CustomScan *) plan)->custom_exprs) ||
				visit_plans(((CustomScan *) plan)->custom_plans, visit);
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
			return visit((Node *) ((Join *) plan)->joinqual);
		case T_WindowAgg:
			return visit(((WindowAgg *) plan)->startOffset) ||
				visit(((WindowAgg *) plan)->endOffset);
		case T_Limit:
			return visit(((Limit *) plan)->limitOffset) ||
				visit(((Limit *) plan)->limitCount);
		default:
			return false;
	}
}

static bool
visit_plans(List *plans, bool (*visit) (Node *expression))
{
	ListCell   *lc;

	foreach(lc, plans)
	{
		if (visit_plan(lfirst(lc), visit))
			return true;
	}
	return false;
}
