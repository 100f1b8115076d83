/*-------------------------------------------------------------------------
 *
 * disconnect_reason.c
 *		Tells a client why the session of a listener was ended.
 *
 * A notification that cannot be delivered is never skipped: the session ends,
 * so that its client knows that it must read the current state.  This file
 * handles two reasons that are not errors of the session: the session was
 * evicted (see evict.c), or PostgreSQL cannot run the transaction in which the
 * session reads notifications.
 *
 * In both cases the session ends as by pg_terminate_backend().  This also
 * works if the session is idle in a transaction, within a query, or sending
 * notifications to a client that does not read.  A session that is reporting
 * an error to such a client ends later; see evict.c.  The DETAIL of the
 * session's last message contains the reason.
 *
 * Every error also cancels all timeouts of the session, including that of
 * pinpoint.latency_target.  Therefore a session that reports an error checks
 * again for unread notifications.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "commands/async.h"
#include "miscadmin.h"
#include "storage/ipc.h"

#include "listener/disconnect_reason.h"
#include "listener/held_heartbeat.h"
#include "wakeup/slots.h"

static volatile sig_atomic_t cannot_read = false;

/* Indexed by PinpointEviction: the DETAIL of the session's last message. */
static const char *const eviction_details[] = {
	[PINPOINT_EVICTED_LAGGING] =
	gettext_noop("The backlog of this listener exceeded \"pinpoint.max_listener_lag\"."),
	[PINPOINT_EVICTED_QUEUE_FULL] =
	gettext_noop("This listener was among those furthest behind when the NOTIFY queue of the standby was full."),
	[PINPOINT_EVICTED_NO_ROOM] =
	gettext_noop("The notifications of a transaction did not fit into the NOTIFY queue of the standby."),
	[PINPOINT_EVICTED_INCOMPLETE] =
	gettext_noop("The notifications of a transaction were incomplete in the WAL of the primary."),
	[PINPOINT_EVICTED_NEWER_FORM] =
	gettext_noop("The primary sends notifications in the format of a newer version of pg_pinpoint."),
	[PINPOINT_EVICTED_BEFORE_REDO] =
	gettext_noop("A transaction may have sent notifications just before the WAL location at which the standby began to replay."),
	[PINPOINT_EVICTED_REPLICATE_OFF] =
	gettext_noop("The primary no longer sends notifications to standbys, because \"pinpoint.replicate\" or \"pinpoint.enabled\" is off there."),
	[PINPOINT_EVICTED_UNREPLICATED] =
	gettext_noop("This listener may have missed notifications that were not replicated, and the next heartbeat would cover them."),
	[PINPOINT_EVICTED_REPLAY_WAITS] =
	gettext_noop("Replay waited for this session while its client did not read its notifications."),
	[PINPOINT_EVICTED_PREPARED] =
	gettext_noop("A prepared transaction that changed a watched table was committed, and could not be notified."),
};

static void at_report(void *arg);

/*
 * Called at the end of each transaction of a session that listens: install the
 * callback that reports why the session is ended.
 *
 * It must be the outermost error context callback.  PostgreSQL removes all
 * callbacks when it reports an error to the client, so it is installed again
 * at the end of transactions.
 */
void
pinpoint_disconnect_reason_register(void)
{
	static ErrorContextCallback callback = {.callback = at_report};

	if (error_context_stack == NULL)
		error_context_stack = &callback;
}

/*
 * Called at the same time: end this session if it was evicted, in case that the
 * process that has done so could not send the signal.  Not a background worker:
 * its handler for the signal may raise an error at once.
 */
void
pinpoint_disconnect_reason_end_evicted(void)
{
	if (likely(pinpoint_slot_evicted() == PINPOINT_NOT_EVICTED) ||
		proc_exit_inprogress)
		return;
	pinpoint_slot_set_ending(false);
	if (MyBackendType == B_BACKEND)
		(void) kill(MyProcPid, SIGTERM);
}

/*
 * End this session, because it cannot read its notifications.  PostgreSQL
 * would process the SIGTERM only when it stops repeating the small
 * transaction, so the interrupt is reset.
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
 * Error context callback: a message is being reported.  If it is an error, let
 * the session check again for unread notifications and for a heartbeat that is
 * held.  If it is the message that ends the session, add the reason.
 */
static void
at_report(void *arg)
{
	int			category = ERRCODE_TO_CATEGORY(geterrcode());
	PinpointEviction eviction;
	const char *reason;
	bool		is_error = category != ERRCODE_SUCCESSFUL_COMPLETION &&
		category != ERRCODE_WARNING;

	if (is_error && !cannot_read &&
		(pinpoint_slot_to_look() || pinpoint_held_heartbeat_any()))
		notifyInterruptPending = true;
	if (is_error)
		pinpoint_slot_set_sending(0);

	if (geterrcode() != ERRCODE_ADMIN_SHUTDOWN)
		return;

	eviction = pinpoint_slot_evicted();
	if (eviction != PINPOINT_NOT_EVICTED)
	{
		pinpoint_slot_set_ending(true);
		reason = _(eviction_details[eviction]);
	}
	else if (cannot_read)
		reason = _("The session could not read its notifications.");
	else
		return;

	/* PostgreSQL 19 sets a separate detail for the log. */
	errdetail("%s", reason);
	errdetail_log("%s", reason);
	errhint("Connect and LISTEN again, then read the current state of the data.");
}
