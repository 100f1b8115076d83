/*-------------------------------------------------------------------------
 *
 * replay_blockers.c
 *		Ends sessions that block replay because their clients do not read.
 *
 * To replay DROP DATABASE, CREATE DATABASE with the strategy FILE_COPY, or DROP
 * TABLESPACE, the startup process asks all processes to close their files (a
 * ProcSignalBarrier), and waits until all have done so.  A session that waits for its
 * client to read does not respond.  PostgreSQL waits for it without limit, and so do
 * replay and a promotion.  Without notifications, this needs a client that sends a
 * query and does not read the result.  A listener receives data without having sent a
 * query, so it happens with any client that is stuck.
 *
 * The startup process itself only waits meanwhile, so the waker acts.  While replay
 * waits in this way, the waker evicts sessions that have been sending notifications
 * for longer than a limit:
 *
 *	max_standby_streaming_delay		the time for which sessions may delay replay.
 *									With -1, replay waits without limit.
 *	MIN_LIMIT						the minimum, so that a client that reads is not
 *									disconnected by chance; and the limit during a
 *									promotion, whatever the setting is: a failover
 *									does not wait.
 *
 * DROP DATABASE also ends all sessions of the database, whatever the settings are.
 * From PostgreSQL 16 on, a session that waits for its client to read does not notice
 * this, and PostgreSQL waits for it without limit and without a wait event.  So the
 * startup process stores which database it drops, and the waker evicts such sessions
 * there after MIN_LIMIT.
 *
 * This file does not end sessions whose clients do not read the result of a query.
 *
 * On a primary, the session that drops the database waits in the same way, with and
 * without the library.  This blocks no other session, and can be cancelled.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlogrecovery.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/standby.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "listener/eviction.h"
#include "standby/replay_blockers.h"

/* Milliseconds; see the top of this file. */
#define MIN_LIMIT				1000

/*
 * The state of the startup process.  It is written by the startup process, and
 * read by the waker, without a lock: a PGPROC is never freed.
 */
typedef struct ReplayWaitControl
{
	PGPROC	   *volatile startup_process;
	volatile Oid dropped_database;	/* InvalidOid if it does not drop one */
} ReplayWaitControl;

static ReplayWaitControl *replay_wait_control = NULL;

static bool is_waiting(void);
static int	limit_in_ms(void);

Size
pinpoint_replay_blockers_shmem_size(void)
{
	return MAXALIGN(sizeof(ReplayWaitControl));
}

void
pinpoint_replay_blockers_shmem_init(void)
{
	bool		found;

	replay_wait_control =
		ShmemInitStruct("pg_pinpoint replay",
						pinpoint_replay_blockers_shmem_size(), &found);
	if (!found)
	{
		replay_wait_control->startup_process = NULL;
		replay_wait_control->dropped_database = InvalidOid;
	}
}

/*
 * Called by the startup process when it begins to replay.
 */
void
pinpoint_replay_blockers_begin(void)
{
	replay_wait_control->dropped_database = InvalidOid;
	replay_wait_control->startup_process = MyProc;
}

/*
 * Called when replay begins to drop a database, and with InvalidOid when it
 * has dropped it.
 */
void
pinpoint_replay_blockers_set_dropped(Oid dboid)
{
	replay_wait_control->dropped_database = dboid;
}

void
pinpoint_replay_blockers_end(void)
{
	replay_wait_control->startup_process = NULL;
}

/*
 * Evict the sessions for which replay has waited too long.  Called by the
 * waker, at intervals, during recovery.
 *
 * The state that it reads can change at any time.  At worst it evicts a
 * session for which replay no longer waits, but whose client has not read for
 * the same time.
 */
void
pinpoint_replay_blockers_check(void)
{
	static TimestampTz waiting_since = 0;	/* as observed by this function */
	Oid			dropped = replay_wait_control->dropped_database;
	bool		for_barrier = is_waiting();
	TimestampTz now;
	int			limit;
	int			n;

	if (!for_barrier && !OidIsValid(dropped))
	{
		waiting_since = 0;
		return;
	}
	now = GetCurrentTimestamp();
	if (waiting_since == 0 || waiting_since > now)
		waiting_since = now;

	/* No setting protects the sessions of a database that is dropped. */
	limit = for_barrier ? limit_in_ms() : MIN_LIMIT;
	if (limit < 0 ||
		!TimestampDifferenceExceeds(waiting_since, now, MIN_LIMIT / 2))
		return;

	n = pinpoint_evict_senders(for_barrier ? InvalidOid : dropped,
							   TimestampTzPlusMilliseconds(now, -limit));
	if (n > 0)
		ereport(LOG,
				(errmsg_plural("disconnecting %d listener because replay waits for it",
							   "disconnecting %d listeners because replay waits for them",
							   n, n),
				 errdetail_plural("Its client does not read its notifications.",
								  "Their clients do not read their notifications.",
								  n)));
}

static bool
is_waiting(void)
{
	PGPROC	   *startup_process = replay_wait_control->startup_process;

	return startup_process != NULL &&
		*(volatile uint32 *) &startup_process->wait_event_info ==
		WAIT_EVENT_PROC_SIGNAL_BARRIER;
}

/*
 * How many milliseconds may a session send before it is evicted?  -1 means no
 * limit.
 */
static int
limit_in_ms(void)
{
	/*
	 * While the startup process waits, it does not notice the request itself.
	 */
	if (CheckPromoteSignal())
		return MIN_LIMIT;
	if (max_standby_streaming_delay < 0)
		return -1;
	return Max(max_standby_streaming_delay, MIN_LIMIT);
}
