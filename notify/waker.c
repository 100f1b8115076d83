/*-------------------------------------------------------------------------
 *
 * waker.c
 *		The background worker that signals listeners.
 *
 * A sender that must signal more than a few sessions adds the others to a list, and
 * this process signals them; see wakeup.c.  It starts as soon as sessions can connect,
 * also during recovery.  If it ends, it is restarted after a second.  Nothing depends
 * on it: without a waker, senders signal all listeners.
 *
 * It connects without a database, because pg_stat_activity does not show a background
 * worker that is not connected.
 *
 * While nobody sends, it also signals listeners again that have not reacted to a
 * signal, as senders do.  It returns disk space that the log does not need any more,
 * and sends the heartbeats; see heartbeat.c.
 *
 * During recovery nobody sends.  Then it also checks for listeners that are far behind
 * (slow_listener.c), and for sessions that block replay (replay_blockers.c).  On a
 * primary it writes to the WAL whether notifications are replicated
 * (replication_status.c).
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"

#include "base/compat.h"
#include "base/settings.h"
#include "commit/heartbeat.h"
#include "commit/replication_status.h"
#include "listener/slow_listener.h"
#include "queue/message_log.h"
#include "standby/replay_blockers.h"
#include "waker.h"
#include "wakeup/wakeup.h"

/*
 * How many are signalled before the list is looked at again: those who have
 * begun to read meanwhile need no signal any more.
 */
#define SIGNALS_PER_ROUND	16

/* Milliseconds to sleep, while somebody has something to read, and if not. */
#define SLEEP_WHILE_KEPT	1000
#define SLEEP_WHILE_EMPTY	10000

/* Likewise during recovery, as nobody else comes by, and as it may end. */
#define SLEEP_IN_RECOVERY	1000

/* Seconds after which the postmaster starts it again. */
#define RESTART_INTERVAL	1

static const char *library_name(Size size);
static void at_exit(int code, Datum arg);
static int	signal_listed(void);
static void check_slow_listeners(void);

/*
 * When the library is loaded: have the worker started with the server.
 */
void
pinpoint_waker_register(void)
{
	BackgroundWorker worker = {0};
	const char *library;

	if (!pinpoint_waker)
		return;
	library = library_name(sizeof(worker.bgw_library_name));
	if (library == NULL)
	{
		ereport(WARNING,
				(errmsg("the pg_pinpoint waker is not started because the path of the library is too long")));
		return;
	}

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = RESTART_INTERVAL;
	strlcpy(worker.bgw_library_name, library,
			sizeof(worker.bgw_library_name));
	snprintf(worker.bgw_function_name, sizeof(worker.bgw_function_name),
			 "pinpoint_waker_main");
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "pg_pinpoint waker");
	snprintf(worker.bgw_type, sizeof(worker.bgw_type), "pg_pinpoint waker");
	RegisterBackgroundWorker(&worker);
}

/*
 * By which name the worker finds this library: the file that it was loaded from, as a
 * server may be told to preload one by its path.  Before PostgreSQL 17 that may be too
 * long.  Then the short name will do if it means the same file; if not, NULL.
 */
static const char *
library_name(Size size)
{
	char		installed[MAXPGPATH];
	Dl_info		info;

	if (dladdr(&pinpoint_waker, &info) == 0)
		return "pg_pinpoint";
	if (strlen(info.dli_fname) < size)
		return info.dli_fname;
	snprintf(installed, sizeof(installed), "%s/pg_pinpoint.so", pkglib_path);
	return strcmp(info.dli_fname, installed) == 0 ? "pg_pinpoint" : NULL;
}

/*
 * The worker.
 */
void
pinpoint_waker_main(Datum arg)
{
	uint32		wait_event = PINPOINT_WAIT_EVENT("PinpointWaker");

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	before_shmem_exit(at_exit, (Datum) 0);
	pinpoint_wakeup_set_waker(MyLatch);

	while (!ShutdownRequestPending)
	{
		long		sleep = SLEEP_WHILE_EMPTY;
		long		next_heartbeat;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		/* This comes first, as under load the list may never be empty. */
		next_heartbeat = pinpoint_heartbeat_send();
		if (signal_listed() >= 0)
			continue;

		if (RecoveryInProgress())
		{
			pinpoint_replay_blockers_check();
			if (pinpoint_message_log_kept() > 0)
				check_slow_listeners();
			sleep = SLEEP_IN_RECOVERY;
		}
		else
			pinpoint_replication_status_write();

		if (pinpoint_message_log_kept() > 0)
		{
			pinpoint_wakeup_remind();
			sleep = SLEEP_WHILE_KEPT;
		}
		pinpoint_message_log_give_back();
		if (next_heartbeat >= 0)
			sleep = Min(sleep, next_heartbeat);
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 sleep, wait_event);
		ResetLatch(MyLatch);
	}

	/* Not 0, which would mean that it is not to be started again. */
	proc_exit(1);
}

/*
 * Signal some of those that were handed over.  Returns how many, or -1 if there is
 * none in the list.
 */
static int
signal_listed(void)
{
	PinpointWakeup wakeups[SIGNALS_PER_ROUND];
	int			n = pinpoint_wakeup_take(wakeups, SIGNALS_PER_ROUND);

	if (n > 0)
		pinpoint_wakeup_signal(wakeups, n);
	return n;
}

/*
 * As senders do on a primary.  What a warning tells of a session is in catalogs.
 */
static void
check_slow_listeners(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	pinpoint_slow_listener_check();
	CommitTransactionCommand();
}

/*
 * From here on senders do it themselves.  What they have handed over until now is
 * still to be done.
 */
static void
at_exit(int code, Datum arg)
{
	pinpoint_wakeup_set_waker(NULL);
	while (signal_listed() >= 0)
		 /* loop */ ;
}
