/*-------------------------------------------------------------------------
 *
 * statement.c
 *		Where SQL enters.
 *
 * NOTIFY, LISTEN, UNLISTEN and DISCARD ALL come by in ProcessUtility_hook,
 * whether typed by a client or run by a rule, a function or a DO block.
 * NOTIFY is taken over.  The others are carried out by PostgreSQL first, which
 * makes all the checks and registers the session with its own queue, and are
 * recorded for the channel map after that.  So every listener can be reached
 * on both ways, and whatever does not come by here still arrives.
 *
 * pg_notify() and pg_notification_queue_usage() are built into PostgreSQL and
 * are found by OID before any catalog is looked at.  Their calls are replaced
 * in planner_hook by calls of pinpoint.notify() and
 * pinpoint.notification_queue_usage(), which the extension creates.  The rest
 * of what it takes to make that unnoticeable:
 *
 *	- An SQL function that contains such a call may be inlined by the planner,
 *	  so that the call gets into the plan behind our back.  We learn of that
 *	  in needs_fmgr_hook, and then look through the finished plan as well.
 *	- The privilege to execute pg_notify() is what counts, checked in
 *	  object_access_hook: the same moment, user and error as without us.
 *	- The replacements must be members of the extension.  Anybody may create a
 *	  schema "pinpoint" in a database of his own.
 *
 * A database without the extension is left alone.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/transam.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/async.h"
#include "commands/extension.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "optimizer/planner.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "pinpoint.h"

#define EXTENSION_NAME	"pg_pinpoint"
#define SCHEMA_NAME		"pinpoint"

/* PostgreSQL's limit on the length of a payload; private to its async.c. */
#define NOTIFY_PAYLOAD_MAX_LENGTH	(BLCKSZ - NAMEDATALEN - 128)

/*
 * The transaction in which a statement of the client has run last.  (Local IDs
 * are not reused within a session, and between transactions there is none, so
 * nobody has to reset this.)
 */
static LocalTransactionId statement_lxid = InvalidLocalTransactionId;

/*
 * What replaces pg_notify() and pg_notification_queue_usage() in this database;
 * invalid if the extension is not there.  Looked up again when a change to
 * pg_proc came by since.
 */
static Oid	notify_oid = InvalidOid;
static Oid	queue_usage_oid = InvalidOid;
static uint64 pg_proc_changes = 1;
static uint64 looked_up_at_change = 0;

/*
 * Are we within the planner?  And has it come across an SQL function that
 * contains a call to replace?
 */
static bool planning = false;
static bool may_have_inlined = false;

static ProcessUtility_hook_type prev_ProcessUtility = NULL;
static planner_hook_type prev_planner = NULL;
static ExecutorStart_hook_type prev_ExecutorStart = NULL;
static object_access_hook_type prev_object_access = NULL;
static needs_fmgr_hook_type prev_needs_fmgr = NULL;

static void process_utility(PlannedStmt *pstmt, const char *query_string,
							bool read_only_tree, ProcessUtilityContext context,
							ParamListInfo params, QueryEnvironment *query_env,
							DestReceiver *dest, QueryCompletion *qc);
static PlannedStmt *plan_query(Query *parse, const char *query_string,
							   int cursor_options, ParamListInfo bound_params
							   PINPOINT_PLANNER_PARAMETER);
static void executor_start(QueryDesc *query_desc, int eflags);
static void object_access(ObjectAccessType access, Oid class_id,
						  Oid object_id, int sub_id, void *arg);
static bool needs_fmgr(Oid funcid);

static void note_statement(void);
static void record_action(PinpointActionKind kind, const char *channel);
static bool takes_over(void);
static void queue_notification(const char *channel, const char *payload);
static bool find_replacements(void);
static Oid	find_member_function(Oid extension, Oid schema, const char *name,
								 int nargs, const Oid *argtypes);
static void pg_proc_changed(Datum arg, int cache_id, uint32 hash_value);
static bool body_mentions_original(HeapTuple proc);
static bool calls_original(Node *node, void *context);
static bool replace_calls(Node *node, void *context);
static void replace_inlined_calls(PlannedStmt *stmt);
static void replace_calls_in_plan(Plan *plan);

PG_FUNCTION_INFO_V1(pinpoint_notify);

void
pinpoint_statement_init(void)
{
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	prev_planner = planner_hook;
	planner_hook = plan_query;
	prev_ExecutorStart = ExecutorStart_hook;
	ExecutorStart_hook = executor_start;
	prev_object_access = object_access_hook;
	object_access_hook = object_access;
	prev_needs_fmgr = needs_fmgr_hook;
	needs_fmgr_hook = needs_fmgr;
}

/*
 * A (sub)transaction aborts, possibly out of the planner.
 */
void
pinpoint_statement_at_abort(void)
{
	planning = false;
}

/*
 * What a client sends runs in a portal.  What other libraries run in their
 * transaction callbacks does not, and does not count.
 */
static void
note_statement(void)
{
	if (ActivePortal != NULL)
		statement_lxid = PINPOINT_MY_LXID;
}

/*
 * Has a statement of the client run in the current transaction?
 */
bool
pinpoint_client_statement_ran(void)
{
	return statement_lxid == PINPOINT_MY_LXID;
}

static void
executor_start(QueryDesc *query_desc, int eflags)
{
	note_statement();
	if (prev_ExecutorStart)
		prev_ExecutorStart(query_desc, eflags);
	else
		standard_ExecutorStart(query_desc, eflags);
}

static void
process_utility(PlannedStmt *pstmt, const char *query_string,
				bool read_only_tree, ProcessUtilityContext context,
				ParamListInfo params, QueryEnvironment *query_env,
				DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *stmt = pstmt->utilityStmt;
	bool		is_action = false;
	PinpointActionKind kind = PINPOINT_LISTEN;
	const char *channel = "";

	note_statement();

	if (IsA(stmt, NotifyStmt) && takes_over())
	{
		NotifyStmt *notify = (NotifyStmt *) stmt;

		/* allowed in a read-only transaction, but not here */
		PreventCommandIfParallelMode("NOTIFY");
		PreventCommandDuringRecovery("NOTIFY");
		queue_notification(notify->conditionname,
						   notify->payload ? notify->payload : "");
		return;
	}

	/*
	 * Look at the statement now: one that ends its transaction, such as a
	 * CALL, may be freed when it returns.
	 */
	if (IsA(stmt, ListenStmt))
	{
		is_action = true;
		channel = ((ListenStmt *) stmt)->conditionname;
	}
	else if (IsA(stmt, UnlistenStmt))
	{
		is_action = true;
		channel = ((UnlistenStmt *) stmt)->conditionname;
		kind = channel ? PINPOINT_UNLISTEN : PINPOINT_UNLISTEN_ALL;
	}
	else if (IsA(stmt, DiscardStmt) &&
			 ((DiscardStmt *) stmt)->target == DISCARD_ALL)
	{
		is_action = true;
		kind = PINPOINT_UNLISTEN_ALL;
	}

	if (is_action && pinpoint_pre_committed())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot execute %s while the transaction is being committed",
						GetCommandTagName(CreateCommandTag(stmt))),
				 errhint("Execute it in a transaction of its own.")));

	if (prev_ProcessUtility)
		prev_ProcessUtility(pstmt, query_string, read_only_tree, context,
							params, query_env, dest, qc);
	else
		standard_ProcessUtility(pstmt, query_string, read_only_tree, context,
								params, query_env, dest, qc);

	if (is_action)
		record_action(kind, channel ? channel : "");
}

/*
 * Record what PostgreSQL has accepted.  A session that cannot be listening has
 * nothing to UNLISTEN, and may PREPARE its transaction.
 */
static void
record_action(PinpointActionKind kind, const char *channel)
{
	if (kind != PINPOINT_LISTEN &&
		!pinpoint_channel_map_used() && !pinpoint_pending_exists())
		return;
	pinpoint_pending_action(kind, channel);
}

/*
 * Do notifications go our way?  If not, PostgreSQL's own works.
 */
static bool
takes_over(void)
{
	return pinpoint_enabled && !pinpoint_pre_committed() &&
		find_replacements();
}

/*
 * Send a notification when the transaction commits.
 *
 * channel: 1 to NAMEDATALEN - 1 bytes.  payload: less than
 * NOTIFY_PAYLOAD_MAX_LENGTH bytes, "" for none.
 *
 * Errors: as in PostgreSQL (documentation of NOTIFY), with its texts.
 */
static void
queue_notification(const char *channel, const char *payload)
{
	if (IsParallelWorker())
		elog(ERROR, "cannot send notifications from a parallel worker");

	if (channel[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("channel name cannot be empty")));

	if (strlen(channel) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("channel name too long")));

	if (strlen(payload) >= NOTIFY_PAYLOAD_MAX_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("payload string too long")));

	pinpoint_pending_notify(channel, payload);
}

/*
 * pinpoint.notify(channel text, payload text): what pg_notify() becomes.
 *
 * NULL is the same as an empty string.  Errors: see queue_notification().
 */
Datum
pinpoint_notify(PG_FUNCTION_ARGS)
{
	const char *channel = "";
	const char *payload = "";

	if (!PG_ARGISNULL(0))
		channel = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (!PG_ARGISNULL(1))
		payload = text_to_cstring(PG_GETARG_TEXT_PP(1));

	PreventCommandDuringRecovery("NOTIFY");
	if (takes_over())
		queue_notification(channel, payload);
	else
		Async_Notify(channel, payload);

	PG_RETURN_VOID();
}

/*
 * Is the extension in this database?  If so, notify_oid and queue_usage_oid are
 * its functions.
 */
static bool
find_replacements(void)
{
	static bool callback_registered = false;
	uint64		changes;
	Oid			extension;
	Oid			schema;
	Oid			new_notify = InvalidOid;
	Oid			new_queue_usage = InvalidOid;

	if (looked_up_at_change == pg_proc_changes)
		return OidIsValid(notify_oid);

	if (!callback_registered)
	{
		CacheRegisterSyscacheCallback(PROCOID, pg_proc_changed, (Datum) 0);
		callback_registered = true;
	}

	/* A change that comes by during the look-up makes us look again. */
	changes = pg_proc_changes;

	extension = get_extension_oid(EXTENSION_NAME, true);
	schema = get_namespace_oid(SCHEMA_NAME, true);
	if (OidIsValid(extension) && OidIsValid(schema))
	{
		Oid			argtypes[2] = {TEXTOID, TEXTOID};

		new_notify = find_member_function(extension, schema, "notify",
										  2, argtypes);
		new_queue_usage = find_member_function(extension, schema,
											   "notification_queue_usage",
											   0, argtypes);
	}

	notify_oid = new_notify;
	queue_usage_oid = new_queue_usage;
	looked_up_at_change = changes;
	return OidIsValid(notify_oid);
}

/*
 * A function of the extension that everybody may execute.  (If somebody has
 * revoked that, replacing calls would break them.)
 */
static Oid
find_member_function(Oid extension, Oid schema, const char *name,
					 int nargs, const Oid *argtypes)
{
	Oid			funcid;

	funcid = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
							 CStringGetDatum(name),
							 PointerGetDatum(buildoidvector(argtypes, nargs)),
							 ObjectIdGetDatum(schema));
	if (OidIsValid(funcid) &&
		getExtensionOfObject(ProcedureRelationId, funcid) == extension &&
		PINPOINT_FUNCTION_ACLCHECK(funcid, ACL_ID_PUBLIC) == ACLCHECK_OK)
		return funcid;
	return InvalidOid;
}

static void
pg_proc_changed(Datum arg, int cache_id, uint32 hash_value)
{
	pg_proc_changes++;
}

/*
 * Plan a query, with the calls of PostgreSQL's functions replaced by ours.
 *
 * The planner may change the Query it is given, and so may we.
 */
static PlannedStmt *
plan_query(Query *parse, const char *query_string, int cursor_options,
		   ParamListInfo bound_params PINPOINT_PLANNER_PARAMETER)
{
	bool		save_planning = planning;
	bool		save_may_have_inlined = may_have_inlined;
	PlannedStmt *result;

	/*
	 * Look at the catalogs only for queries that have something to replace,
	 * which are few.
	 */
	if (calls_original((Node *) parse, NULL) && find_replacements())
		(void) replace_calls((Node *) parse, NULL);

	planning = true;
	may_have_inlined = false;
	if (prev_planner)
		result = prev_planner(parse, query_string, cursor_options,
							  bound_params PINPOINT_PLANNER_ARGUMENT);
	else
		result = standard_planner(parse, query_string, cursor_options,
								  bound_params PINPOINT_PLANNER_ARGUMENT);
	planning = save_planning;

	if (may_have_inlined && find_replacements())
		replace_inlined_calls(result);
	may_have_inlined = save_may_have_inlined;

	return result;
}

/*
 * Is there a call to replace?
 */
static bool
calls_original(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, FuncExpr))
	{
		FuncExpr   *call = (FuncExpr *) node;

		if (call->funcid == F_PG_NOTIFY ||
			call->funcid == F_PG_NOTIFICATION_QUEUE_USAGE)
			return true;
	}
	else if (IsA(node, Query))
		return query_tree_walker((Query *) node, calls_original, context, 0);
	return expression_tree_walker(node, calls_original, context);
}

static bool
replace_calls(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, FuncExpr))
	{
		FuncExpr   *call = (FuncExpr *) node;

		if (call->funcid == F_PG_NOTIFY)
			call->funcid = notify_oid;
		else if (call->funcid == F_PG_NOTIFICATION_QUEUE_USAGE &&
				 OidIsValid(queue_usage_oid))
			call->funcid = queue_usage_oid;
	}
	else if (IsA(node, Query))
		return query_tree_walker((Query *) node, replace_calls, context, 0);
	return expression_tree_walker(node, replace_calls, context);
}

/*
 * Replace the calls that got into a plan with the body of an SQL function.
 *
 * The plan then depends on our function, which it has to know, lest it be kept
 * when the extension is dropped.
 */
static void
replace_inlined_calls(PlannedStmt *stmt)
{
	PlanInvalItem *item = makeNode(PlanInvalItem);
	ListCell   *lc;

	replace_calls_in_plan(stmt->planTree);
	foreach(lc, stmt->subplans)
		replace_calls_in_plan(lfirst(lc));

	item->cacheId = PROCOID;
	item->hashValue = GetSysCacheHashValue1(PROCOID,
											ObjectIdGetDatum(notify_oid));
	stmt->invalItems = lappend(stmt->invalItems, item);
}

/*
 * Our two are volatile, so they stay out of keys, index conditions and the
 * like.  These are the places where they can be.
 */
static void
replace_calls_in_plan(Plan *plan)
{
	List	   *children = NIL;
	ListCell   *lc;

	if (plan == NULL)
		return;

	check_stack_depth();

	(void) replace_calls((Node *) plan->targetlist, NULL);
	(void) replace_calls((Node *) plan->qual, NULL);

	switch (nodeTag(plan))
	{
		case T_Result:
			(void) replace_calls(((Result *) plan)->resconstantqual, NULL);
			break;
		case T_ModifyTable:
			{
				ModifyTable *modify = (ModifyTable *) plan;

				(void) replace_calls((Node *) modify->returningLists, NULL);
				(void) replace_calls((Node *) modify->onConflictSet, NULL);
				(void) replace_calls(modify->onConflictWhere, NULL);
				(void) replace_calls((Node *) modify->mergeActionLists, NULL);
				(void) replace_calls((Node *) modify->withCheckOptionLists,
									 NULL);
			}
			break;
		case T_Append:
			children = ((Append *) plan)->appendplans;
			break;
		case T_MergeAppend:
			children = ((MergeAppend *) plan)->mergeplans;
			break;
		case T_SubqueryScan:
			replace_calls_in_plan(((SubqueryScan *) plan)->subplan);
			break;
		case T_FunctionScan:
			(void) replace_calls((Node *) ((FunctionScan *) plan)->functions,
								 NULL);
			break;
		case T_ValuesScan:
			(void) replace_calls((Node *) ((ValuesScan *) plan)->values_lists,
								 NULL);
			break;
		case T_TableFuncScan:
			(void) replace_calls((Node *) ((TableFuncScan *) plan)->tablefunc,
								 NULL);
			break;
		case T_CustomScan:
			(void) replace_calls((Node *) ((CustomScan *) plan)->custom_exprs,
								 NULL);
			children = ((CustomScan *) plan)->custom_plans;
			break;
		case T_NestLoop:
		case T_MergeJoin:
		case T_HashJoin:
			(void) replace_calls((Node *) ((Join *) plan)->joinqual, NULL);
			break;
		case T_Limit:
			(void) replace_calls(((Limit *) plan)->limitOffset, NULL);
			(void) replace_calls(((Limit *) plan)->limitCount, NULL);
			break;
		default:
			break;
	}

	foreach(lc, children)
		replace_calls_in_plan(lfirst(lc));
	replace_calls_in_plan(plan->lefttree);
	replace_calls_in_plan(plan->righttree);
}

/*
 * The planner asks whether a function may be inlined: note if it contains a call
 * to replace.
 */
static bool
needs_fmgr(Oid funcid)
{
	if (planning && !may_have_inlined)
	{
		HeapTuple	tuple;

		tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(funcid));
		if (HeapTupleIsValid(tuple))
		{
			if (((Form_pg_proc) GETSTRUCT(tuple))->prolang == SQLlanguageId)
				may_have_inlined = body_mentions_original(tuple);
			ReleaseSysCache(tuple);
		}
	}

	return prev_needs_fmgr && prev_needs_fmgr(funcid);
}

/*
 * Does the body of an SQL function call what we replace?  A source text is not
 * parsed for that, so a name in a comment or a string is taken for a call: it
 * costs a look through the plan and nothing else.
 */
static bool
body_mentions_original(HeapTuple proc)
{
	bool		parsed = true;
	Datum		datum;
	bool		isnull;
	char	   *body;
	bool		result = false;

	datum = SysCacheGetAttr(PROCOID, proc, Anum_pg_proc_prosqlbody, &isnull);
	if (isnull)
	{
		parsed = false;
		datum = SysCacheGetAttr(PROCOID, proc, Anum_pg_proc_prosrc, &isnull);
		if (isnull)
			return false;
	}
	body = TextDatumGetCString(datum);

	if (parsed)
	{
		char		call[64];

		snprintf(call, sizeof(call), ":funcid %u ", F_PG_NOTIFY);
		result = strstr(body, call) != NULL;
		snprintf(call, sizeof(call), ":funcid %u ",
				 F_PG_NOTIFICATION_QUEUE_USAGE);
		result = result || strstr(body, call) != NULL;
	}
	else
	{
		for (char *c = body; *c != '\0' && !result; c++)
			result = pg_strncasecmp(c, "pg_notif", 8) == 0;
	}

	pfree(body);
	return result;
}

/*
 * A function is about to be called, or prepared to be: whoever calls
 * pinpoint.notify() needs the privilege to execute pg_notify(), and likewise
 * for the other one.  (That these are executable for everybody as such is what
 * makes the replacement invisible.)
 */
static void
object_access(ObjectAccessType access, Oid class_id, Oid object_id,
			  int sub_id, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, class_id, object_id, sub_id, arg);

	/* Spare all that is built in the look-up. */
	if (access == OAT_FUNCTION_EXECUTE && object_id >= FirstNormalObjectId &&
		find_replacements() &&
		(object_id == notify_oid || object_id == queue_usage_oid))
	{
		Oid			original = object_id == notify_oid ?
			F_PG_NOTIFY : F_PG_NOTIFICATION_QUEUE_USAGE;
		AclResult	aclresult;

		aclresult = PINPOINT_FUNCTION_ACLCHECK(original, GetUserId());
		if (aclresult != ACLCHECK_OK)
			aclcheck_error(aclresult, OBJECT_FUNCTION,
						   get_func_name(original));
	}
}
