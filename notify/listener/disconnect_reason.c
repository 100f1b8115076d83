/*-------------------------------------------------------------------------
 *
 * disconnect_reason.c
 *		Why a session that listens is ended.
 *
 * A notification that cannot be delivered is never skipped: the session ends,
 * so that its client knows that it has to look for itself.  Here are the reasons
 * that are not an error by themselves: the session was given up by a sender,
 * being too far behind (see slow_listener.c), or PostgreSQL cannot run the
 * transaction in which it would read.
 *
 * Either way it ends as by pg_terminate_backend(): that works if the session is idle
 * in a transaction, within a query, or sending notifications to a client that does
 * not read.  While it reports an error to such a client it has to wait; see
 * evict() in slots.c.  The reason is told in a DETAIL of the session's last
 * message.
 *
 * Every error also ends all timeouts of the session, and so that of
 * pinpoint.latency_target; whoever reports an error therefore lets the session
 * look again what it has to read.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "commands/async.h"
#include "miscadmin.h"

#include "listener/disconnect_reason.h"
#include "wakeup/slots.h"

static bool cannot_read = false;

static void at_report(void *arg);

/*
 * A session that listens: be ready to say why it is ended.
 *
 * The error context callback has to be the outermost one, and after an error
 * there is none at all, so this is called again at the end of transactions.
 */
void
pinpoint_disconnect_reason_prepare(void)
{
	static ErrorContextCallback callback = {.callback = at_report};

	if (error_context_stack == NULL)
		error_context_stack = &callback;
}

/*
 * End this session, as it cannot read what was published for it.  PostgreSQL
 * comes to look for the order to terminate only when it stops to try.
 */
void
pinpoint_disconnect_reason_unread(void)
{
	cannot_read = true;
	notifyInterruptPending = false;
	if (kill(MyProcPid, SIGTERM) != 0)
		elog(LOG, "could not send signal to process %d: %m", MyProcPid);
}

/*
 * Something is being reported, which may be an error.  If it is the message by
 * which a session is ended, say why.
 */
static void
at_report(void *arg)
{
	int			category = ERRCODE_TO_CATEGORY(geterrcode());
	bool		is_error = category != ERRCODE_SUCCESSFUL_COMPLETION &&
		category != ERRCODE_WARNING;

	if (is_error && !cannot_read && pinpoint_slot_to_look())
		notifyInterruptPending = true;

	if (geterrcode() != ERRCODE_ADMIN_SHUTDOWN)
		return;

	if (pinpoint_slot_evicted())
		errdetail("The session listens, and was further behind with its notifications than \"pinpoint.max_listener_lag\" allows, or than the queue has room for.");
	else if (cannot_read)
		errdetail("The session listens, and could not read its notifications.");
	else
		return;
	errhint("Connect and LISTEN again, and then look at what the missed notifications were about.");
}
