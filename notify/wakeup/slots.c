/*-------------------------------------------------------------------------
 *
 * slots.c
 *		One slot for each session that listens: what it has to read.
 *
 * A slot is in one of five states:
 *
 *	IDLE			nothing unread.  The slot has no position in the log.
 *	RESTING			likewise, but the session is going to look by itself
 *					before long, due to pinpoint.latency_target.
 *	SIGNALLED		a batch for this session was published; it is pinned, and
 *					a signal is under way, or the session looks by itself.
 *	READING			the session reads from the pinned batch on, up to the one
 *					that was the last when it began.
 *	READING_AGAIN	more has been published for it since then.
 *
 * A session that is given up is in any of these until it has ended.  If it was
 * SIGNALLED it may not have a position any more.
 *
 *					publish			session
 *	IDLE			SIGNALLED		-
 *	RESTING			SIGNALLED		IDLE when it looks, and there is nothing
 *	SIGNALLED		SIGNALLED		READING when it begins to read
 *	READING			READING_AGAIN	IDLE or RESTING when it is done
 *	READING_AGAIN	READING_AGAIN	SIGNALLED when it is done: by itself
 *
 * Only the step from IDLE to SIGNALLED sends a signal, so at most one is ever
 * under way to a session, however many batches are published.  What is
 * published after the pinned batch stays as long as the pin does, so the other
 * steps need no pin of their own.
 *
 * The session's own steps change nothing but its own slot, and the pins of
 * batches, which are atomic.  So PinpointOrderLock is taken in shared mode for
 * them, which keeps publishers out, but lets listeners of one notification begin
 * and end side by side.  Only the one that removes the last pin from the oldest
 * batch takes it exclusively, to give back what is no longer kept.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

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

/* To how many reminders since it was woken has this session answered? */
static uint32 answered = 0;

static PinpointSlot *my_slot(void);
static PinpointWakeState my_state(void);
static void trim(void);
static PinpointSlot *furthest_behind(void);
static bool evict(PinpointSlot *slot);

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
	}
}

/*
 * This session begins to listen, unless it does already.
 */
void
pinpoint_slot_register(void)
{
	PinpointSlot *slot = my_slot();

	if (registered)
		return;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	memset(slot, 0, offsetof(PinpointSlot, queued_for_waker));
	slot->pid = MyProcPid;
	slot->dboid = MyDatabaseId;
	slot->proc = MyProc;
	slot->state = PINPOINT_IDLE;

	/*
	 * What was published before is not for us, even if it was given to
	 * somebody who had this slot then; what is handed on of it is late.
	 */
	slot->read_up_to = pinpoint_message_log_sequence();
	LWLockRelease(PinpointOrderLock);
	answered = 0;
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

	if (!registered)
		return;
	registered = false;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	(void) pinpoint_slot_set_unread(slot, NULL);
	if (slot->reassigned != NULL)
		(void) pinpoint_message_log_unpin(slot->reassigned);
	slot->reassigned = NULL;
	slot->pid = 0;
	slot->state = PINPOINT_IDLE;
	LWLockRelease(PinpointOrderLock);
	trim();
}

bool
pinpoint_slot_registered(void)
{
	return registered;
}

/*
 * Before the commit of a LISTEN, and after its channels have been entered into
 * the channel map: let those know who have looked there already; see wakeup.c.
 */
void
pinpoint_slot_join(void)
{
	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	my_slot()->joined = ++PinpointSlotArray->joined;
	LWLockRelease(PinpointOrderLock);
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
 * Tell the views how many channels this session listens on.
 */
void
pinpoint_slot_set_channels(uint32 nchannels)
{
	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	my_slot()->nchannels = nchannels;
	LWLockRelease(PinpointOrderLock);
}

/*
 * Pin the batch that a slot must read first, or none if NULL, instead of the one
 * that it has pinned.  The caller holds PinpointOrderLock, exclusively if the slot
 * is another session's.  Returns true if the old pin may have been all that kept
 * the oldest batch: then the caller calls pinpoint_message_log_trim().
 */
bool
pinpoint_slot_set_unread(PinpointSlot *slot, PinpointBatch *batch)
{
	bool		trim_log = false;

	if (batch != NULL)
	{
		pinpoint_message_log_pin(batch);
		slot->unread_sequence = batch->sequence;

		/* To go back for what was handed on is not to be behind. */
		if (slot->unread == NULL || slot->unread_position < batch->position)
			slot->unread_position = batch->position;
	}
	if (slot->unread != NULL)
		trim_log = pinpoint_message_log_unpin(slot->unread);
	slot->unread = batch;
	return trim_log;
}

/*
 * Give back what no pin keeps any more, bit by bit, so that others get
 * PinpointOrderLock in between.
 */
static void
trim(void)
{
	bool		more;

	do
	{
		LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
		more = pinpoint_message_log_trim();
		LWLockRelease(PinpointOrderLock);
	} while (more);
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
 * Was this session given up?
 */
bool
pinpoint_slot_evicted(void)
{
	return registered && *(volatile bool *) &my_slot()->evicted;
}

/*
 * Begin to read: from *first, which stays pinned, to *last.  What has a number up
 * to *read_before was read already.  *queued_for_waker: the signal for it is left to the
 * waker, who does not send it any more if this session reads first.  False if there
 * is nothing to read after all, or no longer, as the session was given up.
 */
bool
pinpoint_slot_begin_reading(PinpointBatch **first, PinpointBatch **last,
							uint64 *read_before, bool *queued_for_waker)
{
	PinpointSlot *slot = my_slot();
	bool		result = false;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	if (slot->state == PINPOINT_SIGNALLED && slot->unread != NULL)
	{
		slot->state = PINPOINT_READING;
		answered = 0;
		*first = slot->unread;
		*last = pinpoint_message_log_last();
		*read_before = slot->read_up_to;
		*queued_for_waker = slot->queued_for_waker;
		slot->reading_up_to = (*last)->sequence;
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
	bool		trim_log;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	trim_log = pinpoint_slot_set_unread(my_slot(), next);
	LWLockRelease(PinpointOrderLock);
	if (trim_log)
		trim();
}

/*
 * All up to last has been read, with so many notifications for this session
 * delivered.  Returns true if more has come: then the session is to begin to
 * read again, without a signal.  If not, and rests_until is not 0, it is to look by
 * itself then.
 */
bool
pinpoint_slot_end_reading(PinpointBatch *last, uint64 delivered,
						  TimestampTz rests_from, TimestampTz rests_until)
{
	PinpointSlot *slot = my_slot();
	PinpointBatch *next = NULL;
	bool		trim_log;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	slot->delivered += delivered;
	if (slot->reassigned != NULL)
		next = slot->reassigned;
	else if (slot->state == PINPOINT_READING_AGAIN)
		next = pinpoint_message_log_after(last);
	trim_log = pinpoint_slot_set_unread(slot, next);
	if (slot->reassigned != NULL)
	{
		/* So far it has read, whatever it goes back for. */
		slot->unread_position = Max(slot->unread_position, last->position);
		(void) pinpoint_message_log_unpin(slot->reassigned);
	}
	slot->reassigned = NULL;
	slot->read_up_to = Max(slot->read_up_to, slot->reading_up_to);
	slot->reading_up_to = 0;
	if (next != NULL)
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
	return next != NULL;
}

/*
 * PID of the listener that keeps the oldest batch, 0 if there is none.  The
 * caller holds PinpointOrderLock.
 */
int
pinpoint_slots_furthest_behind(void)
{
	PinpointSlot *furthest = furthest_behind();

	return furthest ? furthest->pid : 0;
}

static PinpointSlot *
furthest_behind(void)
{
	PinpointSlot *furthest = NULL;
	uint64		oldest = 0;

	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotArray->slots[i];
		PinpointBatch *reassigned;
		uint64		sequence;

		if (slot->pid == 0 || slot->unread == NULL)
			continue;
		sequence = slot->unread_sequence;

		/*
		 * Its owner may let go of it at this moment; it is there all the
		 * same.
		 */
		reassigned = *(PinpointBatch *volatile *) &slot->reassigned;
		if (reassigned != NULL)
			sequence = Min(sequence, reassigned->sequence);
		if (furthest == NULL || sequence < oldest)
		{
			furthest = slot;
			oldest = sequence;
		}
	}
	return furthest;
}

/*
 * Mark a listener as given up: its session is going to be ended, and nothing is
 * published for it any more.
 *
 * It may take long until the session obeys.  While it reports an error to a client
 * that does not read, for instance, PostgreSQL does not let it.  So what it has not
 * begun to read is let go of now.  (It will not begin any more.)  But if it shares
 * channels, what was given to it has to stay until it has handed that on.
 *
 * The caller holds PinpointOrderLock exclusively.  Returns true if it is to call
 * trim() when it has released that.
 */
static bool
evict(PinpointSlot *slot)
{
	if (!slot->evicted)
		pinpoint_count(slot->dboid, PINPOINT_COUNT_DISCONNECTED, 1);
	slot->evicted = true;
	if (slot->state == PINPOINT_SIGNALLED && !slot->shares)
		return pinpoint_slot_set_unread(slot, NULL);
	return false;
}

/*
 * Give up all listeners that have more than limit bytes to read: mark them, and
 * store their PIDs in pids, which has room for MaxBackends elements.  Returns
 * how many there are; each is found once only.
 */
int
pinpoint_slots_evict(Size limit, int *pids)
{
	int			n = 0;
	bool		trim_log = false;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotArray->slots[i];

		if (slot->pid == 0 || slot->unread == NULL ||
			pinpoint_message_log_bytes() - slot->unread_position <= limit)
			continue;

		/* One that was reading then may be done by now. */
		if (!slot->evicted)
			pids[n++] = slot->pid;
		trim_log |= evict(slot);
	}
	LWLockRelease(PinpointOrderLock);
	if (trim_log)
		trim();
	return n;
}

/*
 * Give up the listener that keeps the oldest batch.  Returns its PID, 0 if there is
 * none.
 */
int
pinpoint_slots_evict_furthest(void)
{
	PinpointSlot *furthest;
	int			pid = 0;
	bool		trim_log = false;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	furthest = furthest_behind();
	if (furthest != NULL)
	{
		pid = furthest->pid;
		trim_log = evict(furthest);
	}
	LWLockRelease(PinpointOrderLock);
	if (trim_log)
		trim();
	return pid;
}

/*
 * Give up all who listen in a database, and end them.  Returns how many there are.
 */
int
pinpoint_slots_evict_database(Oid dboid)
{
	int			n = 0;
	bool		trim_log = false;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotArray->slots[i];

		if (slot->pid == 0 || slot->dboid != dboid)
			continue;
		trim_log |= evict(slot);
		(void) kill(slot->pid, SIGTERM);
		n++;
	}
	LWLockRelease(PinpointOrderLock);
	if (trim_log)
		trim();
	return n;
}

/*
 * Does a process keep anything?
 */
bool
pinpoint_slots_keeps(int pid)
{
	bool		result = false;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	for (int i = 0; i < MaxBackends && !result; i++)
	{
		PinpointSlot *slot = &PinpointSlotArray->slots[i];

		result = slot->pid == pid && slot->unread != NULL;
	}
	LWLockRelease(PinpointOrderLock);
	return result;
}

/*
 * The databases in which anybody listens.  dboids has room for MaxBackends elements.
 * Returns their number.
 */
int
pinpoint_slots_databases(Oid *dboids)
{
	int			n = 0;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		if (PinpointSlotArray->slots[i].pid != 0)
			dboids[n++] = PinpointSlotArray->slots[i].dboid;
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
		PinpointBatch *unread;

		if (slot->pid == 0)
			continue;
		n++;
		stats->slotno = i;
		stats->slot = *slot;
		stats->roleid = slot->proc->roleId;
		stats->backlog_bytes = 0;
		stats->backlog_batches = 0;
		stats->oldest_unread = 0;

		/*
		 * The owner may let go of it at this moment, with the lock in shared
		 * mode like us, but it is there for as long as we have the lock.
		 */
		unread = *(PinpointBatch *volatile *) &slot->unread;
		if (unread != NULL)
		{
			stats->backlog_bytes = pinpoint_message_log_bytes() -
				slot->unread_position;
			stats->backlog_batches = pinpoint_message_log_sequence() -
				slot->unread_sequence + 1;
			stats->oldest_unread = unread->published_at;
		}
	}
	LWLockRelease(PinpointOrderLock);
	return n;
}
