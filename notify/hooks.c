/*-------------------------------------------------------------------------
 *
 * hooks.c
 *		The hooks that this library installs.
 *
 * Each hook is installed once.  Its function here calls the parts of this
 * library that need it, in the order in which they are written, and the
 * function that was installed before.  pg_pinpoint.c installs the hooks for
 * shared memory.  On a standby, replay.c and primary_status.c replace
 * functions that replay the WAL.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "optimizer/planner.h"
#include "tcop/utility.h"

#include "base/compat.h"
#include "hooks.h"
#include "listener/delivery.h"
#include "live/applied_prepared.h"
#include "live/changes.h"
#include "live/commit_prepared.h"
#include "live/live.h"
#include "sql/listen_notify.h"
#include "sql/load_order.h"
#include "sql/planner_rewrite.h"
#include "sql/replacement.h"
#include "sql/utility_rewrite.h"
#include "wakeup/sharing.h"

/* What was installed before, or PostgreSQL's own function. */
static ProcessUtility_hook_type next_process_utility;
static ExecutorStart_hook_type next_executor_start;
static planner_hook_type next_planner;

/* The same; NULL if nothing was installed. */
static needs_fmgr_hook_type next_needs_fmgr;
static object_access_hook_type next_object_access;

static void process_utility(PlannedStmt *pstmt, const char *query_string,
							bool read_only_tree, ProcessUtilityContext context,
							ParamListInfo params, QueryEnvironment *query_env,
							DestReceiver *dest, QueryCompletion *qc);
static void execute_utility(PlannedStmt *pstmt, const char *query_string,
							bool read_only_tree, ProcessUtilityContext context,
							ParamListInfo params, QueryEnvironment *query_env,
							DestReceiver *dest, QueryCompletion *qc);
static bool is_end_and_chain(Node *stmt);
static const char *gid_of(Node *stmt);
static bool is_commit_prepared(Node *stmt);
static void executor_start(QueryDesc *query_desc, int eflags);
static PlannedStmt *plan_query(PINPOINT_PLANNER_PARAMETERS);
static bool needs_fmgr(Oid funcid);
static void object_access(ObjectAccessType access, Oid class_id,
						  Oid object_id, int sub_id, void *arg);

/*
 * Called once, while the server preloads its libraries.
 *
 * PostgreSQL calls the hook that was installed last first, and ours does not
 * call the next one for NOTIFY.  So a library that is loaded before this one
 * does not see NOTIFY statements, which matters if it audits or counts them.
 */
void
pinpoint_hooks_install(void)
{
	if (ProcessUtility_hook != NULL)
		pinpoint_load_order_check();

	next_process_utility = ProcessUtility_hook ? ProcessUtility_hook :
		standard_ProcessUtility;
	ProcessUtility_hook = process_utility;
	next_executor_start = ExecutorStart_hook ? ExecutorStart_hook :
		standard_ExecutorStart;
	ExecutorStart_hook = executor_start;
	next_planner = planner_hook ? planner_hook : standard_planner;
	planner_hook = plan_query;
	next_needs_fmgr = needs_fmgr_hook;
	needs_fmgr_hook = needs_fmgr;
	next_object_access = object_access_hook;
	object_access_hook = object_access;
}

/*
 * A statement that is not planned.
 */
static void
process_utility(PlannedStmt *pstmt, const char *query_string,
				bool read_only_tree, ProcessUtilityContext context,
				ParamListInfo params, QueryEnvironment *query_env,
				DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *stmt = pstmt->utilityStmt;
	bool		live_after = pinpoint_live_before_utility(stmt);
	bool		is_action;
	PinpointActionKind kind = PINPOINT_LISTEN;
	const char *channel = "";

	pinpoint_delivery_at_statement();
	if (is_end_and_chain(stmt))
		pinpoint_sharing_set_chains(true);
	if (IsA(stmt, NotifyStmt) &&
		pinpoint_statement_execute_notify((NotifyStmt *) stmt))
		return;

	pstmt = pinpoint_utility_rewrite(pstmt, query_string);

	/*
	 * Read the statement now: a statement that ends its transaction, such as
	 * CALL, may be freed when it returns.
	 */
	stmt = pstmt->utilityStmt;
	is_action = pinpoint_statement_begin_action(stmt, &kind, &channel);
	if (!is_action || !pinpoint_statement_listen_in_recovery(kind, channel))
		execute_utility(pstmt, query_string, read_only_tree, context, params,
						query_env, dest, qc);

	if (is_action)
		pinpoint_statement_record_action(kind, channel);
	if (live_after)
		pinpoint_live_after_utility();
}

/*
 * Have PostgreSQL execute the statement.
 */
static void
execute_utility(PlannedStmt *pstmt, const char *query_string,
				bool read_only_tree, ProcessUtilityContext context,
				ParamListInfo params, QueryEnvironment *query_env,
				DestReceiver *dest, QueryCompletion *qc)
{
	const char *gid = gid_of(pstmt->utilityStmt);
	TransactionId applied;
	bool		commits;

	if (gid == NULL)
	{
		next_process_utility(pstmt, query_string, read_only_tree, context,
							 params, query_env, dest, qc);
		return;
	}

	applied = pinpoint_applied_prepared_find(gid);
	commits = is_commit_prepared(pstmt->utilityStmt) &&
		pinpoint_commit_prepared_before(gid);
	PG_TRY();
	{
		next_process_utility(pstmt, query_string, read_only_tree, context,
							 params, query_env, dest, qc);
	}
	PG_CATCH();
	{
		if (commits)
			pinpoint_commit_prepared_failed();
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (commits)
		pinpoint_commit_prepared_after();
	pinpoint_applied_prepared_forget(applied);
}

/*
 * Does a statement end the transaction, and begin the next one at once?  False
 * in an aborted transaction: there is no callback at the end of the statement,
 * which would reset the flag.
 */
static bool
is_end_and_chain(Node *stmt)
{
	return IsA(stmt, TransactionStmt) && ((TransactionStmt *) stmt)->chain &&
		!IsAbortedTransactionBlockState();
}

/*
 * The name of the prepared transaction that a statement ends; NULL if it does
 * not.
 */
static const char *
gid_of(Node *stmt)
{
	TransactionStmt *end = (TransactionStmt *) stmt;

	return IsA(stmt, TransactionStmt) &&
		(end->kind == TRANS_STMT_COMMIT_PREPARED ||
		 end->kind == TRANS_STMT_ROLLBACK_PREPARED) ? end->gid : NULL;
}

static bool
is_commit_prepared(Node *stmt)
{
	return IsA(stmt, TransactionStmt) &&
		((TransactionStmt *) stmt)->kind == TRANS_STMT_COMMIT_PREPARED;
}

/*
 * A query begins.
 */
static void
executor_start(QueryDesc *query_desc, int eflags)
{
	pinpoint_changes_at_statement(query_desc->operation != CMD_SELECT ||
								  query_desc->plannedstmt->hasModifyingCTE);
	pinpoint_delivery_at_statement();
	next_executor_start(query_desc, eflags);
}

static PlannedStmt *
plan_query(PINPOINT_PLANNER_PARAMETERS)
{
	return pinpoint_planner_rewrite_plan(next_planner,
										 PINPOINT_PLANNER_ARGUMENTS);
}

/*
 * Does a library want to be called around a function?  If so, PostgreSQL does
 * not inline it.
 */
static bool
needs_fmgr(Oid funcid)
{
	return pinpoint_planner_rewrite_prevents_inlining(funcid) ||
		(next_needs_fmgr && next_needs_fmgr(funcid));
}

/*
 * PostgreSQL has created, changed or dropped an object, or will execute a
 * function.
 */
static void
object_access(ObjectAccessType access, Oid class_id, Oid object_id,
			  int sub_id, void *arg)
{
	if (next_object_access)
		next_object_access(access, class_id, object_id, sub_id, arg);
	pinpoint_replacement_at_access(access, class_id, object_id);
	pinpoint_live_at_access(access, class_id, object_id, sub_id, arg);
}
