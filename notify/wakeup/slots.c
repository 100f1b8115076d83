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
#include "base/locks.h"
#include "queue/message_log.h"
#include "wakeup/slots.h"

PinpointSlots *PinpointSlotArray = NULL;

/* Does this session own its slot? */
static bool registered = false;

/* Is the time noted at which this session began to send? */
static bool sending = false;

/* To how many reminders since it was woken has this session answered? */
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
		pg_atomic_init_u64(&PinpointSlotArray->joined, 0);
		for (int i = 0; i < MaxBackends; i++)
		{
			pg_atomic_init_u64(&PinpointSlotArray->slots[i].joined, 0);
			pg_atomic_init_u64(&PinpointSlotArray->slots[i].sending_since, 0);
		}
	}
}

/*
 * This session begins to listen, unless it does already.
 *
 * Until pid is set the slot is nobody's, and publishers pass over it.  So the lock is
 * taken in shared mode, and sessions that LISTEN and UNLISTEN do not wait for each other.
 * Readers with the lock in shared mode see the owner set before pid.
 */
void
pinpoint_slot_register(void)
{
	PinpointSlot *slot = my_slot();

	if (registered)
		return;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
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
 * This session listens no more, or ends: what is unread is none of its
 * business.
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

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
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
 * The role of this session, as of when it began to listen.  SET SESSION
 * AUTHORIZATION does not change it while the session listens on anything.
 */
Oid
pinpoint_slot_role(void)
{
	return my_slot()->roleid;
}

/*
 * Before the commit of a LISTEN: the session has channels that do not fit into the
 * channel map.  From now on publications of all channels in its database find it.  Or
 * it has no such channel any more.
 *
 * A sender that sees the commit of the LISTEN finds the session: it publishes with
 * PinpointOrderLock held, which it takes later.
 */
void
pinpoint_slot_set_wakes_for_all(bool wakes_for_all)
{
	PinpointSlot *slot = my_slot();

	/* Nobody but us changes it. */
	if (!registered || slot->wakes_for_all == wakes_for_all)
		return;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	slot->wakes_for_all = wakes_for_all;
	if (wakes_for_all)
		dlist_push_tail(&PinpointSlotArray->wakes_for_all,
						&slot->wakes_for_all_link);
	else
		dlist_delete(&slot->wakes_for_all_link);
	LWLockRelease(PinpointOrderLock);
}

/*
 * Before the commit of a LISTEN, and after its channels have been entered into
 * the channel map: let those know who have looked there already; see wakeup.c.
 */
void
pinpoint_slot_join(void)
{
	uint64		number = pg_atomic_add_fetch_u64(&PinpointSlotArray->joined, 1);

	pg_atomic_write_u64(&my_slot()->joined, number);

	/* It is there before the commit. */
	pg_memory_barrier();
}

/*
 * From now on something may be given to this session on a channel that it shares; or
 * it shares none any more, and has handed on what it had.
 */
void
pinpoint_slot_set_shares(bool shares)
{
	/* Nobody but us changes it. */
	if (!registered || my_slot()->shares == shares)
		return;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	my_slot()->shares = shares;
	LWLockRelease(PinpointOrderLock);
}

/*
 * Before the commit of a LISTEN: this session listens on the channel of the heartbeat;
 * or it does not any more.
 */
void
pinpoint_slot_set_heartbeats(bool heartbeats)
{
	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	my_slot()->heartbeats = heartbeats;
	LWLockRelease(PinpointOrderLock);
}

/*
 * Tell the views how many channels this session listens on.
 */
void
pinpoint_slot_set_channels(uint32 nchannels)
{
	my_slot()->nchannels = nchannels;
}

/*
 * Let a position of a slot, unread or reassigned, be another one, or none if NULL, and
 * pin its epoch instead of the former one.
 *
 * The caller holds PinpointOrderLock, exclusively if the slot is another session's, or
 * if the session has pinned no earlier epoch.  Returns true if the former pin may have
 * been all that kept the oldest epoch: then the caller calls
 * pinpoint_message_log_trim().
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
 * Give back what no pin keeps any more.
 */
static void
trim(void)
{
	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_message_log_trim();
	LWLockRelease(PinpointOrderLock);
}

/*
 * The state of this session.  Asked at every commit of a session that listens, so
 * it looks without a lock: a signal follows if it looks too early.
 */
static PinpointWakeState
my_state(void)
{
	return registered ?
		*(volatile PinpointWakeState *) &my_slot()->state : PINPOINT_IDLE;
}

/*
 * Is there something to read?
 */
bool
pinpoint_slot_pending(void)
{
	return my_state() == PINPOINT_SIGNALLED;
}

/*
 * Is this session to look by itself?
 */
bool
pinpoint_slot_resting(void)
{
	return my_state() == PINPOINT_RESTING;
}

/*
 * Is this session to look, whether or not there is something yet?  It is one look,
 * as somebody may publish between two: RESTING becomes SIGNALLED without a signal.
 */
bool
pinpoint_slot_to_look(void)
{
	PinpointWakeState state = my_state();

	return state == PINPOINT_SIGNALLED || state == PINPOINT_RESTING;
}

/*
 * This session looks, or will not be able to look, by itself: from now on it needs a
 * signal.
 */
void
pinpoint_slot_stop_resting(void)
{
	PinpointSlot *slot = my_slot();

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	if (slot->state == PINPOINT_RESTING)
		slot->state = PINPOINT_IDLE;
	LWLockRelease(PinpointOrderLock);
}

/*
 * Was this session reminded of it?  True once for each reminder.
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
 * Was this session evicted, and why?
 */
PinpointEviction
pinpoint_slot_evicted(void)
{
	return registered ?
		*(volatile PinpointEviction *) &my_slot()->evicted :
		PINPOINT_NOT_EVICTED;
}

/*
 * This session begins to send notifications at this time, or does something else if 0.
 */
void
pinpoint_slot_set_sending(TimestampTz since)
{
	if (registered && (since != 0 || sending))
		pg_atomic_write_u64(&my_slot()->sending_since, (uint64) since);
	sending = since != 0;
}

/*
 * Begin to read.  All of it stays pinned.  False if there is nothing to read after all,
 * or no longer, as the session was evicted.
 */
bool
pinpoint_slot_begin_reading(PinpointReading *reading)
{
	PinpointSlot *slot = my_slot();
	bool		result = false;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
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
 * All before next has been read: let the log have it back.
 */
void
pinpoint_slot_advance(PinpointBatch *next)
{
	PinpointPosition position = pinpoint_message_log_position(next);
	bool		trim_log;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	trim_log = pinpoint_slot_set_position(&my_slot()->unread, &position);
	LWLockRelease(PinpointOrderLock);
	if (trim_log)
		trim();
}

/*
 * All that there was has been read, with so many notifications for this session
 * delivered.  Returns true if more has come: then the session is to begin to
 * read again, without a signal.  If not, and rests_until is not 0, it is to look by
 * itself then.
 */
bool
pinpoint_slot_end_reading(uint64 delivered, TimestampTz rests_from,
						  TimestampTz rests_until)
{
	PinpointSlot *slot = my_slot();
	bool		more;
	bool		trim_log;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
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
 * Has a slot such a position?  The owner may change it at this moment, with
 * PinpointOrderLock in shared mode, if the caller has it so, too.
 */
static bool
has_position(const PinpointPosition *position)
{
	return *(PinpointBatch *const volatile *) &position->batch != NULL;
}

/*
 * Number of the first publication that a slot keeps, 0 if it keeps none.  The caller
 * holds PinpointOrderLock, in shared mode at least.
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
 * Bytes published since the first batch that a session has to read, and since
 * something was reassigned to it; 0 if it has nothing to read.  The caller holds
 * PinpointOrderLock, in shared mode at least.
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
 * For readers that do not keep its owner from beginning or ending to listen at this
 * moment.  After true they may read what the owner has set before pid.
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
 * Set listens[] for each slot whose owner listens in a database; it has MaxBackends
 * elements, which are false.  Returns how many there are.
 *
 * Takes no lock.  Those whose LISTEN has a number that the caller has read before are
 * seen, as pid is set before the number is taken; see wakeup.c.
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
 * The databases in which anybody listens on the channel of the heartbeat.  dboids has
 * room for MaxBackends elements.  Returns their number.
 */
int
pinpoint_slots_heartbeat_databases(Oid *dboids)
{
	int			n = 0;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
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
 * Copy what there is to know of all listeners to copy[], which has room for
 * MaxBackends elements.  Returns their number.
 */
int
pinpoint_slots_copy(PinpointListenerStats *copy)
{
	int			n = 0;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotArray->slots[i];
		PinpointListenerStats *stats = &copy[n];
		int			pid = *(volatile int *) &slot->pid;

		if (pid == 0)
			continue;

		/* Its owner may begin to listen, or end that, at this moment. */
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
