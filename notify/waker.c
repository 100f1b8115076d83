/*-------------------------------------------------------------------------
 *
 * waker.c
 *		The background worker that signals listeners.
 *
 * A sender that must signal more than a few sessions adds all of them to a
 * list, and this process signals them; see publication.c.  It also publishes
 * the batches that senders leave to it when a slow commit has held back many;
 * see commit_order.c.  It starts as soon as sessions can connect, also during
 * recovery.  If it ends, it is restarted after a second.  Delivery does not
 * depend on it: without a waker, senders signal all listeners, and publish all
 * batches.  If it exists and does not run, others do its work after a tenth of
 * a second; see commit/waker_reserve.c.
 *
 * It connects without a database, because pg_stat_activity does not show a
 * background worker that is not connected.
 *
 * While nobody sends, it also signals listeners again that have not reacted to
 * a signal, as senders do.  It reassigns notifications of sessions that share
 * channels and stay in a transaction (wakeup/reassign.c).  It returns disk
 * space that the log does not need any more, and sends the heartbeats; see
 * heartbeat.c.
 *
 * During recovery nobody sends.  Then it also checks for listeners that are
 * far behind (slow_listener.c), and for sessions that block replay
 * (replay_blockers.c).  On a primary it writes to the WAL whether
 * notifications are replicated (replication_status.c).
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
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/interval.h"
#include "base/settings.h"
#include "commit/commit_order.h"
#include "commit/heartbeat.h"
#include "listener/evict.h"
#include "listener/slow_listener.h"
#include "live/applied_prepared.h"
#include "positions/waiters.h"
#include "queue/message_log.h"
#include "standby/replay_blockers.h"
#include "standby/replication_status.h"
#include "waker.h"
#include "wakeup/publication.h"
#include "wakeup/reassign.h"
#include "wakeup/waker_list.h"
#include "wakeup/waker_progress.h"
#include "wakeup/wakeup.h"

/*
 * Milliseconds to sleep.  Senders do not wake the waker for a few listeners, so
 * it must look by itself whether they need a reminder.
 */
#define SLEEP				1000

/* The same, while disk space is freed step by step. */
#define SLEEP_WHILE_SHRINKING	1

/*
 * Milliseconds between two executions of the rest of the work, while there is
 * always a session to signal.
 */
#define LOOK_WHILE_BUSY		500

/* Seconds after which the postmaster restarts the waker. */
#define RESTART_INTERVAL	1

static const char *library_name(Size size);
static void at_exit(int code, Datum arg);
static void check_slow_listeners(void);

/*
 * When the library is loaded: register the waker with the postmaster.
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
 * Returns the name by which the worker loads this library: the path of its
 * file, because the server may preload a library by path.  Before PostgreSQL
 * 17, the path may be too long.  Then returns the short name if it means the
 * same file, else NULL.
 *
 * size: of bgw_library_name, in bytes.
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
 * Main function of the worker.
 */
void
pinpoint_waker_main(Datum arg)
{
	uint32		wait_event = PINPOINT_WAIT_EVENT("PinpointWaker");
	TimestampTz looked_at = 0;

	Assert(MyBackendType == B_BG_WORKER);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	before_shmem_exit(at_exit, (Datum) 0);
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_waker_list_set_latch(MyLatch);
	LWLockRelease(PinpointOrderLock);

	while (!ShutdownRequestPending)
	{
		uint64		wanted = pinpoint_waker_progress_begin_round();
		long		sleep = SLEEP;
		long		next_heartbeat;
		long		next_status;
		bool		busy;
		TimestampTz now;

		AssertNoLockHeld();
		Assert(!IsTransactionState());

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		/*
		 * Under load, the lists may never be empty.  So each round does a
		 * part of everything, except what takes long and need not be done
		 * more often.
		 */
		next_heartbeat = pinpoint_heartbeat_send();
		next_status = pinpoint_replication_status_write();
		busy = pinpoint_commit_order_continue();
		busy |= pinpoint_publication_signal_listed(false) >= 0 ||
			PINPOINT_FAULT(BUSY_WAKER);
		busy |= pinpoint_waiters_wake_queued();

		now = GetCurrentTimestamp();
		if (busy &&
			!pinpoint_interval_has_passed(looked_at, now, LOOK_WHILE_BUSY))
			continue;

		if (RecoveryInProgress())
		{
			sleep = pinpoint_replay_blockers_check();
			if (pinpoint_message_log_kept() > 0)
				check_slow_listeners();
		}

		pinpoint_evict_again();
		pinpoint_applied_prepared_take_over();
		if (pinpoint_message_log_kept() > 0)
		{
			(void) pinpoint_wakeup_remind();
			if (pinpoint_reassign_stalled())
				continue;		/* and look again in the next round */
		}
		if (pinpoint_message_log_give_back())
			sleep = SLEEP_WHILE_SHRINKING;
		looked_at = now;
		if (busy)
			continue;

		/* All that was left to it before this round is done. */
		pinpoint_waker_progress_end_round(wanted);
		if (next_heartbeat >= 0)
			sleep = Min(sleep, next_heartbeat);
		if (next_status >= 0)
			sleep = Min(sleep, next_status);
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 sleep, wait_event);
		ResetLatch(MyLatch);
	}

	/* With exit status 0, the postmaster would not restart the worker. */
	proc_exit(1);
}

/*
 * Check for slow listeners, as senders do on a primary.  This needs a
 * transaction, because a warning contains names from catalogs.
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
 * The worker ends: from here on, senders send all signals and publish all
 * batches.  Publish those that are left, and send the signals that are still in
 * the list.
 */
static void
at_exit(int code, Datum arg)
{
	LWLockReleaseAll();
	AssertNoLockHeld();

	/* An error may have ended a round.  After this, others take the list. */
	(void) pinpoint_publication_signal_listed(true);
	pinpoint_commit_order_remove_waker();
	pinpoint_commit_order_at_exit();
	while (pinpoint_publication_signal_listed(false) >= 0)
		 /* loop */ ;
	while (pinpoint_waiters_wake_queued())
		 /* loop */ ;
}
