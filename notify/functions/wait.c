/*-------------------------------------------------------------------------
 *
 * wait.c
 *		The procedure pinpoint.wait(); see positions.c and waiters.c.
 *
 * It is a procedure, and not a function, because a function is called with a
 * snapshot, which would hold back VACUUM while the session waits.  A procedure
 * that commits releases its snapshots, and PostgreSQL takes a new one
 * afterwards.  This procedure does not commit, but releases its snapshots in
 * the same way.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/preload.h"
#include "base/settings.h"
#include "functions/changed_since.h"
#include "positions/positions.h"
#include "positions/waiters.h"

/*
 * Milliseconds between two looks of a session that each transaction of its
 * database wakes.  A look reads the places of all its channels.
 */
#define PAUSE_BETWEEN_LOOKS	20

/*
 * Milliseconds after which a session looks in any case: the process that has
 * to wake it may have stopped before it sets its latch.
 */
#define LOOK_INTERVAL		5000

PG_FUNCTION_INFO_V1(pinpoint_wait);

static TimestampTz end_of_wait(NullableDatum *timeout);
static void release_snapshots(void);
static void check_may_wait(void);
static void wait_for_change(PinpointQuery *query, TimestampTz until,
							int limit);
static void begin_waiting(int nchannels, int limit);
static void end_waiting(int code, Datum arg);
static void pause_since(TimestampTz looked_at, TimestampTz until);
static void sleep_until(TimestampTz until);
static uint32 wait_event(void);

/*
 * pinpoint.wait(INOUT changed text[], INOUT position text, timeout interval):
 * waits until one of the channels in "changed" was notified in this database
 * since a position, or until the timeout is over; without a limit if it is
 * NULL.  Returns what changed_since() returns.
 *
 * Errors: those of changed_since() and PreventInTransactionBlock(), and of
 * check_may_wait(), also if it need not wait;
 * ERRCODE_CONFIGURATION_LIMIT_EXCEEDED if too many sessions of the role wait;
 * the statement is cancelled, or the session ends.
 */
Datum
pinpoint_wait(PG_FUNCTION_ARGS)
{
	static PinpointRowType known_row_type = {InvalidOid, NULL};
	bool		is_top_level = fcinfo->context != NULL &&
		IsA(fcinfo->context, CallContext) &&
		!((CallContext *) fcinfo->context)->atomic;
	MemoryContext context = CurrentMemoryContext;
	PinpointQuery query;
	TimestampTz until;
	TupleDesc	row_type;
	int			limit;

	pinpoint_preload_check();
	pinpoint_changed_since_check_isolation("pinpoint.wait()");
	PreventInTransactionBlock(is_top_level, "pinpoint.wait()");
	pinpoint_changed_since_get_arguments(&fcinfo->args[1], &fcinfo->args[0],
										 &query);
	until = end_of_wait(&fcinfo->args[2]);

	/* All catalogs are read first: the extension may be dropped meanwhile. */
	row_type = pinpoint_changed_since_row_type(fcinfo, &known_row_type);
	limit = superuser_arg(GetSessionUserId()) ? -1 : pinpoint_max_waiting;

	release_snapshots();
	check_may_wait();
	pinpoint_changed_since_execute(&query);
	if (query.nchanged == 0 && query.known && until > GetCurrentTimestamp())
	{
		wait_for_change(&query, until, limit);
		MemoryContextSwitchTo(context);
	}
	EnsurePortalSnapshotExists();
	PG_RETURN_DATUM(pinpoint_changed_since_result(&query, row_type));
}

/*
 * The time at which a timeout that begins now is over.
 *
 * Errors: those of adding an interval.
 */
static TimestampTz
end_of_wait(NullableDatum *timeout)
{
	Datum		now = TimestampTzGetDatum(GetCurrentTimestamp());

	if (timeout->isnull)
		return DT_NOEND;
	return DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
												   now, timeout->value));
}

/*
 * Release the snapshots of the CALL statement, and of the DO statement or the
 * procedure that has executed it.
 */
static void
release_snapshots(void)
{
	Portal		portal = ActivePortal;

	if (portal != NULL && portal->portalSnapshot != NULL &&
		ActiveSnapshotSet() && GetActiveSnapshot() == portal->portalSnapshot)
	{
		portal->portalSnapshot = NULL;
		PopActiveSnapshot();
		if (portal->holdSnapshot != NULL)
		{
			/* It would protect values in the result, which has none yet. */
			UnregisterSnapshotFromOwner(portal->holdSnapshot,
										portal->resowner);
			portal->holdSnapshot = NULL;
		}
	}
	InvalidateCatalogSnapshot();
}

/*
 * Check that the wait would hold back nothing, before the first look: whether
 * the session must wait depends on other sessions.
 *
 * Errors: ERRCODE_ACTIVE_SQL_TRANSACTION if the transaction has an ID, or if a
 * snapshot remains.
 */
static void
check_may_wait(void)
{
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("pinpoint.wait() cannot run in a transaction that has changed data"),
				 errhint("Commit the transaction before.")));
	if (HaveRegisteredOrActiveSnapshot() ||
		TransactionIdIsValid(MyProc->xmin))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("pinpoint.wait() cannot run while a query is active"),
				 errdetail("The snapshot of the query would hold back VACUUM."),
				 errhint("Call it as a statement of its own.")));
}

/*
 * Wait until a channel has changed or the time is over, and execute the query
 * for the last time.
 *
 * limit: see pinpoint_waiters_begin().
 */
static void
wait_for_change(PinpointQuery *query, TimestampTz until, int limit)
{
	char		(*names)[NAMEDATALEN];
	TimestampTz looked_at;

	names = palloc_extended(Max(query->nchannels, 1) * sizeof(*names),
							MCXT_ALLOC_HUGE);
	for (int i = 0; i < query->nchannels; i++)
		text_to_cstring_buffer(DatumGetTextPP(query->channels[i]), names[i],
							   NAMEDATALEN);

	/* A snapshot would hold back VACUUM; see check_may_wait(). */
	Assert(!TransactionIdIsValid(MyProc->xmin));
	AssertNoLockHeld();

	PG_ENSURE_ERROR_CLEANUP(end_waiting, (Datum) 0);
	{
		begin_waiting(query->nchannels, limit);
		pinpoint_positions_enter_waiter(names, query->nchannels);
		for (;;)
		{
			/*
			 * This comes after the entry, with a full barrier in between; see
			 * waiters.c.
			 */
			pinpoint_changed_since_execute(query);
			looked_at = GetCurrentTimestamp();
			if (query->nchanged > 0 || looked_at >= until)
				break;
			sleep_until(until);
			if (!pinpoint_waiters_woken())
				continue;
			if (query->nchannels > PINPOINT_MAX_WAIT_CHANNELS)
				pause_since(looked_at, until);
			pinpoint_positions_enter_waiter(names, query->nchannels);
		}
	}
	PG_END_ENSURE_ERROR_CLEANUP(end_waiting, (Datum) 0);
	end_waiting(0, (Datum) 0);
	pfree(names);
}

/*
 * Errors: ERRCODE_CONFIGURATION_LIMIT_EXCEEDED.
 */
static void
begin_waiting(int nchannels, int limit)
{
	if (!pinpoint_waiters_begin(nchannels, limit))
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many sessions of role \"%s\" wait",
						GetUserNameFromId(GetSessionUserId(), false)),
				 errdetail("\"pinpoint.max_waiting\" is %d.", limit),
				 errhint("Increase \"pinpoint.max_waiting\" for this role, or use pinpoint.changed_since().")));
}

/*
 * Also called when the session ends while it waits.
 */
static void
end_waiting(int code, Datum arg)
{
	pinpoint_waiters_end();
}

/*
 * Sleep until PAUSE_BETWEEN_LOOKS milliseconds have passed since a time, or
 * until another time.  Meanwhile this session is in no list, so it costs
 * nothing to those that notify.
 *
 * Errors: those of sleep_until().
 */
static void
pause_since(TimestampTz looked_at, TimestampTz until)
{
	TimestampTz end = TimestampTzPlusMilliseconds(looked_at,
												  PAUSE_BETWEEN_LOOKS);
	TimestampTz now;

	/* If the clock was set back, do not wait for it. */
	while ((now = GetCurrentTimestamp()) < Min(end, until) && now >= looked_at)
		sleep_until(Min(end, until));
}

/*
 * Wait until the latch is set, or until a given time, LOOK_INTERVAL at most:
 * also if the clock was set back.
 *
 * Errors: the statement is cancelled, or the session ends.  It ends, too, when
 * the client has closed the connection, where the operating system reports
 * this.
 */
static void
sleep_until(TimestampTz until)
{
	long		msec =
		Min(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until),
			LOOK_INTERVAL);

	if (FeBeWaitSet != NULL && WaitEventSetCanReportClosed())
	{
		WaitEvent	events[PINPOINT_FEBE_EVENTS];
		int			n;

		/* All who use this set change the events of the socket first. */
		ModifyWaitEvent(FeBeWaitSet, PINPOINT_FEBE_SOCKET, WL_SOCKET_CLOSED,
						NULL);
		n = WaitEventSetWait(FeBeWaitSet, msec, events, lengthof(events),
							 wait_event());
		for (int i = 0; i < n; i++)
		{
			if (events[i].events & WL_POSTMASTER_DEATH)
				ereport(FATAL,
						(errcode(ERRCODE_ADMIN_SHUTDOWN),
						 errmsg("terminating connection due to unexpected postmaster exit")));
			if (events[i].events & WL_SOCKET_CLOSED)
			{
				ClientConnectionLost = true;
				InterruptPending = true;
			}
		}
	}
	else
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, msec,
						 wait_event());
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

static uint32
wait_event(void)
{
	static uint32 number = 0;

	if (number == 0)
		number = PINPOINT_WAIT_EVENT("PinpointWait");
	return number;
}
