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
 * Within the planner, the hook allows inlining and records it.  Elsewhere,
 * PostgreSQL prepares expressions without a plan (defaults in COPY, CHECK
 * constraints, arguments of CALL and EXECUTE), so the hook prevents inlining:
 * then the function is executed, and its body is planned.
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

/*
 * Is the planner running?  And has it considered inlining an SQL function that
 * contains a call to replace?
 */
static bool planning = false;
static bool may_have_inlined = false;

static void replace_calls_in_statement(PlannedStmt *stmt);
static void replace_calls_in_plan(Plan *plan);

/*
 * Plan a query, with calls of PostgreSQL's functions replaced.
 *
 * The catalogs are read only for queries that contain a call to replace.
 *
 * planner: plans the query.
 */
PlannedStmt *
pinpoint_planner_rewrite_plan(planner_hook_type planner,
							  PINPOINT_PLANNER_PARAMETERS)
{
	bool		save_planning = planning;
	bool		save_may_have_inlined = may_have_inlined;
	bool		has_calls = pinpoint_replacement_is_needed((Node *) parse);
	PlannedStmt *result;

	planning = true;
	may_have_inlined = false;
	PG_TRY();
	{
		result = planner(PINPOINT_PLANNER_ARGUMENTS);
	}
	PG_FINALLY();
	{
		has_calls = has_calls || may_have_inlined;
		planning = save_planning;
		may_have_inlined = save_may_have_inlined;
	}
	PG_END_TRY();

	if (has_calls && pinpoint_replacement_exists())
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
	if (!may_have_inlined)
	{
		HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(funcid));
		bool		calls_replaced = false;
		bool		returns_void = false;

		if (HeapTupleIsValid(tuple))
		{
			Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(tuple);

			if (proc->prolang == SQLlanguageId &&
				(proc->provolatile == PROVOLATILE_VOLATILE ||
				 proc->proretset))
				calls_replaced = pinpoint_replacement_is_needed_in_body(tuple);
			returns_void = proc->prorettype == VOIDOID;
			ReleaseSysCache(tuple);
		}
		if (calls_replaced && planning)
			may_have_inlined = true;
		else if (calls_replaced && !returns_void &&
				 pinpoint_replacement_exists())
			return true;
	}

	return false;
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

	replace_calls_in_plan(stmt->planTree);
	foreach(lc, stmt->subplans)
		replace_calls_in_plan(lfirst(lc));

	foreach(lc, pinpoint_replacement_functions())
	{
		PlanInvalItem *item = makeNode(PlanInvalItem);

		item->cacheId = PROCOID;
		item->hashValue =
			GetSysCacheHashValue1(PROCOID, ObjectIdGetDatum(lfirst_oid(lc)));
		stmt->invalItems = lappend(stmt->invalItems, item);
	}
}

/*
 * Replace the calls in a plan and its children.
 *
 * Both functions are volatile, so they are not in keys, index conditions and
 * the like.  These are the fields that can contain them.
 */
static void
replace_calls_in_plan(Plan *plan)
{
	List	   *children = NIL;
	ListCell   *lc;

	if (plan == NULL)
		return;

	check_stack_depth();

	pinpoint_replacement_apply((Node *) plan->targetlist);
	pinpoint_replacement_apply((Node *) plan->qual);

	switch (nodeTag(plan))
	{
		case T_Result:
			pinpoint_replacement_apply(((Result *) plan)->resconstantqual);
			break;
		case T_ModifyTable:
			{
				ModifyTable *modify = (ModifyTable *) plan;

				pinpoint_replacement_apply((Node *) modify->returningLists);
				pinpoint_replacement_apply((Node *) modify->onConflictSet);
				pinpoint_replacement_apply(modify->onConflictWhere);
				pinpoint_replacement_apply((Node *) modify->mergeActionLists);
				pinpoint_replacement_apply(
										   PINPOINT_MERGE_JOIN_CONDITIONS(modify));
				pinpoint_replacement_apply((Node *)
										   modify->withCheckOptionLists);
			}
			break;
		case T_Append:
			children = ((Append *) plan)->appendplans;
			break;
		case T_MergeAppend:
			children = ((MergeAppend *) plan)->mergeplans;
			break;
		case T_SampleScan:
			pinpoint_replacement_apply((Node *)
									   ((SampleScan *) plan)->tablesample);
			break;
		case T_SubqueryScan:
			replace_calls_in_plan(((SubqueryScan *) plan)->subplan);
			break;
		case T_FunctionScan:
			pinpoint_replacement_apply((Node *)
									   ((FunctionScan *) plan)->functions);
			break;
		case T_ValuesScan:
			pinpoint_replacement_apply((Node *)
									   ((ValuesScan *) plan)->values_lists);
			break;
		case T_TableFuncScan:
			pinpoint_replacement_apply((Node *)
									   ((TableFuncScan *) plan)->tablefunc);
			break;
		case T_ForeignScan:
			pinpoint_replacement_apply((Node *)
									   ((ForeignScan *) plan)->fdw_exprs);
			break;
		case T_CustomScan:
			pinpoint_replacement_apply((Node *)
									   ((CustomScan *) plan)->custom_exprs);
			children = ((CustomScan *) plan)->custom_plans;
			break;
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
			pinpoint_replacement_apply((Node *) ((Join *) plan)->joinqual);
			break;
		case T_WindowAgg:
			pinpoint_replacement_apply(((WindowAgg *) plan)->startOffset);
			pinpoint_replacement_apply(((WindowAgg *) plan)->endOffset);
			break;
		case T_Limit:
			pinpoint_replacement_apply(((Limit *) plan)->limitOffset);
			pinpoint_replacement_apply(((Limit *) plan)->limitCount);
			break;
		default:
			break;
	}

	foreach(lc, children)
		replace_calls_in_plan(lfirst(lc));
	replace_calls_in_plan(plan->lefttree);
	replace_calls_in_plan(plan->righttree);
}
