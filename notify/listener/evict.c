/*-------------------------------------------------------------------------
 *
 * evict.c
 *		Ends sessions of listeners that block others.
 *
 * To evict a listener is to mark its slot with the reason, and to send SIGTERM
 * to its session, as pg_terminate_backend() does.  No further batch is
 * published for it.  Its last message contains the reason; see
 * disconnect_reason.c.  These processes evict:
 *
 *	senders			listeners whose backlog exceeds pinpoint.max_listener_lag;
 *					on a standby the waker does so; listeners on channels whose
 *					committed changes cannot be notified
 *	the startup		listeners that keep space which replay needs; all listeners
 *	process			of a database, if notifications for it cannot be delivered
 *	the waker		sessions that block replay and whose clients do not read
 *
 * Slots are marked under PinpointOrderLock.  The signals are sent after its
 * release.  A session may have ended by then, and another process may have its
 * PID.  This is as unlikely as with pg_terminate_backend().
 *
 * The process that marks a slot may stop before it sends the signal.  No batch
 * would be published for the session any more, and its client would not know.
 * So once a second, the waker and senders signal the marked sessions that do
 * not report yet why they end; and a session that finds itself marked at the
 * end of a transaction ends by itself.
 *
 * A session may end much later, for instance if it is reporting an error to a
 * client that does not read.  Therefore its unread batches are released at
 * once if it has not begun to read.  (It will not begin any more.) But a
 * session that shares channels keeps them until it has ended, because it may
 * be processing its assigned notifications at this moment.
 *
 * This file allocates memory only at server start, and throws no error.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "postmaster/startup.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/counters.h"
#include "base/hash.h"
#include "base/interval.h"
#include "listener/evict.h"
#include "queue/message_log.h"
#include "wakeup/channel_map.h"
#include "wakeup/slots_read.h"

/*
 * Milliseconds between two checks of whether evicted sessions keep a batch.
 * These sessions do not wake the startup process: they would have to know that
 * it waits, in each of the places where they release a batch.  It waits only if
 * the queue of a standby is full.
 */
#define WAIT_INTERVAL			2

/* Number of these checks before they are signalled again. */
#define SLEEPS_PER_SIGNAL		50

/* Milliseconds for which replay waits for them, at most. */
#define MAX_WAIT				5000

/* Milliseconds between two signals to a session that was told to end. */
#define AGAIN_INTERVAL			1000

/* A session to be signalled. */
typedef struct EvictedSession
{
	int			slotno;
	int			pid;
} EvictedSession;

typedef struct EvictionControl
{
	TimestampTz last_signals;	/* time of the last call of evict_again() that
								 * has looked; under PinpointOrderLock, and
								 * also read without it */
} EvictionControl;

static EvictionControl *eviction_control = NULL;

/*
 * The sessions to be signalled in the last pass of this process: room for
 * MaxBackends elements, allocated by the postmaster and inherited.
 */
static EvictedSession *evicted = NULL;
static int	nevicted = 0;

/*
 * By slot: the PID of a listener that a look-up has found, or 0.  Allocated
 * likewise.
 */
static int *found_pids = NULL;

/*
 * Has this pass removed a pin that may have been the last one of the oldest
 * epoch?
 */
static bool trim_needed = false;

static uint64 kept_by(int slotno);
static bool waits_for_client(int slotno, PinpointSlotOwner *owner);
static TimestampTz sending_since(const PinpointSlotOwner *owner);
static void find_listeners(const PinpointListeners *listeners, void *arg);
static void begin_pass(void);
static void evict(int slotno, PinpointEviction reason);
static void to_signal(int slotno);
static int	end_pass(void);
static void signal_all(void);
static bool any_keeps(void);

Size
pinpoint_evict_shmem_size(void)
{
	return MAXALIGN(sizeof(EvictionControl));
}

/*
 * The postmaster calls this at start and at restart after a crash.
 */
void
pinpoint_evict_shmem_init(void *memory)
{
	eviction_control = memory;
	if (evicted != NULL)
		return;
	evicted = MemoryContextAlloc(TopMemoryContext,
								 MaxBackends * sizeof(EvictedSession));
	found_pids = MemoryContextAlloc(TopMemoryContext,
									MaxBackends * sizeof(int));
}

/*
 * Signal the sessions again that were told to end and do not report yet why
 * they end.  Does this once a second.  Called before a commit that notifies,
 * and by the waker.  Does not fail.
 */
void
pinpoint_evict_again(void)
{
	const volatile EvictionControl *control = eviction_control;
	TimestampTz now;

	AssertNoLockHeld();
	if (likely(!pinpoint_slots_read_any_evicted()) ||
		!pinpoint_interval_has_passed(control->last_signals,
									  GetCurrentTimestamp(), AGAIN_INTERVAL))
		return;

	begin_pass();
	now = GetCurrentTimestamp();
	if (pinpoint_interval_has_passed(control->last_signals, now,
									 AGAIN_INTERVAL))
	{
		eviction_control->last_signals = now;
		for (int i = 0; i < MaxBackends; i++)
		{
			PinpointSlotOwner owner;

			if (pinpoint_slots_read_owner(i, &owner) &&
				owner.evicted != PINPOINT_NOT_EVICTED && !owner.ending &&
				pinpoint_interval_has_passed(owner.evicted_at, now,
											 AGAIN_INTERVAL))
				to_signal(i);
		}
	}
	(void) end_pass();
}

/*
 * Returns the number of the first publication that the owner of a slot keeps,
 * 0 if it keeps none or the slot has no owner.  The caller holds
 * PinpointOrderLock, in shared mode at least.
 */
static uint64
kept_by(int slotno)
{
	PinpointSlotOwner owner;

	return pinpoint_slots_read_owner(slotno, &owner) ? owner.first_sequence : 0;
}

/*
 * Evict all listeners that are more than limit bytes behind.
 */
void
pinpoint_evict_lagging(Size limit)
{
	begin_pass();
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlotOwner owner;

		if (pinpoint_slots_read_owner(i, &owner) && owner.lag > limit)
			evict(i, PINPOINT_EVICTED_LAGGING);
	}
	(void) end_pass();
}

/*
 * Evict all listeners that keep a batch in the oldest part of the kept
 * publications: 1/divisor of them.  Notifications that were assigned to these
 * sessions on shared channels are not reassigned, because other sessions would
 * keep them then.
 *
 * Returns the number of sessions, without those that were evicted for this
 * reason before.
 */
int
pinpoint_evict_oldest(int divisor)
{
	uint64		oldest = 0;
	uint64		limit;

	begin_pass();
	for (int i = 0; i < MaxBackends; i++)
	{
		uint64		sequence = kept_by(i);

		if (sequence != 0 && (oldest == 0 || sequence < oldest))
			oldest = sequence;
	}
	limit = oldest + (pinpoint_message_log_sequence() - oldest) / divisor;
	for (int i = 0; i < MaxBackends && oldest != 0; i++)
	{
		uint64		sequence = kept_by(i);

		if (sequence != 0 && sequence <= limit)
			evict(i, PINPOINT_EVICTED_QUEUE_FULL);
	}
	return end_pass();
}

/*
 * Called by the startup process, to wait for the sessions that it has evicted
 * in its last pass.  Returns false if none of them keeps a batch any more, or
 * if MAX_WAIT milliseconds have passed.  Otherwise returns true, after a short
 * sleep.
 *
 * began: when the first wait began.  The time is measured, because a sleep can
 * take much longer than WAIT_INTERVAL on a busy machine.
 */
bool
pinpoint_evict_wait(const instr_time *began)
{
	static int	sleeps = 0;
	instr_time	waited;

	/* Only the startup process waits. */
	AssertNoLockHeld();
	AssertStartupProcess();

	INSTR_TIME_SET_CURRENT(waited);
	INSTR_TIME_SUBTRACT(waited, *began);
	if (INSTR_TIME_GET_MILLISEC(waited) >= MAX_WAIT || !any_keeps())
		return false;

	pg_usleep(WAIT_INTERVAL * 1000L);
	PINPOINT_STARTUP_INTERRUPTS();

	/*
	 * One signal may not be sufficient: after the first one, a session sends
	 * its last message, and may wait for its client to read it.  More signals
	 * than this would take processor time from the sessions that end.
	 */
	if (++sleeps % SLEEPS_PER_SIGNAL == 0)
		signal_all();
	return true;
}

/*
 * Evict all listeners of a database, or of all databases if dboid is
 * InvalidOid.  Returns the number of sessions, without those that were evicted
 * before.
 *
 * with_lock: NULL, or a function to call in the same hold of
 * PinpointOrderLock.
 */
int
pinpoint_evict_database(Oid dboid, PinpointEviction reason,
						void (*with_lock) (void))
{
	begin_pass();
	if (with_lock != NULL)
		with_lock();
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlotOwner owner;

		if (pinpoint_slots_read_owner(i, &owner) &&
			(owner.dboid == dboid || !OidIsValid(dboid)))
			evict(i, reason);
	}
	return end_pass();
}

/*
 * A committed transaction of this database cannot notify some channels: evict
 * their listeners.  Sessions with a channel that does not fit into the channel
 * map may be among them.  Does not fail.
 *
 * channels: a list of char *.
 *
 * with_lock: a function to call in the same hold of PinpointOrderLock.
 *
 * The look-ups come before this hold, which is short therefore.  A session that
 * enters the map after a look-up commits its LISTEN later, so its next snapshot
 * sees the transaction.
 */
void
pinpoint_evict_listeners(List *channels, PinpointEviction reason,
						 void (*with_lock) (void))
{
	ListCell   *lc;

	AssertNoLockHeld();
	memset(found_pids, 0, MaxBackends * sizeof(int));
	foreach(lc, channels)
		pinpoint_channel_map_lookup(MyDatabaseId, lfirst(lc),
									pinpoint_hash_channel(lfirst(lc)),
									find_listeners, NULL);

	begin_pass();
	with_lock();
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlotOwner owner;

		/* Another session may have got the slot since. */
		if (pinpoint_slots_read_owner(i, &owner) &&
			owner.dboid == MyDatabaseId &&
			(owner.pid == found_pids[i] || owner.wakes_for_all))
			evict(i, reason);
	}
	(void) end_pass();
}

/*
 * Also those that share the channel: it is not known which of them would have
 * received the notification.
 */
static void
find_listeners(const PinpointListeners *listeners, void *arg)
{
	int			n = listeners->nslots + listeners->nsharers;

	for (int i = 0; i < n; i++)
	{
		int			slotno =
			pinpoint_channel_entry_listener(listeners, i)->slotno;

		found_pids[slotno] = pinpoint_slots_read_pid(slotno);
	}
}

/*
 * Listeners of a database, or of all databases if dboid is InvalidOid, may
 * have missed notifications.  Evict those that listen on the channel of the
 * heartbeat.  The others must not begin to listen there.
 *
 * Returns the number of sessions, without those that were evicted before.
 *
 * with_lock: a function to call in the same hold of PinpointOrderLock.
 */
int
pinpoint_evict_heartbeat_listeners(Oid dboid, void (*with_lock) (void))
{
	begin_pass();
	with_lock();
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlotOwner owner;

		if (!pinpoint_slots_read_owner(i, &owner) ||
			(OidIsValid(dboid) && owner.dboid != dboid))
			continue;
		if (owner.heartbeats)
			evict(i, PINPOINT_EVICTED_UNREPLICATED);
		else
			pinpoint_slot_set_missed(i);
	}
	return end_pass();
}

/*
 * Evict all listeners that block replay while they wait for their clients to
 * read notifications.  A session that was evicted earlier is signalled again if
 * it blocks replay and waits for its client, for instance with its last
 * message.  Returns the number of sessions, without those.
 *
 * blocks: decides whether a session blocks replay.
 *
 * Sets *any to whether any listener waits for its client.
 */
int
pinpoint_evict_senders(PinpointBlocksReplay blocks, bool *any)
{
	bool		found = false;
	int			nagain = 0;

	AssertNoLockHeld();
	*any = false;
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlotOwner owner;

		if (!waits_for_client(i, &owner))
			continue;
		*any = true;
		found |= blocks(owner.proc, sending_since(&owner));
	}
	LWLockRelease(PinpointOrderLock);
	if (!found)
		return 0;

	begin_pass();
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlotOwner owner;

		if (!waits_for_client(i, &owner) ||
			!blocks(owner.proc, sending_since(&owner)))
			continue;
		if (owner.evicted != PINPOINT_NOT_EVICTED)
		{
			to_signal(i);
			nagain++;
		}
		else
			evict(i, PINPOINT_EVICTED_REPLAY_WAITS);
	}
	return end_pass() - nagain;
}

/*
 * Does the owner of a slot wait for its client to read notifications, or, after
 * its eviction, anything?  Sets *owner if the slot has one.  The caller holds
 * PinpointOrderLock.
 */
static bool
waits_for_client(int slotno, PinpointSlotOwner *owner)
{
	AssertHeld(PinpointOrderLock);

	return pinpoint_slots_read_owner(slotno, owner) &&
		(owner->evicted != PINPOINT_NOT_EVICTED || owner->sending_since != 0) &&
		*(volatile uint32 *) &owner->proc->wait_event_info ==
		WAIT_EVENT_CLIENT_WRITE;
}

/*
 * Since when has the owner of a slot been sending?  0 if it was evicted.
 */
static TimestampTz
sending_since(const PinpointSlotOwner *owner)
{
	return owner->evicted != PINPOINT_NOT_EVICTED ? 0 : owner->sending_since;
}

/*
 * Begin a pass: acquire PinpointOrderLock exclusively.  evict() can be called
 * until end_pass() is.
 */
static void
begin_pass(void)
{
	AssertNoLockHeld();
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	nevicted = 0;
	trim_needed = false;
}

static void
evict(int slotno, PinpointEviction reason)
{
	if (pinpoint_slot_evict(slotno, reason, &trim_needed))
		to_signal(slotno);
}

/*
 * Signal the owner of a slot at the end of the pass.
 */
static void
to_signal(int slotno)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(nevicted < MaxBackends);

	evicted[nevicted].slotno = slotno;
	evicted[nevicted++].pid = pinpoint_slots_read_pid(slotno);
}

/*
 * End a pass: release the lock, and signal the sessions.  Returns their
 * number.
 */
static int
end_pass(void)
{
	AssertHeldExclusive(PinpointOrderLock);
	pinpoint_slots_check(false);
	if (trim_needed)
		pinpoint_message_log_trim();
	LWLockRelease(PinpointOrderLock);
	signal_all();
	return nevicted;
}

static void
signal_all(void)
{
	AssertNoLockHeld();
	for (int i = 0; i < nevicted; i++)
		(void) kill(evicted[i].pid, SIGTERM);
}

/*
 * Does a session of the last pass keep a batch?  Removes those that keep none
 * from the array: they may have ended, and another process may get their PID.
 */
static bool
any_keeps(void)
{
	int			n = 0;

	AssertNoLockHeld();
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	for (int i = 0; i < nevicted; i++)
	{
		if (pinpoint_slots_read_pid(evicted[i].slotno) == evicted[i].pid &&
			kept_by(evicted[i].slotno) != 0)
			evicted[n++] = evicted[i];
	}
	LWLockRelease(PinpointOrderLock);
	nevicted = n;
	return n > 0;
}
