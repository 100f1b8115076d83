/*-------------------------------------------------------------------------
 *
 * sharing.c
 *		Selects the sessions that receive a notification on a shared channel.
 *
 * If many sessions wait for work on one channel, a notification wakes all of
 * them, although one can do the work.  Therefore sessions can share a channel
 * (pinpoint.shared_channels).  A notification is sent to all sessions that
 * listen on its channel without sharing it, and to a few of those that share
 * it: in turn, idle sessions first.
 *
 * Sessions share a channel only with sessions of the same role, which form a
 * group.  Each group receives every notification, independently of other
 * groups, so no role can take the notifications of another one.  The number of
 * members that receive it is the share_limit of the member that joined the
 * group last.
 *
 * They are selected when the batch is published.  The batch stores them, as
 * PinpointAssignments, since a session may read the batch for another reason
 * and must know that the notification is not assigned to it.  The space for
 * assignments is reserved with the batch.  Its size is their maximum number
 * according to a look-up, and one for each other channel.  This can be too
 * small, if several sessions have begun to share a channel since then, or if
 * the batch has more channels than are looked up one by one.  Then all sharing
 * sessions receive the notifications on that channel and on those after it in
 * the batch.  Every notification is received at least once, and repetition is
 * allowed; but these notifications are not reassigned.
 *
 * If a session stops sharing before it has read its assigned notifications, or
 * stays in a transaction, they are reassigned to another session, and marked;
 * see reassign.c.  If that session has already read past the batch, it goes
 * back, and receives these notifications out of commit order.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "tcop/pquery.h"

#include "base/check.h"
#include "base/compat.h"
#include "wakeup/channel_map.h"
#include "wakeup/sharing.h"
#include "wakeup/slot_private.h"
#include "wakeup/slots.h"

/*
 * PinpointAssignment.receiver: a slot number, possibly with a flag, or
 * RECEIVER_NOBODY.
 */
#define RECEIVER_REASSIGNED	((uint32) 1 << 31)
#define RECEIVER_HAS_IT		((uint32) 1 << 30)	/* the session has delivered
												 * the notification */
#define RECEIVER_FLAGS		(RECEIVER_REASSIGNED | RECEIVER_HAS_IT)
#define RECEIVER_NOBODY		(~RECEIVER_FLAGS)

/* Results of readiness(). */
#define READY_LATER			0
#define READY_AFTER_TRANSACTION	1
#define READY_SOON			PINPOINT_READY_SOON
#define READY_AFTER_REST	3
#define READY_NOW			4

/*
 * Microseconds after which a session that sends is not considered as one that
 * will read again soon: its client may not read.
 */
#define LONG_SENDING		1000000

/* Will the current transaction end by COMMIT AND CHAIN, or similarly? */
static bool chains = false;

static void set_room(const PinpointListeners *listeners, void *arg);
static uint32 assign_to_group(PinpointBatch *batch, uint32 channel,
							  const PinpointListeners *listeners,
							  int first_member, int n,
							  PinpointReceiverVisitor visitor, void *arg);
static bool is_assigned(PinpointBatch *batch, int first, int slotno);
static int	readiness(PinpointSlot *slot);
static bool sends_for_long(PinpointSlot *slot);
static int	best_member(PinpointBatch *batch, uint32 channel,
						const PinpointListeners *listeners, Oid group,
						int least);
static void advance_turn(const PinpointListeners *listeners, Oid group);
static PinpointAssignment *find_assignment(PinpointBatch *batch, uint32 channel,
										   int slotno);

/*
 * Reserve space in a batch for its receivers on channels that are shared now,
 * and for one receiver on each other channel.  Called before the commit.
 */
void
pinpoint_sharing_reserve(PinpointBatchLayout *layout)
{
	bool		is_shared = pinpoint_channel_map_is_shared();
	int			nassignments = 0;

	AssertNoLockHeld();
	for (uint32 i = 0; i < layout->nchannels; i++)
	{
		PinpointNotification *n = layout->channels[i];
		int			room = 1;

		if (is_shared)
			pinpoint_channel_map_lookup(MyDatabaseId, n->data,
										n->channel_hash, set_room, &room);
		nassignments += room;
	}
	nassignments = Min(nassignments, PG_UINT16_MAX);
	pinpoint_batch_layout_add_assignments(layout, nassignments);
}

static void
set_room(const PinpointListeners *listeners, void *arg)
{
	int		   *room = arg;

	if (listeners->nsharers > 0)
		*room = pinpoint_channel_entry_max_receivers(listeners);
}

/*
 * Set whether the current transaction will end by COMMIT AND CHAIN, or
 * similarly.
 */
void
pinpoint_sharing_set_chains(bool value)
{
	chains = value;
}

/*
 * Assign the notifications of a batch on a shared channel to some members of
 * each group, and call visitor for each of these.  Called at the publication
 * of the batch.
 *
 * channel: number of the channel within the batch.
 *
 * Returns how often it has looked at a listener.
 *
 * The caller holds PinpointOrderLock exclusively, and the lock of the
 * partition of the channel.
 */
uint32
pinpoint_sharing_assign(PinpointBatch *batch, uint32 channel,
						const PinpointListeners *listeners,
						PinpointReceiverVisitor visitor, void *arg)
{
	int			n = listeners->nsharers;
	uint32		nlooks = 0;
	int			wanted;
	int			size;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(pinpoint_lock_highest_rank() == PINPOINT_RANK_CHANNEL_MAP);
	Assert(channel < batch->nchannels);

	if (n == 0)
		return 0;

	wanted = Min(pinpoint_channel_entry_max_receivers(listeners), n);
	if (channel >= batch->all_share_from ||
		wanted > batch->max_assignments - batch->nassignments)
	{
		/*
		 * Notifications on earlier channels of the batch remain assigned.
		 * They can be reassigned, but not to a session that has received
		 * them.
		 */
		batch->all_share_from = Min(batch->all_share_from, channel);
		for (int i = 0; i < n; i++)
			visitor(pinpoint_channel_entry_sharer(listeners, i)->slotno, arg);
		return n;
	}

	for (int first = 0; first < n; first += size)
	{
		size = pinpoint_channel_entry_group_size(listeners, first);
		nlooks += assign_to_group(batch, channel, listeners, first, size,
								  visitor, arg);
	}
	return nlooks;
}

/*
 * The same for the members of one group.
 *
 * first_member: index of its first member among the sharing listeners.  n:
 * number of its members.
 */
static uint32
assign_to_group(PinpointBatch *batch, uint32 channel,
				const PinpointListeners *listeners, int first_member, int n,
				PinpointReceiverVisitor visitor, void *arg)
{
	PinpointAssignment *given = pinpoint_batch_assignments(batch);
	PinpointListener *newest =
		pinpoint_channel_entry_sharer(listeners, first_member + n - 1);
	PinpointListener *oldest =
		pinpoint_channel_entry_sharer(listeners, first_member);
	int			wanted = Min(newest->share_limit, n);
	uint32		turn = oldest->turn;
	int			first = batch->nassignments;
	uint32		nlooks = 0;

	/*
	 * First the sessions with the highest readiness, then those with the next
	 * lower one that exists, and so on.
	 */
	for (int least = READY_NOW, next; least >= 0 && wanted > 0; least = next)
	{
		next = -1;				/* highest readiness among those that are
								 * skipped */
		for (int i = 0; i < n && wanted > 0; i++)
		{
			int			member = (turn + i) % n;
			int			slotno = pinpoint_channel_entry_sharer(listeners,
															   first_member +
															   member)->slotno;
			int			ready = readiness(&PinpointSlotsShared->slots[slotno]);

			nlooks++;
			if (readable(&PinpointSlotsShared->slots[slotno])->evicted)
				continue;
			if (ready < least)
			{
				next = Max(next, ready);
				continue;
			}
			if (is_assigned(batch, first, slotno))
				continue;

			Assert(batch->nassignments < batch->max_assignments);
			given[batch->nassignments].channel = channel;
			pg_atomic_init_u32(&given[batch->nassignments].receiver, slotno);
			batch->nassignments++;
			oldest->turn = (uint32) member + 1;
			wanted--;
			visitor(slotno, arg);
		}
	}
	return nlooks;
}

/*
 * Is there an assignment to a session, from the index "first" on among the
 * assignments of a batch?
 */
static bool
is_assigned(PinpointBatch *batch, int first, int slotno)
{
	PinpointAssignment *given = pinpoint_batch_assignments(batch);

	for (int i = first; i < batch->nassignments; i++)
	{
		if (pg_atomic_read_u32(&given[i].receiver) == (uint32) slotno)
			return true;
	}
	return false;
}

/*
 * Returns how soon a session will read a notification that is assigned to it:
 *
 * READY_NOW		at once: it is idle, and in no transaction
 * READY_AFTER_REST	when its pinpoint.latency_target has passed, or its pause
 * READY_SOON		after earlier notifications, which it reads now or soon: it
 *					is in no transaction of its client
 * READY_AFTER_TRANSACTION	when its transaction ends
 * READY_LATER		after that, and after earlier notifications; or when its
 *					client reads
 *
 * A transaction can take long, so a session that has something to read, but is
 * in none, is better than one that is in a transaction.
 *
 * PGPROC is read without a lock, and so is the slot if the caller does not
 * hold PinpointOrderLock.  A wrong result is acceptable: it affects only the
 * choice of the session.
 *
 * A session that publishes is in no transaction at this moment.  But the next
 * one begins at once if a procedure has committed, or after COMMIT AND CHAIN.
 */
static int
readiness(PinpointSlot *slot)
{
	const volatile PinpointSlotState *state = read_unlocked(slot);
	bool		in_transaction =
		LocalTransactionIdIsValid(PINPOINT_PROC_LXID(state->proc)) ||
		(state->proc == MyProc && (chains || ActivePortal != NULL));

	Assert(pinpoint_lock_highest_rank() == PINPOINT_RANK_CHANNEL_MAP);

	switch (state->state)
	{
		case PINPOINT_IDLE:
			return in_transaction ? READY_AFTER_TRANSACTION : READY_NOW;
		case PINPOINT_RESTING:
			return in_transaction ? READY_AFTER_TRANSACTION : READY_AFTER_REST;
		case PINPOINT_SIGNALLED:
			/* A session with a reminder has not read for a second. */
			return in_transaction || state->reminders > 0 ?
				READY_LATER : READY_SOON;
		case PINPOINT_READING:
		case PINPOINT_READING_AGAIN:
			return sends_for_long(slot) ? READY_LATER : READY_SOON;
	}
	return READY_LATER;			/* keep the compiler quiet */
}

/*
 * Has a session that reads been sending for long?  The current time is not
 * needed: the time of the last check for reminders is similar.
 */
static bool
sends_for_long(PinpointSlot *slot)
{
	TimestampTz since = (TimestampTz) pg_atomic_read_u64(&slot->sending_since);

	return since != 0 &&
		PinpointSlotsShared->last_reminders - since > LONG_SENDING;
}

/*
 * Is a session in a transaction for long, with something to read?  The caller
 * holds PinpointOrderLock.
 */
bool
pinpoint_sharing_stalled(PinpointSlot *slot)
{
	AssertHeld(PinpointOrderLock);
	Assert(readable(slot)->state != PINPOINT_SIGNALLED ||
		   readable(slot)->pid != 0);

	return readable(slot)->pid != 0 && readable(slot)->shares &&
		readable(slot)->reminders > 0 &&
		readable(slot)->state == PINPOINT_SIGNALLED &&
		!readable(slot)->evicted &&
		LocalTransactionIdIsValid(PINPOINT_PROC_LXID(readable(slot)->proc));
}

/*
 * The assignment of a notification on a channel to a session, or NULL.
 * Assignments are in the order of their channels, because channels are looked
 * up in this order.
 */
static PinpointAssignment *
find_assignment(PinpointBatch *batch, uint32 channel, int slotno)
{
	PinpointAssignment *given = pinpoint_batch_assignments(batch);
	int			low = 0;
	int			high = batch->nassignments;

	Assert(channel < batch->nchannels);
	Assert(slotno >= 0 && slotno < MaxBackends);

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (given[middle].channel < channel)
			low = middle + 1;
		else
			high = middle;
	}

	for (int i =
		 low; i < batch->nassignments && given[i].channel == channel; i++)
	{
		if ((pg_atomic_read_u32(&given[i].receiver) & ~RECEIVER_FLAGS) ==
			(uint32) slotno)
			return &given[i];
	}
	return NULL;
}

/*
 * Are the notifications of a batch on a shared channel assigned to this
 * session?  It reads the batch, and needs no lock.
 */
PinpointShare
pinpoint_sharing_share(PinpointBatch *batch, uint32 channel)
{
	PinpointAssignment *assignment =
		find_assignment(batch, channel, PINPOINT_MY_SLOT_NUMBER);
	uint32		flags;

	/* This page may be on disk. */
	AssertNotHeld(PinpointOrderLock);
	Assert(batch->state == PINPOINT_BATCH_PUBLISHED);

	if (assignment == NULL)
		return PINPOINT_SHARE_NONE;
	flags = pg_atomic_read_u32(&assignment->receiver) & RECEIVER_FLAGS;
	if (flags & RECEIVER_HAS_IT)
		return PINPOINT_SHARE_NONE;
	return flags & RECEIVER_REASSIGNED ?
		PINPOINT_SHARE_REASSIGNED : PINPOINT_SHARE_ASSIGNED;
}

/*
 * This session has delivered the notifications of a batch on a channel.  If
 * they were assigned to it, it will not deliver or reassign them again.
 */
void
pinpoint_sharing_delivered(PinpointBatch *batch, uint32 channel)
{
	PinpointAssignment *assignment =
		find_assignment(batch, channel, PINPOINT_MY_SLOT_NUMBER);

	AssertNotHeld(PinpointOrderLock);
	Assert(batch->state == PINPOINT_BATCH_PUBLISHED);

	if (assignment != NULL)
		pg_atomic_write_u32(&assignment->receiver,
							PINPOINT_MY_SLOT_NUMBER | RECEIVER_HAS_IT);
}

/*
 * Find the next assignment of a batch to a session that it has not delivered.
 * The result may be outdated when pinpoint_sharing_reassign() is called.
 *
 * unread: has the session not read the batch?  If it has, only reassigned
 * notifications remain.  *index: index from which on to search; set to the
 * index of the assignment.  *channel: set to the number of its channel within
 * the batch.
 *
 * Returns false if there is none.
 */
bool
pinpoint_sharing_next_undelivered(PinpointBatch *batch, int slotno,
								  bool unread, uint32 *index,
								  uint32 *channel)
{
	PinpointAssignment *assignments = pinpoint_batch_assignments(batch);

	AssertNotHeld(PinpointOrderLock);
	Assert(batch->state == PINPOINT_BATCH_PUBLISHED);

	for (; *index < batch->nassignments; (*index)++)
	{
		uint32		receiver =
			pg_atomic_read_u32(&assignments[*index].receiver);

		if ((receiver & ~RECEIVER_REASSIGNED) == (uint32) slotno &&
			(unread || (receiver & RECEIVER_REASSIGNED)))
		{
			*channel = assignments[*index].channel;
			return true;
		}
	}
	return false;
}

/*
 * Returns the slot number of a member of a group with the highest readiness,
 * among those without an assignment for a channel in a batch; -1 if there is
 * none with at least the readiness "least".
 *
 * channel: number of the channel within the batch.
 *
 * The caller holds the lock of the partition of the channel.
 */
static int
best_member(PinpointBatch *batch, uint32 channel,
			const PinpointListeners *listeners, Oid group, int least)
{
	PinpointListener *oldest;
	int			n = 0;
	int			first_member =
		pinpoint_channel_entry_find_group(listeners, group, &n);
	int			best = -1;
	int			best_readiness = least - 1;

	Assert(pinpoint_lock_highest_rank() == PINPOINT_RANK_CHANNEL_MAP);
	Assert(n >= 0 && n <= listeners->nsharers);

	if (n == 0)
		return -1;
	oldest = pinpoint_channel_entry_sharer(listeners, first_member);

	for (int i = 0; i < n && best_readiness < READY_NOW; i++)
	{
		int			candidate = (oldest->turn + i) % n;
		int			slotno = pinpoint_channel_entry_sharer(listeners,
														   first_member +
														   candidate)->slotno;
		PinpointSlot *slot = &PinpointSlotsShared->slots[slotno];
		int			ready = readiness(slot);

		if (ready > best_readiness && !read_unlocked(slot)->evicted &&
			find_assignment(batch, channel, slotno) == NULL)
		{
			best = slotno;
			best_readiness = ready;
		}
	}
	return best;
}

/*
 * The next member of a group is in turn.  The field stays an index: it must not
 * grow until it wraps, because 2^32 is not a multiple of each size of a group,
 * and a loop over all members would miss some then.
 *
 * The caller holds PinpointOrderLock exclusively, and the lock of the
 * partition.
 */
static void
advance_turn(const PinpointListeners *listeners, Oid group)
{
	int			n = 0;
	int			first_member =
		pinpoint_channel_entry_find_group(listeners, group, &n);
	PinpointListener *oldest =
		pinpoint_channel_entry_sharer(listeners, first_member);

	AssertHeldExclusive(PinpointOrderLock);
	Assert(n > 0);

	oldest->turn = (oldest->turn + 1) % n;
}

/*
 * Is there a member that could receive a notification instead of a session
 * that stays in a transaction?  The result may be outdated.
 *
 * The caller holds the lock of the partition of the channel.
 */
bool
pinpoint_sharing_any_ready(PinpointBatch *batch, uint32 channel,
						   const PinpointListeners *listeners, Oid group)
{
	return best_member(batch, channel, listeners, group, READY_SOON) >= 0;
}

/*
 * Change an assignment of a session to another member of its group: one with
 * the highest readiness.  If there is none with at least the readiness
 * "least", and this is 0, RECEIVER_NOBODY is stored.  Does nothing if another
 * process has changed the assignment meanwhile.
 *
 * index: of the assignment.  slotno: of the session.  group: its role.
 * listeners: the listeners on its channel, NULL if there are none.
 *
 * Returns the slot number, or -1 if there is no such session.
 *
 * The caller holds PinpointOrderLock exclusively, and the lock of the
 * partition of the channel if listeners is not NULL.  The session does not
 * read meanwhile: it is SIGNALLED, or is the caller.
 */
int
pinpoint_sharing_reassign(PinpointBatch *batch, uint32 index, int slotno,
						  Oid group, const PinpointListeners *listeners,
						  int least)
{
	PinpointAssignment *assignment = &pinpoint_batch_assignments(batch)[index];
	int			best = -1;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(listeners == NULL ||
		   pinpoint_lock_highest_rank() == PINPOINT_RANK_CHANNEL_MAP);
	Assert(index < batch->nassignments);
	Assert(slotno == PINPOINT_MY_SLOT_NUMBER ||
		   readable(&PinpointSlotsShared->slots[slotno])->state ==
		   PINPOINT_SIGNALLED);

	if ((pg_atomic_read_u32(&assignment->receiver) & ~RECEIVER_REASSIGNED) !=
		(uint32) slotno)
		return -1;

	if (listeners != NULL)
		best = best_member(batch, assignment->channel, listeners, group, least);
	if (best >= 0)
	{
		pg_atomic_write_u32(&assignment->receiver,
							(uint32) best | RECEIVER_REASSIGNED);
		advance_turn(listeners, group);
	}
	else if (least == 0)
		pg_atomic_write_u32(&assignment->receiver, RECEIVER_NOBODY);
	return best;
}
