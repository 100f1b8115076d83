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
 * More signals than this are left to the waker.
 */
#define MAX_SIGNALS			8

/*
 * How many batches are gone through without letting go of PinpointOrderLock.
 */
#define MAX_BATCHES_PER_ROUND	64

/*
 * Milliseconds between two looks for slots that need a reminder, and until the
 * first one.  The next ones come after 2, 4, 8 ... times this, up to 64.
 */
#define REMINDER_INTERVAL	1000
#define REMINDER_MAX_SHIFT	6

/* What a look-up is to find, and what it has found. */
typedef struct ListenerSearch
{
	PinpointBatch *batch;
	uint32		channel;		/* number of the channel within the batch */
	uint64		mark;			/* number of the publication */
	int			nfound;
} ListenerSearch;

/* The same for one before commit. */
typedef struct EarlySearch
{
	bool	   *found;			/* by slot */
	int			nfound;
	bool	   *listens;		/* by slot: those to be found; NULL if not known */
	int			nmissing;		/* of these: not found yet */
} EarlySearch;

/*
 * Room for what a publication finds, made by the postmaster and inherited: the slots
 * that listen on a batch, and the signals to send.  MaxBackends elements each, as no
 * slot is found twice for one batch, or signalled twice without reading in between.
 */
static int *found_slots = NULL;
static PinpointWakeup *noted = NULL;
static int	nnoted = 0;

/*
 * The same for the batch that pinpoint_wakeup_find_replayed() was called for last.
 */
static PinpointBatch *replayed = NULL;
static bool *found_replayed = NULL; /* by slot */
static int *slots_replayed = NULL;
static int	nslots_replayed = 0;

/* Is the waker to be told that there is something in its list? */
static struct Latch *waker_to_tell = NULL;

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
 * In the postmaster, at start and at restart after a crash.
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
 * Before commit: if the batch will have many channels, look now who listens.
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

	/* Who listens on one of the channels may well listen on all of them. */
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
 * Look up the channels of a batch from one on.
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

	/* Those who share the channel come right behind the others. */
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
 * On a standby, right before a batch is published: if it has many channels, look now who
 * listens, without PinpointOrderLock.  Such a batch does not carry its listeners.
 *
 * It makes no difference for the argument at the top of this file that the transaction
 * has committed already: what counts is that the number is noted before the map is
 * looked into, and that this is done before the publication.
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
 * Find the slots that are to get anything of a batch, and write into the batch who
 * of those who share a channel they are.  Changes nothing else but marks.
 *
 * mark: number of the publication.
 *
 * Returns how many there are.  The caller holds PinpointOrderLock, and calls
 * pinpoint_wakeup_collect() before the next batch.
 */
int
pinpoint_wakeup_find(PinpointBatch *batch, uint64 mark)
{
	ListenerSearch search = {batch, 0, mark, 0};
	dlist_iter	iter;

	if (batch->nchannels <= PINPOINT_CHANNELS_LOOKED_UP)
	{
		const char *channel = pinpoint_batch_first_channel(batch);

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

	/* Those whose channels do not fit into the channel map. */
	dlist_foreach(iter, &PinpointSlotArray->wakes_for_all)
	{
		PinpointSlot *slot = dlist_container(PinpointSlot, wakes_for_all_link,
											 iter.cur);

		find_slot(slot - PinpointSlotArray->slots, &search);
	}
	return search.nfound;
}

/*
 * Those who may have entered channels after the look before commit.
 */
static void
find_joined(ListenerSearch *search)
{
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
	pinpoint_sharing_assign(search->batch, search->channel, listeners,
						  find_slot, arg);
}

/*
 * Note that a slot is found for a publication, unless it was before, or is not,
 * or no longer, that of a listener in this database, or that one is evicted.
 */
static void
find_slot(int slotno, void *arg)
{
	ListenerSearch *search = arg;
	PinpointSlot *slot = &PinpointSlotArray->slots[slotno];

	if (slot->pid != 0 && slot->dboid == search->batch->dboid &&
		!slot->evicted && slot->marked != search->mark)
	{
		slot->marked = search->mark;
		found_slots[search->nfound++] = slotno;
	}
}

/*
 * A batch is published: let the nfound slots that pinpoint_wakeup_find() found
 * know, and remember which of them need a signal.  The caller holds
 * PinpointOrderLock.
 */
void
pinpoint_wakeup_collect(PinpointBatch *batch, int nfound)
{
	PinpointPosition position = pinpoint_message_log_position(batch);
	int			nsignals = 0;

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
				/* It may have been signalled for what was reassigned to it. */
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
 * An IDLE or RESTING slot has something to read now.  Returns true if it needs a signal
 * for that; what a session sends to itself does not wait.  The caller holds
 * PinpointOrderLock, and releases it by pinpoint_wakeup_release_and_send().
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
 * Is a RESTING session going to look in time?  It is not if the clock was set back,
 * as PostgreSQL's timeouts go by that, or if it should have looked long ago.
 */
static bool
is_resting(PinpointSlot *slot)
{
	TimestampTz now = GetCurrentTimestamp();

	return now >= slot->rests_from &&
		now <= TimestampTzPlusMilliseconds(slot->rests_until, REMINDER_INTERVAL);
}

/*
 * Decide who sends the signals that were noted.
 */
static void
share_out(void)
{
	PinpointWakerQueue *list = &PinpointSlotArray->waker_queue;

	if (list->waker == NULL)
	{
		/* Send what a waker has left behind. */
		if (unlikely(list->first >= 0))
			nnoted += take(noted + nnoted,
						   MaxBackends - nnoted);
		return;
	}
	if (nnoted <= MAX_SIGNALS)
		return;

	for (int i = 0; i < nnoted; i++)
	{
		/* Nobody else can raise one's own interrupt without a signal. */
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
 * Put a slot into the list of the waker, unless it is there already.
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
 * Take slots out of the list of the waker, at most max; those among them that
 * still need a signal are stored in wakeups[].  Returns their number, or -1 if the
 * list was empty.
 */
int
pinpoint_wakeup_take(PinpointWakeup *wakeups, int max)
{
	PinpointWakerQueue *list = &PinpointSlotArray->waker_queue;
	int			n = -1;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	if (list->first >= 0)
		n = take(wakeups, max);
	LWLockRelease(PinpointOrderLock);
	return n;
}

/*
 * The same, with PinpointOrderLock held.
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
 * This process is the waker, or is the waker no longer if NULL.
 */
void
pinpoint_wakeup_set_waker(struct Latch *waker)
{
	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	PinpointSlotArray->waker_queue.waker = waker;
	LWLockRelease(PinpointOrderLock);
}

/*
 * Release PinpointOrderLock, and send the signals that were noted while it was held,
 * or let the waker do it.
 */
void
pinpoint_wakeup_release_and_send(void)
{
	share_out();
	pinpoint_order_lock_release();

	if (nnoted > 0)
		pinpoint_wakeup_signal(noted, nnoted);
	nnoted = 0;

	/* It may have gone meanwhile, but then its latch does no harm. */
	if (waker_to_tell != NULL)
		SetLatch(waker_to_tell);
	waker_to_tell = NULL;
}

/*
 * Called for each of many batches, with PinpointOrderLock held: let go of it after
 * some of them, for others to do their work.
 */
void
pinpoint_wakeup_let_others_in(int *in_round)
{
	if (++*in_round < MAX_BATCHES_PER_ROUND)
		return;

	pinpoint_wakeup_release_and_send();
	*in_round = 0;
	pinpoint_order_lock_acquire("publish");
}

/*
 * Signal sessions.
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
			/* It has exited meanwhile, and its slot is free or another's. */
			elog(DEBUG3, "could not signal backend with PID %d: %m",
				 wakeups[i].pid);
		}
	}
}

/*
 * If the log has taken disk space that it does not need any more, give it back.  To do
 * so may take long, so it is left to the waker if there is one.
 */
void
pinpoint_wakeup_give_back(void)
{
	struct Latch *waker;

	if (!pinpoint_message_log_has_spare_file())
		return;

	/* A latch of a process that has gone does no harm. */
	waker = *(struct Latch *volatile *) &PinpointSlotArray->waker_queue.waker;
	if (waker != NULL && waker != MyLatch)
		SetLatch(waker);
	else
		pinpoint_message_log_give_back();
}

/*
 * Before commit, while something is pinned: signal sessions again that have
 * been woken long ago and have not begun to read.  Most of them are in a
 * transaction, and lose nothing by it.
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

	/* A clock that was set back must not silence us. */
	if (last <= now && !TimestampDifferenceExceeds(last, now, REMINDER_INTERVAL))
		return;
	if (pinpoint_fault == PINPOINT_FAULT_DROP_SIGNALS)
		return;

	reminders = palloc_array(PinpointWakeup, MaxBackends);

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
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

	/* As in pinpoint_wakeup_release_and_send(), it may have exited meanwhile. */
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
 * Was a slot signalled long enough ago?  The time of a signal is not noted when
 * it is sent, as this would cost every notification, but at the first look.
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
