/*-------------------------------------------------------------------------
 *
 * reassignment.c
 *		Reassigns notifications of a session that stops sharing a channel.
 *
 * A session stops sharing a channel by UNLISTEN or at its end.  Notifications may have
 * been assigned to it that it has not delivered yet.  It reads all its unread batches,
 * and reassigns each of these notifications to another session that shares the
 * channel; see sharing.c.  It has left the channel map before, so no further
 * notification on that channel is assigned to it.
 *
 * Its slot pins all batches that it reads, and only the assigned receivers in them can
 * change.  So it needs no lock to read them, whatever their number is.  It takes
 * PinpointOrderLock for each notification that it reassigns.
 *
 * The slot of the other session has a position for this, the first batch with a
 * notification that was reassigned to it:
 *
 *	IDLE, RESTING	the session is signalled.
 *	SIGNALLED		it will use the position when it begins to read.
 *	READING			it will read again when it is done.
 *
 * Sessions that end do this one after the other.  When all clients of a job queue
 * disconnect at once, a hundred sessions would take the processor time of others.
 * Also, the sessions that wait can leave the channel map first, so that no
 * notification is reassigned to a session that ends, too.  A session that executes
 * UNLISTEN does not wait for them.
 *
 * A session that ends during a delivery may have sent a part of it already.  It
 * reassigns all notifications of this delivery: repeating one is better than losing
 * one.
 *
 * This file must not fail, because it runs after commit and at exit.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"

#include "base/compat.h"
#include "base/counters.h"
#include "base/locks.h"
#include "queue/message_log.h"
#include "wakeup/channel_map.h"
#include "wakeup/reassignment.h"
#include "wakeup/sharing.h"
#include "wakeup/slots.h"
#include "wakeup/wakeup.h"

/* The assignment that is being reassigned. */
typedef struct Reassignment
{
	PinpointPosition position;	/* of the batch */
	uint32		place;			/* index of the assignment in the batch */
	bool		any_listener;	/* set if the channel has a listener */
} Reassignment;

static void reassign_batch(PinpointBatch *batch, bool unread,
						   PinpointStillShares still_shares);
static const char *channel_name(PinpointBatch *batch, uint32 number);
static void reassign_to(const PinpointListeners *listeners, void *arg);
static void let_read(int slotno, const PinpointPosition *position);

/*
 * Reassign the notifications that were assigned to this session on channels
 * that it does not share any more.  It has left these channels in the channel
 * map, and still has its slot.  Does not fail.
 *
 * The caller holds none of the locks.
 */
void
pinpoint_reassign(PinpointStillShares still_shares)
{
	PinpointSlot *slot = &PinpointSlotArray->slots[PINPOINT_MY_SLOT_NUMBER];
	const PinpointPosition *unread;
	PinpointBatch *batch;
	PinpointBatch *last;
	uint64		first_unread;
	bool		one_by_one = proc_exit_inprogress;

	if (!pinpoint_slot_registered())
		return;

	/* Replay waits for the space.  The other sessions would pin it then. */
	if (pinpoint_slot_evicted() == PINPOINT_EVICTED_QUEUE_FULL)
		return;

	if (one_by_one)
		LWLockAcquire(PinpointReassignmentLock, LW_EXCLUSIVE);

	/*
	 * Concurrently, other sessions can reassign notifications to this one, but
	 * only on channels that it still shares.
	 */
	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	unread = &slot->unread;

	/* It may be reading only reassigned notifications, when it ends. */
	if (unread->batch == NULL && slot->state == PINPOINT_READING_AGAIN)
		unread = &slot->again;
	batch = unread->batch;
	first_unread = batch != NULL ? unread->sequence : PG_UINT64_MAX;
	if (slot->reassigned.batch != NULL &&
		(batch == NULL || slot->reassigned.sequence < first_unread))
		batch = slot->reassigned.batch;
	last = pinpoint_message_log_last();
	LWLockRelease(PinpointOrderLock);

	while (batch != NULL)
	{
		if (batch->nassignments > 0 && batch->dboid == MyDatabaseId)
			reassign_batch(batch, batch->sequence >= first_unread,
						   still_shares);
		if (batch == last)
			break;
		batch = pinpoint_message_log_after(batch);
	}

	if (one_by_one)
		LWLockRelease(PinpointReassignmentLock);
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
	Reassignment reassignment = {0};
	uint32		number;

	while (pinpoint_sharing_next_undelivered(batch, unread,
											 &reassignment.place, &number))
	{
		const char *name = channel_name(batch, number);

		if (!still_shares(name))
		{
			reassignment.position = pinpoint_message_log_position(batch);
			reassignment.any_listener = false;

			LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
			pinpoint_channel_map_lookup(batch->dboid, name,
										pinpoint_batch_channel_hash(name),
										reassign_to, &reassignment);
			if (!reassignment.any_listener)
				(void) pinpoint_sharing_reassign(batch, reassignment.place,
												 NULL);
			pinpoint_wakeup_release_and_send();
		}
		reassignment.place++;
	}
}

static const char *
channel_name(PinpointBatch *batch, uint32 number)
{
	const char *name = pinpoint_batch_first_channel(batch);

	for (uint32 i = 0; i < number; i++)
		name = pinpoint_batch_next_channel(name);
	return name;
}

static void
reassign_to(const PinpointListeners *listeners, void *arg)
{
	Reassignment *reassignment = arg;
	PinpointBatch *batch = reassignment->position.batch;
	int			slotno = pinpoint_sharing_reassign(batch, reassignment->place,
												   listeners);

	reassignment->any_listener = true;
	if (slotno >= 0)
	{
		pinpoint_count(batch->dboid, PINPOINT_COUNT_REASSIGNED, 1);
		let_read(slotno, &reassignment->position);
	}
}

/*
 * Make a session read a batch with a notification that was reassigned to it.
 * The caller holds PinpointOrderLock exclusively.
 */
static void
let_read(int slotno, const PinpointPosition *position)
{
	PinpointSlot *slot = &PinpointSlotArray->slots[slotno];

	if (slot->reassigned.batch == NULL)
	{
		(void) pinpoint_slot_set_position(&slot->reassigned, position);
		/* The backlog of the session begins with this reassignment. */
		slot->reassigned.bytes = pinpoint_message_log_bytes();
	}
	else if (position->sequence < slot->reassigned.sequence)
	{
		uint64		bytes = slot->reassigned.bytes;

		(void) pinpoint_slot_set_position(&slot->reassigned, position);
		slot->reassigned.bytes = bytes;
	}

	switch (slot->state)
	{
		case PINPOINT_IDLE:
		case PINPOINT_RESTING:
			if (pinpoint_wakeup_note(slotno))
				pinpoint_count(MyDatabaseId, PINPOINT_COUNT_SIGNALS, 1);
			break;
		case PINPOINT_SIGNALLED:
			break;
		case PINPOINT_READING:
		case PINPOINT_READING_AGAIN:
			slot->state = PINPOINT_READING_AGAIN;
			slot->reassigned_again = true;
			break;
	}
}
