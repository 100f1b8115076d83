/*-------------------------------------------------------------------------
 *
 * replacement.c
 *		Replaces calls of pg_notify() and pg_notification_queue_usage().
 *
 * These two are built-in functions, which PostgreSQL finds by OID without
 * reading a catalog.  Therefore not the functions, but their calls are
 * replaced: with calls of pinpoint.notify() and
 * pinpoint.notification_queue_usage(), which the extension creates.  In a
 * database without the extension, no call is replaced.
 *
 * The replacements must be members of the extension, because any user can
 * create a schema "pinpoint" in a database that he owns.
 *
 * The privilege to execute the original function applies.  It is checked in
 * object_access_hook, at the same time, for the same user and with the same
 * error as without this library.  pinpoint.notify() checks it too, for direct
 * calls.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "base/compat.h"
#include "sql/replacement.h"

#define EXTENSION_NAME		"pg_pinpoint"
#define SCHEMA_NAME			"pinpoint"
#define NOTIFY_NAME			"notify"
#define QUEUE_USAGE_NAME	"notification_queue_usage"

/*
 * The extension, the schema and the functions in this database; InvalidOid if
 * they do not exist.  They are looked up again after an invalidation message
 * for pg_proc or pg_namespace: an extension is created and dropped with its
 * functions, and the schema can be renamed.
 */
static Oid	extension_oid = InvalidOid;
static Oid	schema_oid = InvalidOid;
static Oid	notify_oid = InvalidOid;
static Oid	queue_usage_oid = InvalidOid;
static uint64 catalog_changes = 1;
static uint64 looked_up_at_change = 0;

/* Does the schema exist?  This is looked up again, too. */
static bool schema_exists = false;
static uint64 schema_looked_up_at_change = 0;

/*
 * Was an extension created in this transaction while ours did not exist?  It
 * may be ours.
 */
static bool extension_created = false;

static uint64 begin_look_up(void);
static Oid	find_member_function(Oid extension, const char *name,
								 int nargs, const Oid *argtypes);
static void catalog_changed(Datum arg, int cache_id, uint32 hash_value);
static Oid	replacement_of(Oid funcid);
static bool calls_replaced(Node *node, void *context);
static bool replace_calls(Node *node, void *context);

/*
 * Can the result of pinpoint_replacement_exists() be true?  This is asked for
 * each query, also in databases without the extension.  So only the catalog of
 * schemas is read, as PostgreSQL does to find a table or a function.
 */
bool
pinpoint_replacement_may_exist(void)
{
	uint64		changes;

	if (likely(schema_looked_up_at_change == catalog_changes))
		return schema_exists;

	changes = begin_look_up();
	schema_exists = OidIsValid(get_namespace_oid(SCHEMA_NAME, true));
	schema_looked_up_at_change = changes;
	return schema_exists;
}

/*
 * Does the extension exist in this database, with a pinpoint.notify() that all
 * roles may execute?
 */
bool
pinpoint_replacement_exists(void)
{
	uint64		changes;
	Oid			new_extension;
	Oid			new_notify = InvalidOid;
	Oid			new_queue_usage = InvalidOid;

	if (looked_up_at_change == catalog_changes)
		return OidIsValid(notify_oid);

	changes = begin_look_up();
	new_extension = get_extension_oid(EXTENSION_NAME, true);
	schema_oid = get_namespace_oid(SCHEMA_NAME, true);
	if (OidIsValid(new_extension) && OidIsValid(schema_oid))
	{
		Oid			argtypes[2] = {TEXTOID, TEXTOID};

		new_notify = find_member_function(new_extension, NOTIFY_NAME,
										  2, argtypes);
		new_queue_usage = find_member_function(new_extension, QUEUE_USAGE_NAME,
											   0, argtypes);
	}

	extension_oid = new_extension;
	notify_oid = new_notify;
	queue_usage_oid = new_queue_usage;
	looked_up_at_change = changes;
	return OidIsValid(notify_oid);
}

/*
 * Returns the number of the last change, for a look-up that begins now.  If an
 * invalidation message arrives during it, the next call looks up again.
 */
static uint64
begin_look_up(void)
{
	static bool callback_registered = false;

	if (!callback_registered)
	{
		CacheRegisterSyscacheCallback(PROCOID, catalog_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(NAMESPACEOID, catalog_changed, (Datum) 0);
		callback_registered = true;
	}
	return catalog_changes;
}

/*
 * Does the extension exist in this database, also if calls cannot be replaced?
 * Watched tables need only this.
 */
bool
pinpoint_replacement_extension_exists(void)
{
	(void) pinpoint_replacement_exists();
	return OidIsValid(extension_oid);
}

/*
 * Is this the extension of this library?
 */
bool
pinpoint_replacement_is_extension(Oid extension)
{
	char	   *name = get_extension_name(extension);

	return name != NULL && strcmp(name, EXTENSION_NAME) == 0;
}

/*
 * Before commit: has this transaction created the extension?
 */
bool
pinpoint_replacement_extension_created(void)
{
	return extension_created && pinpoint_replacement_extension_exists();
}

/*
 * The transaction is over.
 */
void
pinpoint_replacement_end_transaction(void)
{
	extension_created = false;
}

/*
 * Find a function of the extension that all roles may execute.  (If this
 * privilege was revoked, replaced calls would fail.)  Returns InvalidOid if
 * there is none.
 */
static Oid
find_member_function(Oid extension, const char *name,
					 int nargs, const Oid *argtypes)
{
	Oid			funcid;

	funcid = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
							 CStringGetDatum(name),
							 PointerGetDatum(buildoidvector(argtypes, nargs)),
							 ObjectIdGetDatum(schema_oid));
	if (OidIsValid(funcid) &&
		getExtensionOfObject(ProcedureRelationId, funcid) == extension &&
		PINPOINT_FUNCTION_ACLCHECK(funcid, ACL_ID_PUBLIC) == ACLCHECK_OK)
		return funcid;
	return InvalidOid;
}

static void
catalog_changed(Datum arg, int cache_id, uint32 hash_value)
{
	catalog_changes++;
}

/*
 * The functions whose calls replace others, as a list of OIDs.  The caller has
 * checked that the extension exists.
 */
List *
pinpoint_replacement_functions(void)
{
	Assert(OidIsValid(notify_oid));

	return OidIsValid(queue_usage_oid) ?
		list_make2_oid(notify_oid, queue_usage_oid) :
		list_make1_oid(notify_oid);
}

/*
 * Is this one of the functions whose calls are replaced?
 */
bool
pinpoint_replacement_concerns(Oid funcid)
{
	return funcid == F_PG_NOTIFY || funcid == F_PG_NOTIFICATION_QUEUE_USAGE;
}

/*
 * Returns the replacement of a function, or the function itself if there is
 * none.
 */
static Oid
replacement_of(Oid funcid)
{
	if (funcid == F_PG_NOTIFY && OidIsValid(notify_oid))
		return notify_oid;
	if (funcid == F_PG_NOTIFICATION_QUEUE_USAGE && OidIsValid(queue_usage_oid))
		return queue_usage_oid;
	return funcid;
}

/*
 * Get the name of the replacement of a function, for calls that are not
 * analyzed yet.  Returns false if there is no replacement, or if the current
 * user has no USAGE privilege on its schema.
 */
bool
pinpoint_replacement_by_name(Oid original, char **schema, char **name)
{
	if (!pinpoint_replacement_exists() ||
		replacement_of(original) == original ||
		PINPOINT_SCHEMA_ACLCHECK(schema_oid, GetUserId()) != ACLCHECK_OK)
		return false;

	*schema = SCHEMA_NAME;
	*name = original == F_PG_NOTIFY ? NOTIFY_NAME : QUEUE_USAGE_NAME;
	return true;
}

/*
 * Does an expression or Query contain a call to replace?
 */
bool
pinpoint_replacement_is_needed(Node *node)
{
	return calls_replaced(node, NULL);
}

/*
 * Every plan is searched.  So the most frequent nodes do not pass through
 * expression_tree_walker().
 */
static bool
calls_replaced(Node *node, void *context)
{
	ListCell   *lc;

	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_Var:
		case T_Const:
		case T_Param:
			return false;
		case T_TargetEntry:
			return calls_replaced((Node *) ((TargetEntry *) node)->expr,
								  context);
		case T_List:
			foreach(lc, (List *) node)
			{
				if (calls_replaced(lfirst(lc), context))
					return true;
			}
			return false;
		case T_FuncExpr:
			if (pinpoint_replacement_concerns(((FuncExpr *) node)->funcid))
				return true;
			break;
		case T_OpExpr:
			if (pinpoint_replacement_concerns(((OpExpr *) node)->opfuncid))
				return true;
			break;
		case T_Query:
			return query_tree_walker((Query *) node, calls_replaced, context,
									 0);
		default:
			break;
	}
	return expression_tree_walker(node, calls_replaced, context);
}

/*
 * Replace the calls in an expression or Query, in place.  The caller has
 * checked that the extension exists.
 */
void
pinpoint_replacement_apply(Node *node)
{
	Assert(OidIsValid(notify_oid));

	(void) replace_calls(node, NULL);
}

static bool
replace_calls(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, FuncExpr))
	{
		FuncExpr   *call = (FuncExpr *) node;

		call->funcid = replacement_of(call->funcid);
	}
	else if (IsA(node, OpExpr))
	{
		OpExpr	   *call = (OpExpr *) node;

		call->opfuncid = replacement_of(call->opfuncid);
	}
	else if (IsA(node, Query))
		return query_tree_walker((Query *) node, replace_calls, context, 0);
	return expression_tree_walker(node, replace_calls, context);
}

/*
 * Does the body of an SQL function contain a call to replace?  A source text
 * is not parsed, so a name in a comment or a string counts as a call.
 */
bool
pinpoint_replacement_is_needed_in_body(HeapTuple proc)
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

		snprintf(call, sizeof(call), "funcid %u ", F_PG_NOTIFY);
		result = strstr(body, call) != NULL;
		snprintf(call, sizeof(call), "funcid %u ",
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
 * Called by object_access_hook: before a function is called, or when a call is
 * prepared, and when an object was created.  A call of pinpoint.notify()
 * requires the privilege to execute pg_notify(), and likewise for the other
 * function.  (All roles have the privilege to execute the replacements, so
 * that no call fails because it was replaced.)  Also records that an
 * extension was created.
 *
 * Errors: ERRCODE_INSUFFICIENT_PRIVILEGE.
 */
void
pinpoint_replacement_at_access(ObjectAccessType access, Oid class_id,
							   Oid object_id)
{
	if (access == OAT_POST_CREATE && class_id == ExtensionRelationId &&
		!pinpoint_replacement_extension_exists())
		extension_created = true;

	/* Built-in functions need no look-up. */
	if (access == OAT_FUNCTION_EXECUTE && object_id >= FirstNormalObjectId &&
		pinpoint_replacement_exists() &&
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
