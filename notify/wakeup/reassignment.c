/*-------------------------------------------------------------------------
 *
 * reassignment.c
 *		What was given to a session that leaves goes to another.
 *
 * A session that shares a channel, and leaves it by UNLISTEN or by its end, may
 * have been given notifications that it has not delivered yet.  It goes through all
 * that it has not read, and hands each of them on to another session that shares
 * the channel; see sharing.c.  It has left the channel map before, so that nothing
 * more is given to it.
 *
 * To hand on a batch to another session means to write the session into the batch,
 * and to see to it that it reads it:
 *
 *	IDLE			the batch is what it must read first; it is signalled.
 *	SIGNALLED		likewise, if what it must read first comes later.
 *	READING			if the batch comes after what it reads now, it will read it
 *					next.  If not it may have read past it, and has to go back:
 *					the batch is pinned for it, to be read when it is done.
 *
 * A session that ends while it delivers may have sent some of it already.  It hands
 * on all that it was about to deliver: rather twice than never.
 *
 * None of this fails, as it is done after commit, and at exit.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/compat.h"
#include "base/counters.h"
#include "base/locks.h"
#include "queue/message_log.h"
#include "wakeup/channel_map.h"
#include "wakeup/reassignment.h"
#include "wakeup/sharing.h"
#include "wakeup/slots.h"
#include "wakeup/wakeup.h"

/* What is to be handed on. */
typedef struct Reassignment
{
	PinpointBatch *batch;
	uint32		place;			/* among its PinpointAssignments */
	bool		anybody;		/* is there a listener on the channel? */
} Reassignment;

static PinpointBatch *first_unread(PinpointSlot *slot);
static void reassign_batch(PinpointBatch *batch,
						  PinpointStillShares still_shares);
static const char *channel_name(PinpointBatch *batch, uint32 number);
static void reassign_to(const PinpointListeners *listeners, void *arg);
static void make_read(int slotno, PinpointBatch *batch, bool late);

/*
 * Hand on what was given to this session on channels that it does not share any
 * more.  It has left them in the channel map already, and has still its slot.
 */
void
pinpoint_reassign(PinpointStillShares still_shares)
{
	PinpointBatch *batch;
	PinpointBatch *last;
	int			in_round = 0;

	if (!pinpoint_slot_registered())
		return;

	/* Replay waits for the room that the others would keep then. */
	if (pinpoint_slot_evicted() == PINPOINT_EVICTED_QUEUE_FULL)
		return;

	/*
	 * From the first unread batch on everything stays, as it is pinned for
	 * us. What comes after the last one is not given to us any more.
	 */
	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	batch = first_unread(&PinpointSlotArray->slots[PINPOINT_MY_SLOT_NUMBER]);
	last = pinpoint_message_log_last();
	while (batch != NULL)
	{
		if (batch->nassignments > 0 && batch->dboid == MyDatabaseId)
			reassign_batch(batch, still_shares);
		if (batch == last)
			break;
		batch = pinpoint_message_log_after(batch);
		pinpoint_wakeup_let_others_in(&in_round);
		Assert(first_unread(&PinpointSlotArray->slots[PINPOINT_MY_SLOT_NUMBER]) != NULL);
	}
	pinpoint_wakeup_release_and_send();
}

static PinpointBatch *
first_unread(PinpointSlot *slot)
{
	if (slot->reassigned != NULL &&
		(slot->unread == NULL ||
		 slot->reassigned->sequence < slot->unread_sequence))
		return slot->reassigned;
	return slot->unread;
}

static void
reassign_batch(PinpointBatch *batch, PinpointStillShares still_shares)
{
	Reassignment		hand_on = {.batch = batch};
	uint32		number;

	while (pinpoint_sharing_next_of(batch, &hand_on.place, &number))
	{
		const char *name = channel_name(batch, number);

		if (!still_shares(name))
		{
			bool		late;

			hand_on.anybody = false;
			pinpoint_channel_map_lookup(batch->dboid, name,
										pinpoint_batch_channel_hash(name),
										reassign_to, &hand_on);
			if (!hand_on.anybody)
				(void) pinpoint_sharing_pass_on(batch, hand_on.place, NULL,
												&late);
		}
		hand_on.place++;
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
	Reassignment	   *hand_on = arg;
	bool		late = false;
	int			slotno;

	hand_on->anybody = true;
	slotno = pinpoint_sharing_pass_on(hand_on->batch, hand_on->place,
									  listeners, &late);
	if (slotno >= 0)
	{
		pinpoint_count(hand_on->batch->dboid, PINPOINT_COUNT_REASSIGNED, 1);
		make_read(slotno, hand_on->batch, late);
	}
}

/*
 * See to it that a session reads a batch.  The caller holds PinpointOrderLock
 * exclusively.
 */
static void
make_read(int slotno, PinpointBatch *batch, bool late)
{
	PinpointSlot *slot = &PinpointSlotArray->slots[slotno];

	switch (slot->state)
	{
		case PINPOINT_IDLE:
		case PINPOINT_RESTING:
			if (pinpoint_wakeup_note(slotno, batch))
				pinpoint_count(batch->dboid, PINPOINT_COUNT_SIGNALS, 1);
			/* It is not behind with what was just handed to it. */
			slot->unread_position = pinpoint_message_log_bytes();
			break;
		case PINPOINT_SIGNALLED:
			if (slot->unread_sequence > batch->sequence)
				(void) pinpoint_slot_set_unread(slot, batch);
			break;
		case PINPOINT_READING:
		case PINPOINT_READING_AGAIN:
			slot->state = PINPOINT_READING_AGAIN;
			if (late &&
				(slot->reassigned == NULL ||
				 slot->reassigned->sequence > batch->sequence))
			{
				pinpoint_message_log_pin(batch);
				if (slot->reassigned != NULL)
					(void) pinpoint_message_log_unpin(slot->reassigned);
				slot->reassigned = batch;
			}
			break;
	}
}
