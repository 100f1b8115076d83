/*-------------------------------------------------------------------------
 *
 * listen_notify.c
 *		The statements NOTIFY, LISTEN, UNLISTEN and DISCARD ALL.
 *
 * ProcessUtility_hook (hooks.c) receives these statements, whether a client
 * sends them, or a rule, a function or a DO block executes them.  This library
 * executes NOTIFY itself.  PostgreSQL executes the others first: it makes all
 * checks, and registers the session with its own queue.  Then they are
 * recorded for the channel map.  So every listener can be reached through both
 * queues, and notifications that this library does not intercept still arrive.
 * On a standby, PostgreSQL refuses LISTEN, and this library does what
 * PostgreSQL does on a primary.
 *
 * pg_notify() arrives as pinpoint.notify(), because its calls are replaced; see
 * replacement.c.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "commands/async.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "base/compat.h"
#include "base/preload.h"
#include "base/request.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "listener/listening.h"
#include "sql/listen_notify.h"
#include "sql/pending.h"
#include "sql/replacement.h"
#include "wakeup/sharing.h"

static bool get_action(Node *stmt, PinpointActionKind *kind,
					   const char **channel);
static void check_phase(const char *name);
static bool listens_in_recovery(void);
static void check_action(PinpointActionKind kind);
static bool takes_over(void);
static void check_reserved(const char *channel);
static void check_own_payload(const char *payload);
static void queue_notification(const char *channel, const char *payload);
static void check_privilege(FmgrInfo *flinfo);

PG_FUNCTION_INFO_V1(pinpoint_notify);

/*
 * Execute NOTIFY.  Returns false if PostgreSQL has to do it.
 *
 * Errors: those of PostgreSQL; see check_reserved(), queue_notification() and
 * check_own_payload().
 */
bool
pinpoint_statement_execute_notify(NotifyStmt *notify)
{
	const char *payload = notify->payload ? notify->payload : "";

	check_reserved(notify->conditionname);
	if (takes_over())
	{
		/* NOTIFY is allowed in a read-only transaction, but not here */
		PreventCommandIfParallelMode("NOTIFY");
		PreventCommandDuringRecovery("NOTIFY");
		queue_notification(notify->conditionname, payload);
		return true;
	}
	check_own_payload(payload);
	PinpointMyTransaction.sent_to_own_queue = true;
	return false;
}

/*
 * Before a statement: does it change the channels of the session?  If so, sets
 * *kind, and *channel, "" for all channels.
 *
 * Errors: ERRCODE_FEATURE_NOT_SUPPORTED, if the transaction is being committed.
 */
bool
pinpoint_statement_begin_action(Node *stmt, PinpointActionKind *kind,
								const char **channel)
{
	if (!get_action(stmt, kind, channel))
		return false;
	if (unlikely(PinpointMyTransaction.phase != PINPOINT_RUNNING))
		check_phase(GetCommandTagName(CreateCommandTag(stmt)));
	return true;
}

/*
 * Execute LISTEN on a standby.  Returns false if PostgreSQL has to execute the
 * statement.
 *
 * Errors: those of LISTEN.
 */
bool
pinpoint_statement_listen_in_recovery(PinpointActionKind kind,
									  const char *channel)
{
	if (kind != PINPOINT_LISTEN || !listens_in_recovery())
		return false;

	/* PostgreSQL would refuse it. */
	PreventCommandIfParallelMode("LISTEN");
	check_action(kind);
	Async_Listen(channel);
	return true;
}

/*
 * The same without the check.
 */
static bool
get_action(Node *stmt, PinpointActionKind *kind, const char **channel)
{
	*channel = "";

	switch (nodeTag(stmt))
	{
		case T_ListenStmt:
			*kind = PINPOINT_LISTEN;
			*channel = ((ListenStmt *) stmt)->conditionname;
			return true;
		case T_UnlistenStmt:
			*kind = PINPOINT_UNLISTEN_ALL;
			if (((UnlistenStmt *) stmt)->conditionname != NULL)
			{
				*kind = PINPOINT_UNLISTEN;
				*channel = ((UnlistenStmt *) stmt)->conditionname;
			}
			return true;
		case T_DiscardStmt:
			*kind = PINPOINT_UNLISTEN_ALL;
			return ((DiscardStmt *) stmt)->target == DISCARD_ALL;
		default:
			return false;
	}
}

/*
 * Check that the transaction can still LISTEN or UNLISTEN.
 *
 * name: of the statement.
 *
 * Errors: ERRCODE_FEATURE_NOT_SUPPORTED.
 */
static void
check_phase(const char *name)
{
	if (PinpointMyTransaction.phase != PINPOINT_RUNNING)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot execute %s while the transaction is being committed",
						name),
				 errhint("Execute it in a transaction of its own.")));
}

/*
 * Does this library execute LISTEN?  On a standby PostgreSQL refuses it,
 * because no notification can arrive.  With the extension, notifications
 * arrive.
 */
static bool
listens_in_recovery(void)
{
	return RecoveryInProgress() && pinpoint_preload_is_done() &&
		pinpoint_replacement_exists();
}

/*
 * Check whether the session can execute LISTEN or UNLISTEN, as PostgreSQL
 * does.
 *
 * Errors: those of PostgreSQL, with its texts.
 */
static void
check_action(PinpointActionKind kind)
{
	const char *name = kind == PINPOINT_LISTEN ? "LISTEN" : "UNLISTEN";

	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
		/* translator: %s is name of a SQL command, eg PREPARE */
				 errmsg("cannot execute %s within security-restricted operation",
						name)));
	if (kind == PINPOINT_LISTEN && MyBackendType != B_BACKEND)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
		/* translator: %s is name of a SQL command, eg LISTEN */
				 errmsg("cannot execute %s within a background process",
						name)));
}

/*
 * The same for pinpoint.listen() and pinpoint.unlisten(), which do not pass
 * through the hook.  They are called in the leader of a parallel
 * query, but not in its workers.
 *
 * Errors: those of the statements.
 */
void
pinpoint_statement_check_action(PinpointActionKind kind)
{
	const char *name = kind == PINPOINT_LISTEN ? "LISTEN" : "UNLISTEN";

	if (IsParallelWorker())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("cannot execute %s during a parallel operation", name)));
	if (kind == PINPOINT_LISTEN && !listens_in_recovery())
		PreventCommandDuringRecovery(name);
	check_action(kind);
	check_phase(name);
}

/*
 * Execute LISTEN or UNLISTEN for a channel, after
 * pinpoint_statement_check_action().
 *
 * Errors: out of memory.
 */
void
pinpoint_statement_execute_action(PinpointActionKind kind, const char *channel)
{
	if (kind == PINPOINT_LISTEN)
		Async_Listen(channel);
	else
		Async_Unlisten(channel);
	if (pinpoint_preload_is_done())
		pinpoint_statement_record_action(kind, channel);
}

/*
 * Record an action that PostgreSQL has executed.  UNLISTEN is not recorded if
 * the session cannot have a channel, so that it can still PREPARE its
 * transaction.
 *
 * Errors: out of memory.
 */
void
pinpoint_statement_record_action(PinpointActionKind kind, const char *channel)
{
	int			share_limit = 0;
	bool		notifies = false;

	Assert(pinpoint_preload_is_done());
	Assert(PinpointMyTransaction.phase == PINPOINT_RUNNING);

	if (kind != PINPOINT_LISTEN &&
		!pinpoint_listening_used() && !pinpoint_pending_exists())
		return;

	if (pinpoint_is_heartbeat_channel(channel))
	{
		/*
		 * Without the extension, all notifications use PostgreSQL's own
		 * queue. A heartbeat could arrive before them, and its position would
		 * wrongly cover them.
		 */
		if (kind == PINPOINT_LISTEN && !pinpoint_replacement_exists())
			return;
	}
	else if (kind == PINPOINT_LISTEN)
	{
		if (pinpoint_settings_share_channel(channel))
			share_limit = pinpoint_share_limit;
		notifies = pinpoint_enabled &&
			pinpoint_settings_notify_on_listen(channel) &&
			pinpoint_replacement_exists();
	}
	pinpoint_pending_action(kind, channel, share_limit, notifies);
}

/*
 * Does this library send notifications?  If not, PostgreSQL does.
 */
static bool
takes_over(void)
{
	return pinpoint_preload_is_done() && pinpoint_enabled &&
		PinpointMyTransaction.phase == PINPOINT_RUNNING &&
		pinpoint_replacement_exists();
}

/*
 * Send a notification when the transaction commits.
 *
 * channel: 1 to NAMEDATALEN - 1 bytes.  payload: at most
 * pinpoint_max_payload_size bytes, "" for none.
 *
 * Errors: as in PostgreSQL (documentation of NOTIFY), with its texts.
 */
static void
queue_notification(const char *channel, const char *payload)
{
	Assert(PinpointMyTransaction.phase == PINPOINT_RUNNING);

	if (IsParallelWorker())
		elog(ERROR, "cannot send notifications from a parallel worker");

	pinpoint_statement_check_channel_length(strlen(channel));
	if (strlen(payload) > (size_t) pinpoint_max_payload_size)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("payload string too long"),
				 pinpoint_max_payload_size > PINPOINT_OWN_MAX_PAYLOAD ?
				 errdetail("It has %zu bytes, and \"pinpoint.max_payload_size\" is %d bytes.",
						   strlen(payload), pinpoint_max_payload_size) : 0));

	pinpoint_pending_notify(channel, payload);
}

/*
 * Check the length of the name of a channel, in bytes.
 *
 * Errors: those of pg_notify(), with its texts.
 */
void
pinpoint_statement_check_channel_length(size_t length)
{
	if (length == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("channel name cannot be empty")));

	if (length >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("channel name too long")));
}

/*
 * Check that a notification is not on the channel of the heartbeat, which is
 * reserved for the server if the extension exists.
 *
 * Errors: ERRCODE_RESERVED_NAME.
 */
static void
check_reserved(const char *channel)
{
	if (pinpoint_is_heartbeat_channel(channel) && pinpoint_preload_is_done() &&
		pinpoint_replacement_exists())
		pinpoint_statement_report_reserved_channel(channel);
}

/*
 * Raise the error for a channel that is reserved for the server.
 */
void
pinpoint_statement_report_reserved_channel(const char *channel)
{
	ereport(ERROR,
			(errcode(ERRCODE_RESERVED_NAME),
			 errmsg("channel name \"%s\" is reserved", channel),
			 errdetail("The server itself notifies on this channel.")));
}

/*
 * Check the payload of a notification that uses PostgreSQL's own queue.
 * PostgreSQL refuses a long payload.  If pinpoint.max_payload_size allows it,
 * the error here explains why.
 *
 * Errors: as in PostgreSQL, with its text.
 */
static void
check_own_payload(const char *payload)
{
	if (pinpoint_max_payload_size > PINPOINT_OWN_MAX_PAYLOAD &&
		strlen(payload) > PINPOINT_OWN_MAX_PAYLOAD)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("payload string too long"),
				 errdetail("This notification uses PostgreSQL's own queue, which allows %d bytes.",
						   PINPOINT_OWN_MAX_PAYLOAD),
				 errhint("Check that \"pinpoint.enabled\" is on, and that the extension \"pg_pinpoint\" exists in this database.")));
}

/*
 * Send a notification for a trigger when the transaction commits.  As for the
 * statement NOTIFY, no privilege is required.
 *
 * channel: 1 to NAMEDATALEN - 1 bytes.  payload: "" for none.
 *
 * Errors: see check_reserved(), queue_notification() and check_own_payload().
 */
void
pinpoint_statement_notify(const char *channel, const char *payload)
{
	check_reserved(channel);
	if (takes_over())
		queue_notification(channel, payload);
	else
	{
		check_own_payload(payload);
		PinpointMyTransaction.sent_to_own_queue = true;
		Async_Notify(channel, payload);
	}
}

/*
 * pinpoint.notify(channel text, payload text): replaces pg_notify().
 *
 * NULL is the same as an empty string.
 *
 * Errors: see check_privilege(), check_reserved(), queue_notification() and
 * check_own_payload(); ERRCODE_READ_ONLY_SQL_TRANSACTION during recovery.
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

	check_privilege(fcinfo->flinfo);
	PreventCommandDuringRecovery("NOTIFY");
	pinpoint_statement_notify(channel, payload);

	PG_RETURN_VOID();
}

/*
 * Check the privilege to execute pg_notify(), since pinpoint.notify() does the
 * same.  As in PostgreSQL, this is checked once for all calls from one place,
 * unless the user changes.
 *
 * Errors: ERRCODE_INSUFFICIENT_PRIVILEGE.
 */
static void
check_privilege(FmgrInfo *flinfo)
{
	Oid			user = GetUserId();
	Oid		   *checked = flinfo->fn_extra;
	AclResult	aclresult;

	if (checked != NULL && *checked == user)
		return;

	aclresult = PINPOINT_FUNCTION_ACLCHECK(F_PG_NOTIFY, user);
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, OBJECT_FUNCTION, get_func_name(F_PG_NOTIFY));

	if (checked == NULL)
		checked = MemoryContextAlloc(flinfo->fn_mcxt, sizeof(Oid));
	*checked = user;
	flinfo->fn_extra = checked;
}
