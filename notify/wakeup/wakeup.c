/*-------------------------------------------------------------------------
 *
 * wakeup.c
 *		Finds the listeners of a batch, and wakes them.
 *
 * When a batch is published, the slots of all sessions that listen on any of its
 * channels are found.  Those that are IDLE or RESTING become SIGNALLED; see slots.c.
 * Those that were IDLE need a signal.  Signals are collected under PinpointOrderLock
 * and sent after it is released.  They are PostgreSQL's own PROCSIG_NOTIFY_INTERRUPT:
 * PostgreSQL then runs a small transaction as soon as the session is idle, and
 * delivery.c delivers in this transaction.
 *
 * The waker.  A sender that signals very many sessions takes a long time, and the
 * sessions that it has woken compete with it for the processor.  If there are more
 * than MAX_SIGNALS, it adds the other slots to a list of a background worker, the
 * waker; see waker.c.  A slot is in the list at most once, so the list is made of the
 * slots themselves and is never full.  The waker skips a slot that is not SIGNALLED
 * any more.  Batches that are published while it processes the list need no further
 * signal for these slots.  If there is no waker, senders send all signals, including
 * those of the list.
 *
 * Reminders.  A signal can have no effect: PostgreSQL may run out of memory before its
 * small transaction has begun, or may have no channel of the session in its list.  No
 * other signal would follow, and the batches that the session pins would be kept
 * forever.  So while anything is pinned, senders check once a second for slots that
 * have been SIGNALLED for long, and signal those again, at increasing intervals.  A
 * reminder also sends PROCSIG_CATCHUP_INTERRUPT, for which PostgreSQL always runs a
 * transaction in an idle session; see delivery.c for what the session does in it.
 *
 * Many channels.  Looking up the listeners of very many channels, one after the other,
 * takes too long under a lock that all commits need.  Therefore a sender with many
 * channels looks them up before its commit, without the lock, and its batch contains
 * the slots that it found.  Listeners that came later are those whose last LISTEN has
 * a higher number than the last one at that time:
 *
 *	LISTEN		enter the channels into the map, then take a number, then store it
 *				in the slot, then commit
 *	sender		store the last number, then read the map, then commit, then
 *				publish
 *
 * The look-up can end early, when all slots that listen in the database are found.  A
 * session that begins to listen later takes a higher number than the stored one.
 * (Comparing the number of slots is not sufficient: some sessions may have ended.)
 *
 * These numbers are atomic, and there is a full barrier between each two steps: both
 * take a lock of the channel map, or execute an explicit barrier.  If the sender read
 * the map before the listener's entry was made, the number that it stored is lower
 * than the one that the listener has taken.  And if the listener committed before the
 * sender, its number was in its slot before the sender took PinpointOrderLock to
 * publish.  So at publication it is sufficient to check the slots, and not even this
 * is needed if the last number is still the stored one.  A slot that was found may
 * belong to another session by then, or may not listen any more.  Then a session is
 * woken unnecessarily.  On a standby, the startup process does the look-up directly
 * before it publishes, for the same reason and in the same order.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/async.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/procsignal.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/counters.h"
#include "base/locks.h"
#include "base/settings.h"
#include "queue/message_log.h"
#include "wakeup/channel_map.h"
#include "wakeup/sharing.h"
#include "wakeup/slots.h"
#include "wakeup/wakeup.h"

/*
 * If a process has more signals to send than this, it leaves them to the
 * waker.
 */
#define MAX_SIGNALS			8

/*
 * Limit of the work under one hold of PinpointOrderLock, and the work for a
 * batch and for each of its channels.  The unit is the work for one listener
 * of a channel, which took about 20 ns in a measurement.
 */
#define MAX_WORK_PER_HOLD	4096
#define WORK_PER_BATCH		64
#define WORK_PER_CHANNEL	8

/*
 * Milliseconds between two checks for slots that need a reminder, and from the
 * first check that finds a slot SIGNALLED to its first reminder.  The next
 * reminders follow at intervals of 2, 4, 8 times this, and so on up to 64
 * times.
 */
#define REMINDER_INTERVAL	1000
#define REMINDER_MAX_SHIFT	6

/* Argument and result of a look-up at publication. */
typedef struct ListenerSearch
{
	PinpointBatch *batch;
	uint32		channel;		/* number of the channel within the batch */
	uint64		mark;			/* number of the publication */
	int			nfound;
} ListenerSearch;

/* Argument and result of a look-up before the commit. */
typedef struct EarlySearch
{
	bool	   *found;			/* by slot */
	int			nfound;
	bool	   *listens;		/* by slot: sessions that listen in the
								 * database; NULL if not known */
	int			nmissing;		/* number of these that are not found yet */
} EarlySearch;

/*
 * Memory for publications: the slots found for a batch, and the signals to
 * send.  The postmaster allocates it, and all processes inherit it.
 *
 * Each array has MaxBackends elements.  This is sufficient: a slot is found
 * only once for a batch, and is noted only once until its session has read.
 */
static int *found_slots = NULL;
static PinpointWakeup *noted = NULL;
static int	nnoted = 0;

/*
 * The slots found by the last call of pinpoint_wakeup_find_replayed(), and its
 * batch.
 */
static PinpointBatch *replayed = NULL;
static bool *found_replayed = NULL; /* by slot */
static int *slots_replayed = NULL;
static int	nslots_replayed = 0;

/* Latch of the waker, if its list has new slots, or batches are left to it. */
static struct Latch *waker_to_tell = NULL;

/* Work since PinpointOrderLock was acquired; see MAX_WORK_PER_HOLD. */
static uint32 work = 0;

static void find_listeners(const PinpointListeners *listeners, void *arg);
static void look_up_rest(PinpointBatchLayout *layout, uint32 from,
						 EarlySearch *search);
static void find_listeners_early(const PinpointListeners *listeners,
								 void *arg);
static void find_joined(ListenerSearch *search);
static void find_slot(int slotno, void *arg);
static void share_out(void);
static void queue_for_waker(int slotno);
static int	take(PinpointWakeup *wakeups, int max);
static bool is_resting(PinpointSlot *slot);
static bool needs_reminder(PinpointSlot *slot, TimestampTz now);

/*
 * Allocate the arrays.  The postmaster calls this at start and at restart
 * after a crash.
 */
void
pinpoint_wakeup_init(void)
{
	if (found_slots == NULL)
		found_slots = MemoryContextAlloc(TopMemoryContext,
										 MaxBackends * sizeof(int));
	if (noted == NULL)
		noted = MemoryContextAlloc(TopMemoryContext,
								   MaxBackends * sizeof(PinpointWakeup));
	if (found_replayed == NULL)
		found_replayed = MemoryContextAlloc(TopMemoryContext,
											MaxBackends * sizeof(bool));
	if (slots_replayed == NULL)
		slots_replayed = MemoryContextAlloc(TopMemoryContext,
											MaxBackends * sizeof(int));
}

/*
 * Find the listeners of a batch, if it will have many channels.  Otherwise,
 * reserve space for assignments.  Called before the commit.
 *
 * Errors: out of memory.
 */
void
pinpoint_wakeup_find_early(PinpointBatchLayout *layout)
{
	EarlySearch search = {0};
	uint64		joined;
	int		   *slots;
	uint32		nslots = 0;
	uint32		nlooked = 0;

	if (layout->nchannels <= PINPOINT_CHANNELS_LOOKED_UP)
	{
		pinpoint_sharing_reserve(layout);
		return;
	}

	search.found = palloc0_array(bool, MaxBackends);
	search.listens = palloc0_array(bool, MaxBackends);

	joined = pg_atomic_read_u64(&PinpointSlotArray->joined);
	pg_memory_barrier();
	search.nmissing = pinpoint_slots_mark_listeners(MyDatabaseId,
													search.listens);

	/* A session that listens on one channel may listen on all of them. */
	for (; nlooked < PINPOINT_CHANNELS_LOOKED_UP && search.nmissing > 0; nlooked++)
		pinpoint_channel_map_lookup(MyDatabaseId,
									layout->channels[nlooked]->data,
									layout->channels[nlooked]->channel_hash,
									find_listeners_early, &search);
	if (search.nmissing > 0)
		look_up_rest(layout, nlooked, &search);
	pfree(search.listens);

	slots = palloc_array(int, Max(search.nfound, 1));
	for (int i = 0; i < MaxBackends; i++)
	{
		if (search.found[i])
			slots[nslots++] = i;
	}
	pfree(search.found);
	pinpoint_batch_layout_add_listeners(layout, slots, nslots, joined);
}

/*
 * Look up the channels of a batch from an index on.
 *
 * Errors: out of memory.
 */
static void
look_up_rest(PinpointBatchLayout *layout, uint32 from, EarlySearch *search)
{
	uint32		nchannels = layout->nchannels - from;
	PinpointChannelKey *sorted;

	sorted = MemoryContextAllocExtended(CurrentMemoryContext,
										nchannels * sizeof(PinpointChannelKey),
										MCXT_ALLOC_HUGE);
	pinpoint_channel_map_lookup_many(MyDatabaseId, layout->channels + from,
									 nchannels, sorted, find_listeners_early,
									 search);
	pfree(sorted);
}

static void
find_listeners_early(const PinpointListeners *listeners, void *arg)
{
	EarlySearch *search = arg;
	int			n = listeners->nslots + listeners->nsharers;

	/* The listeners that share the channel follow the others. */
	for (int i = 0; i < n; i++)
	{
		int			slotno = pinpoint_listener(listeners, i)->slotno;

		if (!search->found[slotno])
		{
			search->found[slotno] = true;
			search->nfound++;
			if (search->listens != NULL && search->listens[slotno])
				search->nmissing--;
		}
	}
}

/*
 * Find the listeners of a batch on a standby, if it has many channels.  Such a
 * batch does not contain its listeners.  The startup process calls this
 * directly before the publication, without PinpointOrderLock.
 *
 * The transaction has already committed.  This does not matter for the
 * argument at the top of this file: the number is stored before the map is
 * read, and both are done before the publication.
 */
void
pinpoint_wakeup_find_replayed(PinpointBatch *batch)
{
	EarlySearch search = {.found = found_replayed};
	const char *channel = pinpoint_batch_first_channel(batch);

	replayed = NULL;
	if (batch->nchannels <= PINPOINT_CHANNELS_LOOKED_UP)
		return;

	memset(found_replayed, 0, MaxBackends * sizeof(bool));
	batch->joined = pg_atomic_read_u64(&PinpointSlotArray->joined);
	pg_memory_barrier();

	for (uint32 i = 0; i < batch->nchannels; i++)
	{
		pinpoint_channel_map_lookup(batch->dboid, channel,
									pinpoint_batch_channel_hash(channel),
									find_listeners_early, &search);
		channel = pinpoint_batch_next_channel(channel);
	}

	nslots_replayed = 0;
	for (int i = 0; i < MaxBackends; i++)
	{
		if (found_replayed[i])
			slots_replayed[nslots_replayed++] = i;
	}
	replayed = batch;
}

/*
 * Find the slots of the sessions that must read a batch.  Assigns
 * notifications on shared channels, and counts the transaction for its
 * channels.  Does not change the state of the slots.
 *
 * mark: number of the publication.
 *
 * Returns the number of slots.  The caller holds PinpointOrderLock
 * exclusively.  Before the next batch, it calls pinpoint_wakeup_collect(),
 * unless the number is 0.
 */
int
pinpoint_wakeup_find(PinpointBatch *batch, uint64 mark)
{
	ListenerSearch search = {batch, 0, mark, 0};
	dlist_iter	iter;

	work += WORK_PER_BATCH;
	if (batch->nchannels <= PINPOINT_CHANNELS_LOOKED_UP)
	{
		const char *channel = pinpoint_batch_first_channel(batch);

		work += batch->nchannels * WORK_PER_CHANNEL;
		for (search.channel = 0; search.channel < batch->nchannels;
			 search.channel++)
		{
			pinpoint_channel_map_lookup(batch->dboid, channel,
										pinpoint_batch_channel_hash(channel),
										find_listeners, &search);
			channel = pinpoint_batch_next_channel(channel);
		}
	}
	else
	{
		const int  *slots = pinpoint_batch_listeners(batch);
		uint32		nslots = batch->nlisteners;

		if (batch == replayed)
		{
			slots = slots_replayed;
			nslots = nslots_replayed;
		}
		batch->all_share_from = 0;
		for (uint32 i = 0; i < nslots; i++)
			find_slot(slots[i], &search);
		if (pg_atomic_read_u64(&PinpointSlotArray->joined) > batch->joined)
			find_joined(&search);
	}

	/* Sessions with channels that do not fit into the channel map. */
	dlist_foreach(iter, &PinpointSlotArray->wakes_for_all)
	{
		PinpointSlot *slot = dlist_container(PinpointSlot, wakes_for_all_link,
											 iter.cur);

		find_slot(slot - PinpointSlotArray->slots, &search);
	}
	return search.nfound;
}

/*
 * Find sessions that may have entered channels into the map after the look-up
 * before the commit.
 */
static void
find_joined(ListenerSearch *search)
{
	work += MaxBackends;
	for (int i = 0; i < MaxBackends; i++)
	{
		if (pg_atomic_read_u64(&PinpointSlotArray->slots[i].joined) >
			search->batch->joined)
			find_slot(i, search);
	}
}

static void
find_listeners(const PinpointListeners *listeners, void *arg)
{
	ListenerSearch *search = arg;

	pg_atomic_write_u64(listeners->transactions,
						pg_atomic_read_u64(listeners->transactions) + 1);
	for (int i = 0; i < listeners->nslots; i++)
		find_slot(pinpoint_listener(listeners, i)->slotno, arg);
	work += pinpoint_sharing_assign(search->batch, search->channel, listeners,
									find_slot, arg);
}

/*
 * Note that a slot is found for a publication.  Skips a slot that was already
 * found, that has no owner or one of another database, or that is evicted.
 */
static void
find_slot(int slotno, void *arg)
{
	ListenerSearch *search = arg;
	PinpointSlot *slot = &PinpointSlotArray->slots[slotno];

	work++;
	if (slot->pid != 0 && slot->dboid == search->batch->dboid &&
		!slot->evicted && slot->marked != search->mark)
	{
		slot->marked = search->mark;
		found_slots[search->nfound++] = slotno;
	}
}

/*
 * Make the sessions read a published batch, and note the slots that need a
 * signal.
 *
 * nfound: result of pinpoint_wakeup_find(), which has found these slots.
 *
 * The caller holds PinpointOrderLock exclusively.
 */
void
pinpoint_wakeup_collect(PinpointBatch *batch, int nfound)
{
	PinpointPosition position = pinpoint_message_log_position(batch);
	int			nsignals = 0;

	work += nfound;
	for (int i = 0; i < nfound; i++)
	{
		PinpointSlot *slot = &PinpointSlotArray->slots[found_slots[i]];

		switch (slot->state)
		{
			case PINPOINT_IDLE:
			case PINPOINT_RESTING:
				(void) pinpoint_slot_set_position(&slot->unread, &position);
				if (pinpoint_wakeup_note(found_slots[i]))
					nsignals++;
				break;
			case PINPOINT_SIGNALLED:
				/* It may have been signalled for a reassigned notification. */
				if (slot->unread.batch == NULL)
					(void) pinpoint_slot_set_position(&slot->unread, &position);
				break;
			case PINPOINT_READING:
			case PINPOINT_READING_AGAIN:
				slot->state = PINPOINT_READING_AGAIN;
				if (slot->again.batch == NULL)
					slot->again = position;
				break;
		}
	}
	pinpoint_count(batch->dboid, PINPOINT_COUNT_SIGNALS, nsignals);
	pinpoint_count(batch->dboid, PINPOINT_COUNT_SIGNALS_SAVED,
				   nfound - nsignals);
}

/*
 * Change a slot from IDLE or RESTING to SIGNALLED.  Returns true if it needs a
 * signal, and notes it in that case.  A RESTING session needs none, unless it
 * is this session, which does not wait for its own notifications.
 *
 * The caller holds PinpointOrderLock exclusively, and releases it by
 * pinpoint_wakeup_release_and_send().
 */
bool
pinpoint_wakeup_note(int slotno)
{
	PinpointSlot *slot = &PinpointSlotArray->slots[slotno];
	bool		looks_by_itself = slot->state == PINPOINT_RESTING &&
		slot->pid != MyProcPid && is_resting(slot);

	Assert(slot->state == PINPOINT_IDLE || slot->state == PINPOINT_RESTING);
	slot->state = PINPOINT_SIGNALLED;
	slot->signalled_at = 0;
	slot->reminders = 0;
	if (looks_by_itself)
		return false;

	slot->wakeups++;
	noted[nnoted].slotno = slotno;
	noted[nnoted].pid = slot->pid;
	nnoted++;
	return true;
}

/*
 * Will a RESTING session check in time?  It may not if the clock was set back,
 * because PostgreSQL's timeouts use the clock, or if it should have checked
 * long ago.
 */
static bool
is_resting(PinpointSlot *slot)
{
	TimestampTz now = GetCurrentTimestamp();

	return now >= slot->rests_from &&
		now <= TimestampTzPlusMilliseconds(slot->rests_until, REMINDER_INTERVAL);
}

/*
 * Leave the noted signals to the waker, if there are many.  Without a waker,
 * take over the signals on its list.
 */
static void
share_out(void)
{
	PinpointWakerQueue *list = &PinpointSlotArray->waker_queue;

	if (list->waker == NULL)
	{
		/* Send the signals that an ended waker has left. */
		if (unlikely(list->first >= 0))
			nnoted += take(noted + nnoted,
						   MaxBackends - nnoted);
		return;
	}
	if (nnoted <= MAX_SIGNALS)
		return;

	for (int i = 0; i < nnoted; i++)
	{
		/* This session needs no signal, and does not wait for the waker. */
		if (noted[i].pid == MyProcPid)
			notifyInterruptPending = true;
		else
		{
			queue_for_waker(noted[i].slotno);
			pinpoint_count(PinpointSlotArray->slots[noted[i].slotno].dboid,
						   PINPOINT_COUNT_WAKER_SIGNALS, 1);
		}
	}
	nnoted = 0;
	waker_to_tell = list->waker;
}

/*
 * Add a slot to the list of the waker, unless it is in the list.
 */
static void
queue_for_waker(int slotno)
{
	PinpointWakerQueue *list = &PinpointSlotArray->waker_queue;
	PinpointSlot *slot = &PinpointSlotArray->slots[slotno];

	if (slot->queued_for_waker)
		return;
	slot->queued_for_waker = true;
	slot->next = -1;
	if (list->first < 0)
		list->first = slotno;
	else
		PinpointSlotArray->slots[list->last].next = slotno;
	list->last = slotno;
}

/*
 * Remove up to max slots from the list of the waker.  Stores those that still
 * need a signal in wakeups[], and returns their number, or -1 if the list was
 * empty.
 */
int
pinpoint_wakeup_take(PinpointWakeup *wakeups, int max)
{
	PinpointWakerQueue *list = &PinpointSlotArray->waker_queue;
	int			n = -1;

	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	if (list->first >= 0)
		n = take(wakeups, max);
	LWLockRelease(PinpointOrderLock);
	return n;
}

/*
 * The same, but returns 0 if the list was empty.  The caller holds
 * PinpointOrderLock exclusively.
 */
static int
take(PinpointWakeup *wakeups, int max)
{
	PinpointWakerQueue *list = &PinpointSlotArray->waker_queue;
	int			n = 0;

	for (int i = 0; i < max && list->first >= 0; i++)
	{
		PinpointSlot *slot = &PinpointSlotArray->slots[list->first];

		if (slot->pid != 0 && slot->state == PINPOINT_SIGNALLED &&
			pinpoint_fault != PINPOINT_FAULT_DROP_SIGNALS)
		{
			wakeups[n].slotno = list->first;
			wakeups[n].pid = slot->pid;
			n++;
		}
		slot->queued_for_waker = false;
		list->first = slot->next;
	}
	return n;
}

/*
 * Set the latch of the waker; NULL if the waker ends.  The caller holds
 * PinpointOrderLock exclusively.
 */
void
pinpoint_wakeup_set_waker(struct Latch *waker)
{
	Assert(LWLockHeldByMeInMode(PinpointOrderLock, LW_EXCLUSIVE));
	PinpointSlotArray->waker_queue.waker = waker;
}

/*
 * Release PinpointOrderLock, and send the noted signals or leave them to the
 * waker.
 */
void
pinpoint_wakeup_release_and_send(void)
{
	share_out();
	work = 0;
	pinpoint_order_lock_release();

	if (nnoted > 0)
		pinpoint_wakeup_signal(noted, nnoted);
	nnoted = 0;

	/* If the waker has ended, setting its latch does no harm. */
	if (waker_to_tell != NULL)
		SetLatch(waker_to_tell);
	waker_to_tell = NULL;
}

/*
 * Has this process done as much work as is allowed under one hold of
 * PinpointOrderLock?  All other sessions that notify, and all that begin or end
 * to read, wait meanwhile.
 */
bool
pinpoint_wakeup_worked_enough(void)
{
	return work >= MAX_WORK_PER_HOLD;
}

/*
 * Make pinpoint_wakeup_release_and_send() set the latch of the waker, because
 * batches are left to it.  Returns false if there is no waker.  The caller
 * holds PinpointOrderLock exclusively.
 */
bool
pinpoint_wakeup_leave_to_waker(void)
{
	waker_to_tell = PinpointSlotArray->waker_queue.waker;
	return waker_to_tell != NULL;
}

/*
 * Signal sessions.  The caller does not hold PinpointOrderLock.
 */
void
pinpoint_wakeup_signal(const PinpointWakeup *wakeups, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (wakeups[i].pid == MyProcPid)
			notifyInterruptPending = true;
		else if (SendProcSignal(wakeups[i].pid, PROCSIG_NOTIFY_INTERRUPT,
								PINPOINT_PROCSIGNAL_ID(wakeups[i].slotno)) < 0)
		{
			/*
			 * The session has ended, and its slot is free or has a new owner.
			 */
			elog(DEBUG3, "could not signal backend with PID %d: %m",
				 wakeups[i].pid);
		}
	}
}

/*
 * Free disk space of the log that is not needed any more.  This can take long,
 * so it is left to the waker, if there is one.  The waker does it in steps.
 */
void
pinpoint_wakeup_give_back(void)
{
	struct Latch *waker;

	if (!pinpoint_message_log_has_spare_file())
		return;

	/* If the waker has ended, setting its latch does no harm. */
	waker = *(struct Latch *volatile *) &PinpointSlotArray->waker_queue.waker;
	if (waker != NULL && waker != MyLatch)
		SetLatch(waker);
	else
	{
		while (pinpoint_message_log_give_back())
			 /* loop */ ;
	}
}

/*
 * Signal sessions again that were signalled long ago and have not begun to
 * read.  Most of them are in a transaction: for these, the signal changes
 * nothing.  Called before a commit, and by the waker, while an epoch is
 * pinned.
 *
 * Errors: out of memory.
 */
void
pinpoint_wakeup_remind(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz last = *(volatile TimestampTz *) &PinpointSlotArray->last_reminders;
	PinpointWakeup *reminders;
	int			nreminders = 0;

	/* Do not wait if the clock was set back. */
	if (last <= now && !TimestampDifferenceExceeds(last, now, REMINDER_INTERVAL))
		return;
	if (pinpoint_fault == PINPOINT_FAULT_DROP_SIGNALS)
		return;

	reminders = palloc_array(PinpointWakeup, MaxBackends);

	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	PinpointSlotArray->last_reminders = now;
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotArray->slots[i];

		if (slot->pid != 0 && slot->state == PINPOINT_SIGNALLED &&
			needs_reminder(slot, now))
		{
			slot->signalled_at = now;
			slot->reminders++;
			slot->wakeups++;
			pinpoint_count(slot->dboid, PINPOINT_COUNT_SIGNALS, 1);
			reminders[nreminders].slotno = i;
			reminders[nreminders].pid = slot->pid;
			nreminders++;
		}
	}
	LWLockRelease(PinpointOrderLock);

	/* As in pinpoint_wakeup_signal(), a session may have ended. */
	for (int i = 0; i < nreminders; i++)
	{
		(void) SendProcSignal(reminders[i].pid, PROCSIG_CATCHUP_INTERRUPT,
							  PINPOINT_PROCSIGNAL_ID(reminders[i].slotno));
		(void) SendProcSignal(reminders[i].pid, PROCSIG_NOTIFY_INTERRUPT,
							  PINPOINT_PROCSIGNAL_ID(reminders[i].slotno));
	}
	pfree(reminders);
}

/*
 * Was a slot signalled long enough ago?  The time of a signal is not stored
 * when it is sent, which would cost time for each notification, but by the
 * first check.
 */
static bool
needs_reminder(PinpointSlot *slot, TimestampTz now)
{
	int			interval = REMINDER_INTERVAL <<
		Min(slot->reminders, REMINDER_MAX_SHIFT);

	if (slot->signalled_at == 0 || slot->signalled_at > now)
	{
		slot->signalled_at = now;
		return false;
	}
	return TimestampDifferenceExceeds(slot->signalled_at, now, interval);
}
