/*-------------------------------------------------------------------------
 *
 * reassign.c
 *		Reassigns notifications of a session that stops sharing a channel, or
 *		that stays in a transaction.
 *
 * A session stops sharing a channel by UNLISTEN or at its end.  Notifications
 * may have been assigned to it that it has not delivered yet.  It reads all
 * its unread batches, and reassigns each of these notifications to another
 * session that shares the channel; see sharing.c.  It has left the channel map
 * before, so no further notification on that channel is assigned to it.
 *
 * Its slot pins all batches that it reads, and only the assigned receivers in
 * them can change.  So it needs no lock to read them, whatever their number
 * is.  It takes PinpointOrderLock for each notification that it reassigns.
 *
 * The slot of the other session has a reference for this, to the first batch
 * with a notification that was reassigned to it; see pinpoint_slot_reassign():
 *
 *	IDLE, RESTING	the session is signalled.
 *	SIGNALLED		it will use the reference when it begins to read.
 *	READING			it will read again when it is done.
 *
 * Sessions that end do this one after the other; see turn.c.  A session that
 * executes UNLISTEN does not wait for them.
 *
 * A session that ends during a delivery may have sent a part of it already.
 * It reassigns all notifications of this delivery: repeating one is better
 * than losing one.
 *
 * A session that stays in a transaction.  A notification can be assigned to
 * it, because its transaction began later, or because no member of its group
 * was ready then.  Once a second, the waker looks for sessions that have had
 * something to read for more than a second and are in a transaction.  It
 * reassigns their notifications to members that are ready.
 *
 * The waker does this in portions.  Without a waker that makes progress,
 * senders do it.  The pass over the sessions is in shared memory, so a process
 * goes on where the last one has ended, and all sessions have their turn
 * although each sender does only some portions.
 *
 * At the beginning of a portion, the process checks under PinpointOrderLock
 * that the session is still SIGNALLED, with the same first unread batch: then
 * the session has not read, and still pins all batches from that one on.  The
 * process pins them, too, for the time of the portion, and reads them without
 * the lock.  Before it changes an assignment, it repeats this check under the
 * lock, and pinpoint_sharing_reassign() checks the assignment itself: the
 * session may execute UNLISTEN.  A session reads only in the state READING,
 * which it enters under the lock.  So each notification is delivered by one of
 * the two sessions, and not by both.
 *
 * Two processes can work at the same portion, if the first one stops and goes
 * on later.  They find nothing to do where the other one was.  Only the one
 * that ends its portion first moves the pass on.
 *
 * This file must not fail, because it runs after commit and at exit.  At exit,
 * a barrier can fail; turn.c describes how the session goes on.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/counters.h"
#include "base/first_number.h"
#include "queue/message_log.h"
#include "wakeup/channel_map.h"
#include "wakeup/publication.h"
#include "wakeup/reassign.h"
#include "wakeup/sharing.h"
#include "wakeup/slot_private.h"
#include "wakeup/slots.h"
#include "wakeup/turn.h"

/*
 * Milliseconds between two passes over sessions that stay in a transaction.
 * After a long pass, PASS_PAUSE_FACTOR times as long as its portions have taken
 * is added.
 */
#define PASS_INTERVAL		1000
#define PASS_PAUSE_FACTOR	10

/*
 * Number of batches that are read in one portion, and the time that it can
 * take, in microseconds: if it seems longer, the process was stopped or the
 * clock was set.
 */
#define BATCHES_PER_PORTION	256
#define MAX_PORTION_TIME	1000000

/* The assignment that is being reassigned. */
typedef struct Reassignment
{
	PinpointPublication *publication;	/* the current one */
	PinpointBatchRef ref;		/* to the batch */
	uint32		index;			/* index of the assignment in the batch */
	uint32		channel;		/* number of its channel in the batch */
	int			slotno;			/* the session that does not receive it */
	Oid			group;			/* role of this session */
	int			least;			/* see pinpoint_sharing_reassign() */
	bool		any_listener;	/* set if the channel has a listener */
	bool		any_ready;		/* set if a member of the group is ready */
} Reassignment;

/*
 * The pass over the sessions that stay in a transaction.  In shared memory, it
 * is protected by PinpointOrderLock; active, ended and next are also read
 * without it.
 */
typedef struct StalledPass
{
	uint64		portion;		/* number of portions that have moved it on */
	bool		active;
	int64		taken;			/* microseconds that its portions have taken */
	TimestampTz ended;			/* time of the end of the last pass */
	TimestampTz next;			/* earliest time of the next pass */
	int			slotno;			/* the current session */
	int			pid;			/* its PID; 0 if it is not begun */
	Oid			dboid;
	Oid			group;
	uint64		first_unread;	/* number of its first unread batch */
	uint64		first;			/* number of the first batch to read */
	PinpointBatch *batch;		/* the next batch to read */
	PinpointBatch *last;		/* the last one */
} StalledPass;

static StalledPass *shared_pass = NULL;

/* A copy, while this process works at a portion. */
static StalledPass pass = {0};

static void reassign_batch(PinpointBatch *batch, bool unread,
						   PinpointStillShares still_shares);
static const char *channel_name(PinpointBatch *batch, uint32 number);
static void reassign_to(const PinpointListeners *listeners, void *arg);
static bool has_nothing_to_read(PinpointSlot *slot);
static uint64 first_batches(PinpointSlot *slot, PinpointBatchRef *first);
static void set_earlier(PinpointBatchRef *first, const PinpointBatchRef *other);
static bool is_time_for_pass(TimestampTz now);
static bool begin_portion(TimestampTz now, PinpointBatchRef *pinned);
static bool still_stalled(void);
static bool reassign_stalled_batch(PinpointBatch *batch);
static bool try_reassign(PinpointBatch *batch, uint32 index, uint32 number);
static void find_ready(const PinpointListeners *listeners, void *arg);
static void end_portion(TimestampTz began, PinpointBatchRef *pinned);

Size
pinpoint_reassign_shmem_size(void)
{
	return sizeof(StalledPass);
}

void
pinpoint_reassign_shmem_init(void *memory)
{
	shared_pass = memory;
	shared_pass->portion = PINPOINT_FIRST_NUMBER;
}

/*
 * Reassign the notifications that were assigned to this session on channels
 * that it does not share any more.  It has left these channels in the channel
 * map, and still has its slot.  Does not fail, except at exit; see turn.c.
 * Then it can be called again, and continues.
 *
 * The caller holds none of the locks.
 */
void
pinpoint_reassign(PinpointStillShares still_shares)
{
	PinpointSlot *slot = &PinpointSlotsShared->slots[PINPOINT_MY_SLOT_NUMBER];
	PinpointBatchRef first;
	PinpointBatch *batch;
	PinpointBatch *last;
	uint64		first_unread;
	bool		one_by_one = proc_exit_inprogress;

	AssertNoLockHeld();
	if (!pinpoint_slot_registered())
		return;

	/*
	 * Replay waits for the space, and the other sessions would pin it; or the
	 * server has ended.  The first attempt may have been in the list of
	 * turns.
	 */
	if (pinpoint_slot_evicted() == PINPOINT_EVICTED_QUEUE_FULL ||
		(one_by_one && !PostmasterIsAlive()))
	{
		if (one_by_one)
			pinpoint_turn_end();
		return;
	}

	/*
	 * If there is nothing to read, nothing can follow: this session has left
	 * the channels, so no notification is assigned to it.
	 */
	if (one_by_one && has_nothing_to_read(slot))
	{
		pinpoint_turn_end();
		return;
	}

	if (one_by_one)
		pinpoint_turn_begin();

	/*
	 * Concurrently, other sessions can reassign notifications to this one,
	 * but only on channels that it still shares.
	 */
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	first_unread = first_batches(slot, &first);
	batch = first.batch;
	last = pinpoint_message_log_last();
	LWLockRelease(PinpointOrderLock);

	while (batch != NULL)
	{
		if (batch->nassignments > 0 && batch->dboid == MyDatabaseId)
			reassign_batch(batch,
						   pinpoint_batch_published(batch)->sequence >=
						   first_unread,
						   still_shares);
		if (batch == last)
			break;
		batch = pinpoint_message_log_after(batch);
		if (one_by_one)
			pinpoint_turn_step();
	}

	if (one_by_one)
		pinpoint_turn_end();
}

static bool
has_nothing_to_read(PinpointSlot *slot)
{
	PinpointBatchRef first;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	(void) first_batches(slot, &first);
	LWLockRelease(PinpointOrderLock);
	return first.batch == NULL;
}

/*
 * Returns the number of the first unread batch of a session, PG_UINT64_MAX if
 * there is none.  *first: set to the first batch that contains a notification
 * for it, which may be a reassigned one; its field "batch" is NULL if there is
 * none.  The caller holds PinpointOrderLock.
 */
static uint64
first_batches(PinpointSlot *slot, PinpointBatchRef *first)
{
	uint64		first_unread;

	AssertHeld(PinpointOrderLock);
	Assert(readable(slot)->pid != 0);

	/* A session that ends may be reading only reassigned notifications. */
	*first = readable(slot)->unread;
	if (first->batch == NULL && readable(slot)->state == PINPOINT_READING_AGAIN)
		*first = readable(slot)->again;
	first_unread = first->batch != NULL ? first->sequence : PG_UINT64_MAX;
	set_earlier(first, &readable(slot)->reassigned);
	set_earlier(first, &readable(slot)->reassigned_again);
	return first_unread;
}

/*
 * Set a reference to the other one, if that is earlier.  Each can be without a
 * batch.
 */
static void
set_earlier(PinpointBatchRef *first, const PinpointBatchRef *other)
{
	if (other->batch != NULL &&
		(first->batch == NULL || other->sequence < first->sequence))
		*first = *other;
}

/*
 * Reassign the notifications of one batch.
 *
 * unread: has this session not read the batch?
 */
static void
reassign_batch(PinpointBatch *batch, bool unread,
			   PinpointStillShares still_shares)
{
	PinpointPublication publication;
	Reassignment reassignment = {
		.publication = &publication,
		.slotno = PINPOINT_MY_SLOT_NUMBER,
		.group = pinpoint_slot_role(),
	};
	uint32		number;

	AssertLocksBelow(PINPOINT_RANK_ORDER);
	Assert(batch->state == PINPOINT_BATCH_PUBLISHED);

	while (pinpoint_sharing_next_undelivered(batch, reassignment.slotno, unread,
											 &reassignment.index, &number))
	{
		const char *name = channel_name(batch, number);

		if (!still_shares(name))
		{
			reassignment.ref = pinpoint_message_log_ref(batch);
			reassignment.any_listener = false;

			pinpoint_publication_begin(&publication);
			pinpoint_channel_map_lookup(batch->dboid, name,
										pinpoint_batch_channel_hash(name),
										reassign_to, &reassignment);
			if (!reassignment.any_listener)
				(void) pinpoint_sharing_reassign(batch, reassignment.index,
												 reassignment.slotno,
												 reassignment.group, NULL, 0);
			pinpoint_publication_end(&publication);
		}
		reassignment.index++;

		/* A batch can contain many notifications. */
		if (proc_exit_inprogress)
			pinpoint_turn_step();
	}
}

static const char *
channel_name(PinpointBatch *batch, uint32 number)
{
	const char *name = pinpoint_batch_first_channel(batch);

	Assert(number < batch->nchannels);
	for (uint32 i = 0; i < number; i++)
		name = pinpoint_batch_next_channel(name);
	return name;
}

static void
reassign_to(const PinpointListeners *listeners, void *arg)
{
	Reassignment *reassignment = arg;
	PinpointBatch *batch = reassignment->ref.batch;
	int			slotno = pinpoint_sharing_reassign(batch, reassignment->index,
												   reassignment->slotno,
												   reassignment->group,
												   listeners,
												   reassignment->least);

	AssertHeldExclusive(PinpointOrderLock);
	Assert(slotno < MaxBackends && slotno != reassignment->slotno);

	reassignment->any_listener = true;
	if (slotno < 0)
		return;
	pinpoint_counter_add(batch->dboid, PINPOINT_COUNT_REASSIGNED, 1);
	if (pinpoint_slot_reassign(&PinpointSlotsShared->slots[slotno],
							   &reassignment->ref))
	{
		pinpoint_publication_add_signal(reassignment->publication, slotno);
		pinpoint_counter_add(batch->dboid, PINPOINT_COUNT_SIGNALS, 1);
	}
}

/*
 * Reassign notifications of sessions that stay in a transaction: one portion.
 * The waker calls this, and senders do without one that makes progress.
 * Returns whether there is more to do at once.  Does not fail.
 */
bool
pinpoint_reassign_stalled(void)
{
	TimestampTz now = GetCurrentTimestamp();
	PinpointBatchRef pinned = {0};
	bool		done = false;

	AssertNoLockHeld();
	if (!is_time_for_pass(now) || !begin_portion(now, &pinned))
		return false;

	for (int i = 0; i < BATCHES_PER_PORTION && !done; i++)
	{
		done = !reassign_stalled_batch(pass.batch) || pass.batch == pass.last;
		if (!done)
			pass.batch = pinpoint_message_log_after(pass.batch);
	}
	if (done)
	{
		pass.pid = 0;
		pass.slotno++;
	}
	end_portion(now, &pinned);
	return true;
}

/*
 * Is there a pass, or may one begin?  Also called without a lock:
 * begin_portion() asks again.
 */
static bool
is_time_for_pass(TimestampTz now)
{
	const volatile StalledPass *last = shared_pass;

	if (last->active)
		return true;

	/* If the clock was set back, do not wait for it. */
	return (now >= last->next || now < last->ended) &&
		pinpoint_channel_map_is_shared();
}

/*
 * Begin a portion: find the next session if there is no current one, and pin
 * its batches.  Returns false at the end of the pass.
 */
static bool
begin_portion(TimestampTz now, PinpointBatchRef *pinned)
{
	PinpointBatchRef first = {0};

	Assert(pinned->batch == NULL);
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	if (!is_time_for_pass(now))
	{
		LWLockRelease(PinpointOrderLock);
		return false;
	}
	pass = *shared_pass;
	if (!pass.active)
	{
		pass.active = true;
		pass.taken = 0;
		pass.slotno = 0;
		pass.pid = 0;
	}
	if (pass.pid != 0)
	{
		if (still_stalled())
			(void) first_batches(&PinpointSlotsShared->slots[pass.slotno],
								 &first);
		else
		{
			pass.pid = 0;
			pass.slotno++;
		}
	}
	for (; pass.pid == 0 && pass.slotno < MaxBackends; pass.slotno++)
	{
		PinpointSlot *slot = &PinpointSlotsShared->slots[pass.slotno];

		if (!pinpoint_sharing_stalled(slot))
			continue;
		pass.first_unread = first_batches(slot, &first);
		if (first.batch == NULL)
			continue;
		pass.pid = readable(slot)->pid;
		pass.dboid = readable(slot)->dboid;
		pass.group = readable(slot)->roleid;
		pass.first = first.sequence;
		pass.batch = first.batch;
		pass.last = pinpoint_message_log_last();
		break;
	}
	if (pass.pid != 0)
		(void) pinpoint_slot_set_ref(pinned, &first);
	else
	{
		pass.active = false;
		pass.ended = now;
		pass.next = TimestampTzPlusMilliseconds(now, PASS_INTERVAL) +
			PASS_PAUSE_FACTOR * pass.taken;
		pass.portion++;
		*shared_pass = pass;
	}
	LWLockRelease(PinpointOrderLock);
	return pass.pid != 0;
}

/*
 * Does the current session of the pass still stay in its transaction, and has
 * it not read since the pass came to it?  Then pass.batch still exists.  The
 * caller holds PinpointOrderLock.
 *
 * A session that had only reassigned notifications may have read them, and
 * others may have been reassigned to it since then.  It does not matter if all
 * batches since pass.first are pinned again: any of these that still exists
 * has kept the later ones.
 */
static bool
still_stalled(void)
{
	PinpointSlot *slot = &PinpointSlotsShared->slots[pass.slotno];
	PinpointBatchRef first;

	AssertHeld(PinpointOrderLock);
	Assert(pass.pid != 0 && pass.slotno < MaxBackends);

	return readable(slot)->pid == pass.pid &&
		readable(slot)->dboid == pass.dboid &&
		readable(slot)->roleid == pass.group &&
		pinpoint_sharing_stalled(slot) &&
		first_batches(slot, &first) == pass.first_unread &&
		first.batch != NULL && first.sequence <= pass.first;
}

/*
 * Reassign the notifications of one batch, as far as members of the group are
 * ready.  Returns false if the session does not stay in its transaction any
 * more.
 */
static bool
reassign_stalled_batch(PinpointBatch *batch)
{
	uint32		index = 0;
	uint32		number;

	AssertNoLockHeld();
	Assert(batch->state == PINPOINT_BATCH_PUBLISHED);

	if (batch->nassignments == 0 || batch->dboid != pass.dboid)
		return true;

	while (pinpoint_sharing_next_undelivered(batch, pass.slotno,
											 pinpoint_batch_published(batch)->sequence >= pass.first_unread,
											 &index, &number))
	{
		if (!try_reassign(batch, index, number))
			return false;
		index++;
	}
	return true;
}

/*
 * The same for one assignment.  Without PinpointOrderLock, it checks first
 * whether any member is ready.
 */
static bool
try_reassign(PinpointBatch *batch, uint32 index, uint32 number)
{
	PinpointPublication publication;
	Reassignment reassignment = {
		.publication = &publication,
		.ref = pinpoint_message_log_ref(batch),
		.index = index,
		.channel = number,
		.slotno = pass.slotno,
		.group = pass.group,
		.least = PINPOINT_READY_SOON,
	};
	const char *name = channel_name(batch, number);
	uint32		hash = pinpoint_batch_channel_hash(name);
	bool		stalled;

	AssertNoLockHeld();
	pinpoint_channel_map_lookup(batch->dboid, name, hash, find_ready,
								&reassignment);
	if (!reassignment.any_ready)
		return true;

	pinpoint_publication_begin(&publication);
	stalled = still_stalled();
	if (stalled)
		pinpoint_channel_map_lookup(batch->dboid, name, hash, reassign_to,
									&reassignment);
	pinpoint_publication_end(&publication);
	return stalled;
}

static void
find_ready(const PinpointListeners *listeners, void *arg)
{
	Reassignment *reassignment = arg;

	reassignment->any_ready =
		pinpoint_sharing_any_ready(reassignment->ref.batch,
								   reassignment->channel, listeners,
								   reassignment->group);
}

/*
 * End a portion: move the pass on, unless another process has done it
 * meanwhile, and remove the pin.
 */
static void
end_portion(TimestampTz began, PinpointBatchRef *pinned)
{
	TimestampTz now = GetCurrentTimestamp();

	Assert(pinned->batch != NULL);
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	if (shared_pass->portion == pass.portion)
	{
		/* The clock can be set. */
		if (now > began)
			pass.taken += Min(now - began, MAX_PORTION_TIME);
		pass.portion++;
		*shared_pass = pass;
	}
	if (pinpoint_slot_set_ref(pinned, NULL))
		pinpoint_message_log_trim();
	LWLockRelease(PinpointOrderLock);
}
