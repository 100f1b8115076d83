/*-------------------------------------------------------------------------
 *
 * slots.c
 *		One slot per listening session: its state, and its position in the log.
 *
 * A slot is in one of five states:
 *
 *	IDLE			no unread batch.  The slot has no position in the log.
 *	RESTING			likewise, but the session will check by itself soon, because of
 *					pinpoint.latency_target.
 *	SIGNALLED		a batch for this session was published; its epoch is
 *					pinned, and a signal is pending, or the session will check by
 *					itself.
 *	READING			the session reads from that batch to the one that was the last
 *					when it began.
 *	READING_AGAIN	more batches have been published for it since then.
 *
 * Reassigning a batch to a session counts as publishing it for the session, although
 * the slot has a separate position for that; see reassignment.c.
 *
 * A session that is evicted (see listener/eviction.c) is in any of these states until
 * it has ended.  If it was SIGNALLED, it may not have a position any more.
 *
 *					publish			session
 *	IDLE			SIGNALLED		-
 *	RESTING			SIGNALLED		IDLE when it finds no batch
 *	SIGNALLED		SIGNALLED		READING when it begins to read
 *	READING			READING_AGAIN	IDLE or RESTING when it is done
 *	READING_AGAIN	READING_AGAIN	SIGNALLED when it is done: by itself
 *
 * Only the step from IDLE to SIGNALLED sends a signal, so at most one is pending for a
 * session, however many batches are published.  Batches that are published after the
 * pinned epoch are kept as long as the pin, so the other steps need no separate pin.
 *
 * The session's own steps change only its own slot, and the pins of epochs, which are
 * atomic.  So they take PinpointOrderLock in shared mode.  This excludes publishers,
 * but allows listeners of one notification to begin and end concurrently, and sessions
 * to LISTEN and UNLISTEN concurrently.  Only the session that removes the last pin
 * from the oldest epoch takes the lock exclusively, to free batches that are no longer
 * kept.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/qunique.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/counters.h"
#include "base/first_number.h"
#include "base/locks.h"
#include "queue/message_log.h"
#include "wakeup/slots.h"

PinpointSlots *PinpointSlotArray = NULL;

/* Does this session own its slot? */
static bool registered = false;

/* Does the slot contain the time since when this session is sending? */
static bool sending = false;

/* Number of reminders that this session has handled since it was signalled. */
static uint32 answered = 0;

static PinpointSlot *my_slot(void);
static PinpointWakeState my_state(void);
static void trim(void);
static bool has_position(const PinpointPosition *position);
static bool is_listening(const PinpointSlot *slot);

static PinpointSlot *
my_slot(void)
{
	return &PinpointSlotArray->slots[PINPOINT_MY_SLOT_NUMBER];
}

Size
pinpoint_slots_shmem_size(void)
{
	return add_size(offsetof(PinpointSlots, slots),
					mul_size(MaxBackends, sizeof(PinpointSlot)));
}

void
pinpoint_slots_shmem_init(void)
{
	bool		found;

	PinpointSlotArray = ShmemInitStruct("pg_pinpoint sessions",
										pinpoint_slots_shmem_size(), &found);
	if (!found)
	{
		memset(PinpointSlotArray, 0, pinpoint_slots_shmem_size());
		PinpointSlotArray->waker_queue.first = -1;
		PinpointSlotArray->waker_queue.last = -1;
		dlist_init(&PinpointSlotArray->wakes_for_all);
		pg_atomic_init_u64(&PinpointSlotArray->joined, PINPOINT_FIRST_NUMBER);
		for (int i = 0; i < MaxBackends; i++)
		{
			pg_atomic_init_u64(&PinpointSlotArray->slots[i].joined, 0);
			pg_atomic_init_u64(&PinpointSlotArray->slots[i].sending_since, 0);
			pg_atomic_init_u32(&PinpointSlotArray->slots[i].commit_mark, 0);
		}
	}
}

/*
 * Register the slot of this session, unless it is registered: the session
 * begins to listen.
 *
 * While pid is 0, publishers skip the slot.  Therefore the lock is acquired in
 * shared mode, and sessions that execute LISTEN or UNLISTEN do not wait for
 * each other.  The fields are set before pid, for readers that hold the lock
 * in shared mode.
 */
void
pinpoint_slot_register(void)
{
	PinpointSlot *slot = my_slot();

	if (registered)
		return;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	Assert(slot->pid == 0);
	memset(slot, 0, offsetof(PinpointSlot, queued_for_waker));
	slot->dboid = MyDatabaseId;
	slot->proc = MyProc;
	slot->roleid = GetSessionUserId();
	slot->state = PINPOINT_IDLE;
	slot->nchannels = 0;
	pg_atomic_write_u64(&slot->sending_since, 0);
	pg_write_barrier();
	slot->pid = MyProcPid;
	LWLockRelease(PinpointOrderLock);
	answered = 0;
	sending = false;
	registered = true;
}

/*
 * Unregister the slot: this session does not listen any more, or ends.  Its
 * positions in the log are removed.
 */
void
pinpoint_slot_unregister(void)
{
	PinpointSlot *slot = my_slot();
	bool		trim_log;

	if (!registered)
		return;
	pinpoint_slot_set_wakes_for_all(false);
	registered = false;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	trim_log = pinpoint_slot_set_position(&slot->unread, NULL);
	trim_log |= pinpoint_slot_set_position(&slot->reassigned, NULL);
	slot->state = PINPOINT_IDLE;
	slot->pid = 0;
	LWLockRelease(PinpointOrderLock);
	if (trim_log)
		trim();
}

bool
pinpoint_slot_registered(void)
{
	return registered;
}

/*
 * The session user of this session when it began to listen.  SET SESSION
 * AUTHORIZATION does not change the result while the session listens on any
 * channel.
 */
Oid
pinpoint_slot_role(void)
{
	return my_slot()->roleid;
}

/*
 * Set whether this session has channels that do not fit into the channel map.
 * If so, publications of all channels in its database find it.  Set to true
 * before the commit of the LISTEN.
 *
 * A sender that sees this commit finds the session, because it acquires
 * PinpointOrderLock later, to publish.
 */
void
pinpoint_slot_set_wakes_for_all(bool wakes_for_all)
{
	PinpointSlot *slot = my_slot();

	/* Only this session changes it. */
	if (!registered || slot->wakes_for_all == wakes_for_all)
		return;

	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	slot->wakes_for_all = wakes_for_all;
	if (wakes_for_all)
		dlist_push_tail(&PinpointSlotArray->wakes_for_all,
						&slot->wakes_for_all_link);
	else
		dlist_delete(&slot->wakes_for_all_link);
	LWLockRelease(PinpointOrderLock);
}

/*
 * Take a number for a LISTEN.  Called before its commit, and after its
 * channels are in the channel map.  So senders that have read the map before
 * find this session; see wakeup.c.
 */
void
pinpoint_slot_join(void)
{
	uint64		number = pg_atomic_add_fetch_u64(&PinpointSlotArray->joined, 1);

	pg_atomic_write_u64(&my_slot()->joined, number);

	/* The number is visible before the commit. */
	pg_memory_barrier();
}

/*
 * Set whether notifications can be assigned to this session.  Set to false
 * when it shares no channel any more, and has reassigned all notifications
 * that were assigned to it.
 */
void
pinpoint_slot_set_shares(bool shares)
{
	/* Only this session changes it. */
	if (!registered || my_slot()->shares == shares)
		return;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	my_slot()->shares = shares;
	LWLockRelease(PinpointOrderLock);
}

/*
 * Set whether this session listens on the channel of heartbeats.  Set to true
 * before the commit of the LISTEN.
 *
 * Returns false, and does not set it, if the session may have missed
 * notifications since it began to listen: a heartbeat would cover these.
 */
bool
pinpoint_slot_set_heartbeats(bool heartbeats)
{
	bool		allowed;

	/* The lock excludes pinpoint_evict_heartbeat_listeners(). */
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	allowed = !heartbeats || !my_slot()->missed;
	if (allowed)
		my_slot()->heartbeats = heartbeats;
	LWLockRelease(PinpointOrderLock);
	return allowed;
}

/*
 * Set the number of channels of this session, for the views.
 */
void
pinpoint_slot_set_channels(uint32 nchannels)
{
	my_slot()->nchannels = nchannels;
}

/*
 * Set a position of a slot, "unread" or "reassigned", or remove it if position
 * is NULL or without a batch.  Pins the new epoch, and removes the pin of the
 * former one.
 *
 * The caller holds PinpointOrderLock: exclusively if the slot belongs to
 * another session, or if it has not pinned this epoch or an earlier one.
 *
 * Returns true if the former pin may have been the last one of the oldest
 * epoch.  The caller must then call pinpoint_message_log_trim().
 */
bool
pinpoint_slot_set_position(PinpointPosition *place,
						   const PinpointPosition *position)
{
	PinpointPosition former = *place;

	if (position != NULL && position->batch != NULL)
	{
		pinpoint_message_log_pin(position->epoch);
		*place = *position;
	}
	else
		place->batch = NULL;
	return former.batch != NULL && pinpoint_message_log_unpin(former.epoch);
}

/*
 * Free the space of the epochs that are no longer kept.
 */
static void
trim(void)
{
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_message_log_trim();
	LWLockRelease(PinpointOrderLock);
}

/*
 * The state of this session.  It is read at every commit of a session that
 * listens, so this takes no lock.  If the result is outdated, a signal
 * follows.
 */
static PinpointWakeState
my_state(void)
{
	return registered ?
		*(volatile PinpointWakeState *) &my_slot()->state : PINPOINT_IDLE;
}

/*
 * Is the state SIGNALLED, so that this session must read?
 */
bool
pinpoint_slot_pending(void)
{
	return my_state() == PINPOINT_SIGNALLED;
}

/*
 * Is the state RESTING, so that this session must check by itself?
 */
bool
pinpoint_slot_resting(void)
{
	return my_state() == PINPOINT_RESTING;
}

/*
 * Is the state SIGNALLED or RESTING?  The state is read only once, because it
 * can change from RESTING to SIGNALLED, without a signal, between two reads.
 */
bool
pinpoint_slot_to_look(void)
{
	PinpointWakeState state = my_state();

	return state == PINPOINT_SIGNALLED || state == PINPOINT_RESTING;
}

/*
 * End the state RESTING: this session checks now, or cannot check by itself
 * later.  From now on, it needs a signal.
 */
void
pinpoint_slot_stop_resting(void)
{
	PinpointSlot *slot = my_slot();

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	if (slot->state == PINPOINT_RESTING)
		slot->state = PINPOINT_IDLE;
	LWLockRelease(PinpointOrderLock);
}

/*
 * Did this session receive a reminder that it has not handled yet?  Returns
 * true only once for each reminder.
 */
bool
pinpoint_slot_reminded(void)
{
	uint32		reminders;

	if (!registered)
		return false;
	reminders = *(volatile uint32 *) &my_slot()->reminders;
	if (reminders <= answered)
		return false;
	answered = reminders;
	return true;
}

/*
 * The reason why this session was told to end, or PINPOINT_NOT_EVICTED.
 */
PinpointEviction
pinpoint_slot_evicted(void)
{
	return registered ?
		*(volatile PinpointEviction *) &my_slot()->evicted :
		PINPOINT_NOT_EVICTED;
}

/*
 * This session has been sending notifications since this time; 0: it does not
 * send.
 */
void
pinpoint_slot_set_sending(TimestampTz since)
{
	if (registered && (since != 0 || sending))
		pg_atomic_write_u64(&my_slot()->sending_since, (uint64) since);
	sending = since != 0;
}

/*
 * Begin to read.  All unread batches stay pinned.  Returns false if there are
 * none, or if the session was told to end.
 */
bool
pinpoint_slot_begin_reading(PinpointReading *reading)
{
	PinpointSlot *slot = my_slot();
	bool		result = false;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	if (slot->state == PINPOINT_SIGNALLED &&
		slot->evicted == PINPOINT_NOT_EVICTED &&
		(slot->unread.batch != NULL || slot->reassigned.batch != NULL))
	{
		slot->state = PINPOINT_READING;
		slot->again.batch = NULL;
		slot->reassigned_again = false;
		answered = 0;
		reading->reassigned = slot->reassigned.batch;
		reading->first = slot->unread.batch;
		reading->last = pinpoint_message_log_last();
		reading->queued_for_waker = slot->queued_for_waker;
		result = true;
	}
	LWLockRelease(PinpointOrderLock);
	return result;
}

/*
 * All batches before the given one have been read: remove their pin.
 */
void
pinpoint_slot_advance(PinpointBatch *next)
{
	PinpointPosition position = pinpoint_message_log_position(next);
	bool		trim_log;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	trim_log = pinpoint_slot_set_position(&my_slot()->unread, &position);
	LWLockRelease(PinpointOrderLock);
	if (trim_log)
		trim();
}

/*
 * End to read.
 *
 * delivered: number of notifications that were delivered.  rests_from: time of
 * the last delivery.  rests_until: if not 0, the time at which the session
 * will check by itself, if it has no unread batches now.
 *
 * Returns true if there are more unread batches.  The session must then begin
 * to read again, without a signal.
 */
bool
pinpoint_slot_end_reading(uint64 delivered, TimestampTz rests_from,
						  TimestampTz rests_until)
{
	PinpointSlot *slot = my_slot();
	bool		more;
	bool		trim_log;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	slot->delivered += delivered;
	trim_log = pinpoint_slot_set_position(&slot->unread, &slot->again);
	slot->again.batch = NULL;
	if (!slot->reassigned_again)
		trim_log |= pinpoint_slot_set_position(&slot->reassigned, NULL);
	slot->reassigned_again = false;
	more = slot->unread.batch != NULL || slot->reassigned.batch != NULL;
	if (more)
		slot->state = PINPOINT_SIGNALLED;
	else
		slot->state = rests_until != 0 ? PINPOINT_RESTING : PINPOINT_IDLE;
	slot->rests_from = rests_from;
	slot->rests_until = rests_until;
	slot->signalled_at = 0;
	slot->reminders = 0;
	LWLockRelease(PinpointOrderLock);
	if (trim_log)
		trim();
	pinpoint_count(MyDatabaseId, PINPOINT_COUNT_DELIVERED, delivered);
	return more;
}

/*
 * Does a slot have this position?  The owner can change it concurrently, if
 * the caller holds PinpointOrderLock only in shared mode.
 */
static bool
has_position(const PinpointPosition *position)
{
	return *(PinpointBatch *const volatile *) &position->batch != NULL;
}

/*
 * Number of the first publication that a slot pins; 0 if there is none.  The
 * caller holds PinpointOrderLock, shared or exclusive.
 */
uint64
pinpoint_slot_first_sequence(const PinpointSlot *slot)
{
	uint64		sequence = PG_UINT64_MAX;

	if (has_position(&slot->unread))
		sequence = slot->unread.sequence;
	if (has_position(&slot->reassigned))
		sequence = Min(sequence, slot->reassigned.sequence);
	return sequence != PG_UINT64_MAX ? sequence : 0;
}

/*
 * The backlog of a session: bytes published since its first unread batch, or,
 * if this is more, since the first reassignment to it.  It is 0 if it has
 * nothing to read.  The caller holds PinpointOrderLock, shared or exclusive.
 */
uint64
pinpoint_slot_lag(const PinpointSlot *slot)
{
	uint64		bytes = pinpoint_message_log_bytes();
	uint64		from = bytes;

	if (has_position(&slot->unread))
		from = slot->unread.bytes;
	if (has_position(&slot->reassigned))
		from = Min(from, slot->reassigned.bytes);
	return bytes - from;
}

/*
 * Does a session listen with this slot?
 *
 * For readers that do not hold PinpointOrderLock exclusively.  If the result
 * is true, they can read the fields that the owner has set before pid.
 */
static bool
is_listening(const PinpointSlot *slot)
{
	if (*(volatile int *) &slot->pid == 0)
		return false;
	pg_read_barrier();
	return true;
}

/*
 * Set listens[] for each slot whose owner listens in a database.  Returns the
 * number of these slots.
 *
 * listens: an array of MaxBackends elements, all false.
 *
 * Takes no lock.  If the caller has read PinpointSlots.joined before, this
 * finds all sessions whose number is not above that value: a session sets pid
 * before it takes a number; see wakeup.c.
 */
int
pinpoint_slots_mark_listeners(Oid dboid, bool *listens)
{
	int			n = 0;

	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotArray->slots[i];

		if (is_listening(slot) && *(volatile Oid *) &slot->dboid == dboid)
		{
			listens[i] = true;
			n++;
		}
	}
	return n;
}

/*
 * Find the databases in which a session listens on the channel of heartbeats.
 * Returns their number.
 *
 * dboids: an array of MaxBackends elements.
 */
int
pinpoint_slots_heartbeat_databases(Oid *dboids)
{
	int			n = 0;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotArray->slots[i];

		if (is_listening(slot) && slot->heartbeats)
			dboids[n++] = slot->dboid;
	}
	LWLockRelease(PinpointOrderLock);

	qsort(dboids, n, sizeof(Oid), oid_cmp);
	return (int) qunique(dboids, n, sizeof(Oid), oid_cmp);
}

/*
 * Copy the data of all listeners to copy[], an array of MaxBackends elements.
 * Returns their number.
 */
int
pinpoint_slots_copy(PinpointListenerStats *copy)
{
	int			n = 0;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotArray->slots[i];
		PinpointListenerStats *stats = &copy[n];
		int			pid = *(volatile int *) &slot->pid;

		if (pid == 0)
			continue;

		/* The owner can begin or end to listen concurrently. */
		pg_read_barrier();
		n++;
		stats->slotno = i;
		stats->slot = *slot;
		stats->slot.pid = pid;
		stats->roleid = slot->proc->roleId;
		stats->backlog_bytes = pinpoint_slot_lag(slot);
		stats->backlog_batches = 0;
		stats->oldest_unread = 0;
		if (has_position(&slot->unread))
		{
			stats->backlog_batches = pinpoint_message_log_sequence() -
				slot->unread.sequence + 1;
			stats->oldest_unread = slot->unread.published_at;
		}
	}
	LWLockRelease(PinpointOrderLock);
	return n;
}
