/*-------------------------------------------------------------------------
 *
 * sharing.c
 *		Selects the sessions that receive a notification on a shared channel.
 *
 * If many sessions wait for work on one channel, a notification wakes all of them,
 * although one can do the work.  Therefore sessions can share a channel
 * (pinpoint.shared_channels).  A notification is sent to all sessions that listen on
 * its channel without sharing it, and to a few of those that share it: in turn, idle
 * sessions first.
 *
 * Sessions share a channel only with sessions of the same role, which form a group.
 * Each group receives every notification, independently of other groups, so no role
 * can take the notifications of another one.  The number of members that receive it is
 * the share_limit of the member that joined the group last.
 *
 * They are selected when the batch is published.  The batch stores them, as
 * PinpointAssignments, since a session may read the batch for another reason and must
 * know that the notification is not assigned to it.  The space for assignments is
 * reserved with the batch.  Its size is their maximum number according to a look-up,
 * and one for each other channel.  This can be too small, if several sessions have
 * begun to share a channel since then, or if the batch has more channels than are
 * looked up one by one.  Then all sharing sessions receive the notifications on that
 * channel and on those after it in the batch.  Every notification is received at least
 * once, and repetition is allowed; but these notifications are not reassigned.
 *
 * If a session stops sharing before it has read its assigned notifications, they are
 * reassigned to another session, and marked; see reassignment.c.  If that session has
 * already read past the batch, it goes back, and receives these notifications out of
 * commit order.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "tcop/pquery.h"

#include "base/compat.h"
#include "wakeup/sharing.h"
#include "wakeup/slots.h"

/* PinpointAssignment.receiver: a slot number, perhaps with a flag, or nobody. */
#define RECEIVER_REASSIGNED	((uint32) 1 << 31)
#define RECEIVER_HAS_IT		((uint32) 1 << 30)	/* it was reassigned, and is
												 * delivered */
#define RECEIVER_FLAGS		(RECEIVER_REASSIGNED | RECEIVER_HAS_IT)
#define RECEIVER_NOBODY		(~RECEIVER_FLAGS)

/* See readiness(). */
#define MAX_READINESS		3

/* Is the current transaction about to end by COMMIT AND CHAIN, or the like? */
static bool chains = false;

static void set_room(const PinpointListeners *listeners, void *arg);
static void assign_to_group(PinpointBatch *batch, uint32 channel,
							const PinpointListeners *listeners,
							int first_member, int n,
							PinpointReceiverVisitor visitor, void *arg);
static bool is_assigned(PinpointBatch *batch, int first, int slotno);
static int	readiness(PinpointSlot *slot);
static PinpointAssignment *find_assignment(PinpointBatch *batch, uint32 channel,
								 int slotno);

/*
 * Before commit: make room for the receivers of what the batch will have on
 * channels that are shared, now or when it is published.
 */
void
pinpoint_sharing_reserve(PinpointBatchLayout *layout)
{
	bool		is_shared = pinpoint_channel_map_is_shared();
	int			nassignments = 0;

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
		*room = pinpoint_listeners_max_receivers(listeners);
}

/*
 * Is the current transaction about to end by COMMIT AND CHAIN, or the like?
 */
void
pinpoint_sharing_set_chains(bool value)
{
	chains = value;
}

/*
 * A batch is being published: give what it has on a channel to some members of each
 * group that shares the channel, and call visitor for each of them.
 *
 * The caller holds PinpointOrderLock and the lock of the channel's partition.
 */
void
pinpoint_sharing_assign(PinpointBatch *batch, uint32 channel,
					  const PinpointListeners *listeners,
					  PinpointReceiverVisitor visitor, void *arg)
{
	int			n = listeners->nsharers;
	int			wanted;
	int			size;

	if (n == 0)
		return;

	wanted = Min(pinpoint_listeners_max_receivers(listeners), n);
	if (channel >= batch->all_share_from ||
		wanted > batch->max_assignments - batch->nassignments)
	{
		/*
		 * Not the channels before this one: what was given of them may be
		 * handed on, and must not come to a session that has it.
		 */
		batch->all_share_from = Min(batch->all_share_from, channel);
		for (int i = 0; i < n; i++)
			visitor(pinpoint_sharer(listeners, i)->slotno, arg);
		return;
	}

	for (int first = 0; first < n; first += size)
	{
		size = pinpoint_listeners_group_size(listeners, first);
		assign_to_group(batch, channel, listeners, first, size, visitor, arg);
	}
}

/*
 * The same for the members of one group.
 */
static void
assign_to_group(PinpointBatch *batch, uint32 channel,
				const PinpointListeners *listeners, int first_member, int n,
				PinpointReceiverVisitor visitor, void *arg)
{
	PinpointAssignment *given = pinpoint_batch_assignments(batch);
	PinpointListener *newest = pinpoint_sharer(listeners, first_member + n - 1);
	PinpointListener *oldest = pinpoint_sharer(listeners, first_member);
	int			wanted = Min(newest->share_limit, n);
	uint32		turn = oldest->turn;
	int			first = batch->nassignments;

	/*
	 * First those who wait for something to do, then those who will before
	 * long, then those who are at least not behind, then whoever is left.
	 */
	for (int least = MAX_READINESS, next; least >= 0 && wanted > 0; least = next)
	{
		next = -1;				/* the readiest of those who are passed over */
		for (int i = 0; i < n && wanted > 0; i++)
		{
			int			place = (turn + i) % n;
			int			slotno = pinpoint_sharer(listeners,
													 first_member + place)->slotno;
			int			ready = readiness(&PinpointSlotArray->slots[slotno]);

			if (PinpointSlotArray->slots[slotno].evicted)
				continue;
			if (ready < least)
			{
				next = Max(next, ready);
				continue;
			}
			if (is_assigned(batch, first, slotno))
				continue;

			given[batch->nassignments].channel = channel;
			pg_atomic_init_u32(&given[batch->nassignments].receiver, slotno);
			batch->nassignments++;
			oldest->turn = (uint32) place + 1;
			wanted--;
			visitor(slotno, arg);
		}
	}
}

/*
 * Was something given to a session already, at this place among the
 * PinpointAssignments of a batch or behind it?
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
 * How soon is a session going to read what is given to it?
 *
 * One that is in a transaction reads its notifications only when that ends; one that
 * rests, when its pinpoint.latency_target has passed.  Its PGPROC is looked at
 * without a lock: it is a matter of taste, not of truth.
 *
 * This session is in no transaction while it publishes, but it will be in the next
 * one at once if a procedure has committed, or after COMMIT AND CHAIN.
 */
static int
readiness(PinpointSlot *slot)
{
	if (slot->state != PINPOINT_IDLE && slot->state != PINPOINT_RESTING)
		return 0;
	if (LocalTransactionIdIsValid(PINPOINT_PROC_LXID(slot->proc)))
		return 1;
	if (slot->proc == MyProc && (chains || ActivePortal != NULL))
		return 1;
	return slot->state == PINPOINT_RESTING ? 2 : MAX_READINESS;
}

/*
 * What was given to a session of this channel.  PinpointAssignments are in the order of
 * their channels, as these are looked up one after the other.
 */
static PinpointAssignment *
find_assignment(PinpointBatch *batch, uint32 channel, int slotno)
{
	PinpointAssignment *given = pinpoint_batch_assignments(batch);
	int			low = 0;
	int			high = batch->nassignments;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (given[middle].channel < channel)
			low = middle + 1;
		else
			high = middle;
	}

	for (int i = low; i < batch->nassignments && given[i].channel == channel; i++)
	{
		if ((pg_atomic_read_u32(&given[i].receiver) & ~RECEIVER_FLAGS) ==
			(uint32) slotno)
			return &given[i];
	}
	return NULL;
}

/*
 * Is what a batch has on a channel for this session, which shares it?  The session reads
 * the batch, and needs no lock.
 */
PinpointShare
pinpoint_sharing_share(PinpointBatch *batch, uint32 channel)
{
	PinpointAssignment *assignment =
		find_assignment(batch, channel, PINPOINT_MY_SLOT_NUMBER);
	uint32		flags;

	if (assignment == NULL)
		return PINPOINT_SHARE_NONE;
	flags = pg_atomic_read_u32(&assignment->receiver) & RECEIVER_FLAGS;
	if (flags & RECEIVER_HAS_IT)
		return PINPOINT_SHARE_NONE;
	return flags & RECEIVER_REASSIGNED ?
		PINPOINT_SHARE_REASSIGNED : PINPOINT_SHARE_ASSIGNED;
}

/*
 * This session has delivered what it has of a batch on a channel.  If it was assigned to
 * the session, it does not deliver it again, nor is it to be reassigned.
 */
void
pinpoint_sharing_delivered(PinpointBatch *batch, uint32 channel)
{
	PinpointAssignment *assignment =
		find_assignment(batch, channel, PINPOINT_MY_SLOT_NUMBER);

	if (assignment != NULL)
		pg_atomic_write_u32(&assignment->receiver,
							PINPOINT_MY_SLOT_NUMBER | RECEIVER_HAS_IT);
}

/*
 * Something that was assigned to this session and that it has not delivered, at this
 * place among the assignments of a batch or behind it.  Sets the place and the channel's
 * number; false if there is none.  Needs no lock, as nobody assigns anything to the
 * session that it is about to pass on.
 *
 * unread: has this session not read the batch?  If it has, only what was reassigned to
 * it is left.
 */
bool
pinpoint_sharing_next_undelivered(PinpointBatch *batch, bool unread,
								  uint32 *place, uint32 *channel)
{
	PinpointAssignment *assignments = pinpoint_batch_assignments(batch);

	for (; *place < batch->nassignments; (*place)++)
	{
		uint32		receiver = pg_atomic_read_u32(&assignments[*place].receiver);

		if ((receiver & ~RECEIVER_REASSIGNED) ==
			(uint32) PINPOINT_MY_SLOT_NUMBER &&
			(unread || (receiver & RECEIVER_REASSIGNED)))
		{
			*channel = assignments[*place].channel;
			return true;
		}
	}
	return false;
}

/*
 * Reassign what was assigned at a place to the readiest of the other members of this
 * session's group to which it was not assigned yet.
 *
 * Returns the slot number, or -1 if there is no such session.
 *
 * The caller holds PinpointOrderLock exclusively, and the lock of the channel's
 * partition if listeners is not NULL.
 */
int
pinpoint_sharing_reassign(PinpointBatch *batch, uint32 place,
						  const PinpointListeners *listeners)
{
	PinpointAssignment *assignment = &pinpoint_batch_assignments(batch)[place];
	PinpointListener *oldest = NULL;
	int			first_member = 0;
	int			n = 0;
	int			best = -1;
	int			best_readiness = -1;

	if (listeners != NULL)
		first_member = pinpoint_listeners_find_group(listeners,
													 pinpoint_slot_role(), &n);
	if (n > 0)
		oldest = pinpoint_sharer(listeners, first_member);

	for (int i = 0; i < n && best_readiness < MAX_READINESS; i++)
	{
		int			candidate = (oldest->turn + i) % n;
		int			slotno = pinpoint_sharer(listeners,
												 first_member + candidate)->slotno;
		PinpointSlot *slot = &PinpointSlotArray->slots[slotno];
		int			ready = readiness(slot);

		if (ready > best_readiness && !slot->evicted &&
			find_assignment(batch, assignment->channel, slotno) == NULL)
		{
			best = slotno;
			best_readiness = ready;
		}
	}

	if (best < 0)
		pg_atomic_write_u32(&assignment->receiver, RECEIVER_NOBODY);
	else
	{
		pg_atomic_write_u32(&assignment->receiver,
							(uint32) best | RECEIVER_REASSIGNED);
		oldest->turn += 1;
	}
	return best;
}
