/*-------------------------------------------------------------------------
 *
 * replay_blockers.c
 *		Ends sessions that block replay because their clients do not read.
 *
 * A session that waits for its client to read responds to no other process.
 * PostgreSQL waits for such a session without limit, and so do replay and a
 * promotion.  Without notifications, this needs a client that sends a query
 * and does not read the result.  A listener receives data without having sent
 * a query, so it happens with any client that is stuck.
 *
 * The rule: when replay waits for a session that sends notifications, the
 * session has the time that a query would have.  Then the waker evicts it.
 * (The startup process itself only waits.)
 *
 * A session that sends has few things for which replay can wait:
 *
 *	its files			DROP DATABASE, CREATE DATABASE with the strategy
 *						FILE_COPY and DROP TABLESPACE ask all processes to
 *						close their files (a ProcSignalBarrier).  PostgreSQL
 *						has no limit here, so this file computes the time that
 *						a query would have: see time_is_up().
 *	its database		recovery conflicts.  The startup process waits as long
 *						as
 *	its transaction		the settings say, and then marks the sessions that are
 *						to end. So a mark shows that the time is up, and for
 *						whom replay waits.
 *	a replication slot	likewise, from PostgreSQL 16 on.  Before 19, the
 *						session is not marked.
 *
 * A session that sends has no lock and no buffer pin.  If another library
 * makes it keep a lock, the session is marked.
 *
 * During a promotion the time is up, whatever the settings are, because a
 * failover does not wait.  A promotion is requested by a file or a signal, and
 * the startup process notices neither while it waits.  When it has noticed the
 * request, the file is gone.  So promotion_requested() asks for all three.
 *
 * While replay is paused or delayed on purpose, or does I/O, it waits for no
 * session, and none is evicted.
 *
 * A session must have been sending for MIN_TIME, so that a client that reads
 * is not disconnected by chance.  The waker looks at intervals of
 * CHECK_INTERVAL, and of CHECK_INTERVAL_SENDING while a session waits for its
 * client.  So a stuck client delays a promotion by less than a second.
 *
 * This file does not end sessions whose clients do not read the result of a
 * query.
 *
 * On a primary, the session that drops the database waits in the same way,
 * with and without the library.  This blocks no other session, and can be
 * cancelled.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/transam.h"
#include "access/xlogrecovery.h"
#include "replication/slot.h"
#include "replication/walreceiver.h"
#include "storage/proc.h"
#include "storage/spin.h"
#include "storage/standby.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "base/check.h"
#include "base/compat.h"
#include "listener/evict.h"
#include "standby/replay_blockers.h"

/* Milliseconds; see the top of this file. */
#define MIN_TIME				500
#define CHECK_INTERVAL			500
#define CHECK_INTERVAL_SENDING	50

/*
 * Milliseconds for which replay must have waited for a session that is not
 * marked.  A client that reads lets its session respond in this time.
 */
#define MIN_WAIT				250

/*
 * Written by the startup process, once, and read by the waker, without a lock
 * or a barrier: a PGPROC is never freed, and what the waker reads there does
 * not depend on this write.
 */
typedef struct ReplayWaitControl
{
	PGPROC	   *volatile startup_process;	/* NULL if it does not replay */
} ReplayWaitControl;

static ReplayWaitControl *replay_wait_control = NULL;

/* What the waker has observed in this check. */
static TimestampTz now = 0;
static uint32 wait_event = 0;	/* of the startup process */
static bool promoting = false;

/*
 * When the waker has first observed that the startup process waits for this
 * event while it replays this record.  It waits for the same event in many
 * records, and the waker does not see all that happens in between.
 */
static TimestampTz waiting_since = 0;
static XLogRecPtr record_end = InvalidXLogRecPtr;

static bool blocks_replay(PGPROC *proc, TimestampTz since);
static bool time_is_up(void);
static bool promotion_requested(void);
static bool owns_slot(PGPROC *proc);

Size
pinpoint_replay_blockers_shmem_size(void)
{
	return MAXALIGN(sizeof(ReplayWaitControl));
}

void
pinpoint_replay_blockers_shmem_init(void *memory)
{
	replay_wait_control = memory;
	replay_wait_control->startup_process = NULL;
}

/*
 * Called by the startup process when it begins to replay.  There is no call at
 * the end, because the last steps of a promotion can wait for sessions, too.
 * When recovery has ended, the waker does not call this file any more.
 */
void
pinpoint_replay_blockers_begin(void)
{
	AssertStartupProcess();
	Assert(MyProc != NULL && replay_wait_control->startup_process == NULL);

	replay_wait_control->startup_process = MyProc;
}

/*
 * Evict the sessions for which replay has waited too long.  Called by the
 * waker during recovery.  Returns the time until the next call, in
 * milliseconds.
 *
 * The state that it reads can change at any time.  At worst it evicts a
 * session for which replay no longer waits, but whose client has not read for
 * MIN_TIME.
 */
long
pinpoint_replay_blockers_check(void)
{
	PGPROC	   *startup_process = replay_wait_control->startup_process;
	XLogRecPtr	end;
	uint32		event;
	bool		any;
	int			n;

	AssertWaker();
	AssertNoLockHeld();

	if (startup_process == NULL)
		return CHECK_INTERVAL;
	event = *(volatile uint32 *) &startup_process->wait_event_info;
	end = GetCurrentReplayRecPtr(NULL);
	now = GetCurrentTimestamp();
	if (event != wait_event || end != record_end || waiting_since > now)
		waiting_since = now;
	wait_event = event;
	record_end = end;
	promoting = promotion_requested();
	Assert(waiting_since <= now);

	n = pinpoint_evict_senders(blocks_replay, &any);
	if (n > 0)
		ereport(LOG,
				(errmsg_plural("disconnecting %d listener because replay waits for it",
							   "disconnecting %d listeners because replay waits for them",
							   n, n),
				 errdetail_plural("Its client does not read its notifications.",
								  "Their clients do not read their notifications.",
								  n)));
	return any ? CHECK_INTERVAL_SENDING : CHECK_INTERVAL;
}

/*
 * Has replay waited too long for a session?  Its client does not read.
 *
 * since: when the session has begun to send; 0 if it was evicted already.
 *
 * The caller holds PinpointOrderLock.
 */
static bool
blocks_replay(PGPROC *proc, TimestampTz since)
{
	LocalTransactionId lxid;

	AssertHeld(PinpointOrderLock);
	Assert(proc != NULL && proc != replay_wait_control->startup_process);

	/*
	 * It may have begun to send in this check.  If the clock was set back, it
	 * may have been sending for long.
	 */
	if (since > now && since <= GetCurrentTimestamp())
		return false;
	if (since > now)
		since = 0;
	if (!TimestampDifferenceExceeds(since, now, MIN_TIME))
		return false;
	if (PINPOINT_HAS_RECOVERY_CONFLICT(proc))
		return true;

	/*
	 * A session that has begun to send after the beginning of the wait has
	 * responded before that.
	 */
	if (since > waiting_since ||
		!TimestampDifferenceExceeds(waiting_since, now, MIN_WAIT))
		return false;
	switch (wait_event)
	{
		case WAIT_EVENT_PROC_SIGNAL_BARRIER:
			return time_is_up();

			/*
			 * PostgreSQL applies no setting to slots.
			 */
		case WAIT_EVENT_REPLICATION_SLOT_DROP:
			return owns_slot(proc);

			/*
			 * Conflicts for which sessions are not marked yet.
			 */
		case WAIT_EVENT_RECOVERY_CONFLICT_SNAPSHOT:
			return promoting &&
				TransactionIdIsValid(*(volatile TransactionId *) &proc->xmin);
		case WAIT_EVENT_RECOVERY_CONFLICT_TABLESPACE:
			lxid = *(volatile LocalTransactionId *) &PINPOINT_PROC_LXID(proc);
			return promoting && LocalTransactionIdIsValid(lxid);
		default:
			return false;
	}
}

/*
 * Has replay waited as long as it would wait for a query?  This is computed as
 * PostgreSQL does it, from the time at which the WAL was received.  If it
 * comes from an archive, other processes do not know this time, and the
 * beginning of the wait counts.
 */
static bool
time_is_up(void)
{
	int			delay = max_standby_archive_delay;
	TimestampTz start = 0;

	if (promoting)
		return true;
	if (WalRcvStreaming())
	{
		delay = max_standby_streaming_delay;
		start = GetCurrentChunkReplayStartTime();
	}
	if (start == 0)
		start = waiting_since;
	return delay >= 0 && now >= TimestampTzPlusMilliseconds(start, delay);
}

/*
 * Has a promotion been requested?  See the top of this file.
 */
static bool
promotion_requested(void)
{
	const char *trigger = PINPOINT_PROMOTE_TRIGGER_FILE;
	struct stat file;

	return (trigger != NULL && trigger[0] != '\0' &&
			stat(trigger, &file) == 0) ||
		PromoteIsTriggered() || CheckPromoteSignal();
}

/*
 * Does a process own a replication slot?  Temporary slots belong to their
 * session until it ends.
 */
static bool
owns_slot(PGPROC *proc)
{
	bool		owns = false;

	AssertWaker();
	Assert(proc->pid != MyProcPid);

	for (int i = 0; i < max_replication_slots && !owns; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		SpinLockAcquire(&slot->mutex);
		owns = slot->in_use && PINPOINT_OWNS_SLOT(proc, slot);
		SpinLockRelease(&slot->mutex);
	}
	return owns;
}
