/*-------------------------------------------------------------------------
 *
 * wakeup.c
 *		Finds the listeners of a batch, and marks them.
 *
 * When a batch is published, the slots of all sessions that listen on any of
 * its channels are found.  Those that are IDLE or RESTING become SIGNALLED;
 * see slots.c.  Those that were IDLE need a signal; see publication.c.
 *
 * Reminders.  A signal can have no effect: PostgreSQL may run out of memory
 * before its small transaction has begun, or may have no channel of the
 * session in its list.  No other signal would follow, and the batches that the
 * session pins would be kept forever.  So while anything is pinned, senders
 * check once a second for slots that have been SIGNALLED for long, and signal
 * those again, at increasing intervals.  A reminder also sends
 * PROCSIG_CATCHUP_INTERRUPT, for which PostgreSQL always runs a transaction in
 * an idle session; see delivery.c for what the session does in it.
 *
 * Many channels.  Looking up the listeners of very many channels, one after
 * the other, takes too long under a lock that all commits need.  Therefore a
 * sender with many channels looks them up before its commit, without the lock,
 * and its batch contains the slots that it found.  Listeners that came later
 * are those whose last LISTEN has a higher number than the last one at that
 * time.
 *
 * Why each listener is found.  A session that executes LISTEN, and a sender,
 * do these steps:
 *
 *	1. LISTEN: enter the channels into the map.
 *	2. LISTEN: take a number: increment PinpointSlots.last_listen.
 *	3. LISTEN: store the number in the slot.
 *	4. LISTEN: commit.
 *	5. Sender: store the last number that was taken, as batch->last_listen.
 *	6. Sender: read the map.
 *	7. Sender: commit.
 *	8. Sender: acquire PinpointOrderLock, and publish to the slots that were
 *	   found, and to those whose number is above batch->last_listen.
 *
 * The numbers are atomic, and others see the steps of a process in this order:
 * both take a lock of the channel map, or execute an explicit barrier, and the
 * increment is a release.  If step 6 came before step 1, then step 5 came
 * before step 2, so batch->last_listen is lower than the number that the
 * listener has taken.  And if step 4 came before step 7, then step 3 came
 * before step 8, which finds the number in the slot.  So at publication it is
 * sufficient to check the slots, and not even this is needed if the last
 * number is still batch->last_listen.  A slot that was found may belong to
 * another session by then, or may not listen any more.  Then a session is
 * woken unnecessarily.
 *
 *	9. Step 6 can end early, when all slots that listen in the database are
 *	   found.  They are determined after step 5, and a session sets pid in its
 *	   slot before step 1.  So a session that is not among them takes a number
 *	   above batch->last_listen.  (Comparing the number of slots is not
 *	   sufficient: some sessions may have ended.)
 *	10. On a standby, the startup process does steps 5 and 6 directly before
 *	   step 8, in this order, and the transaction has committed before.  The
 *	   argument is the same.
 *
 * Channels that do not fit into the map, and batches with few channels, need
 * no number.  For such a channel, step 1 adds the session to a list under
 * PinpointOrderLock, which step 8 reads.  For a batch with few channels, step
 * 8 reads the map.  If step 4 came before step 7, then step 1 came before step
 * 8.
 *
 * Why all channels of a transaction begin together.
 *
 *	11. Between steps 3 and 4, the session reads the number of the last
 *	   publication.  On the new channels that it does not share, it receives
 *	   only batches with higher numbers.  A batch gets its number in step 8,
 *	   before the slots are checked or the map is read.  There is a full
 *	   barrier between step 3 and this read, and one between the number and the
 *	   check.  So if the number is above the one that was read, step 3 came
 *	   before the check.  Then the batch finds the session by any new channel,
 *	   as above.
 *
 * models/listen.pml checks these steps.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/counters.h"
#include "base/interval.h"
#include "base/settings.h"
#include "queue/message_log.h"
#include "wakeup/channel_map.h"
#include "wakeup/sharing.h"
#include "wakeup/signals.h"
#include "wakeup/slot_private.h"
#include "wakeup/slots.h"
#include "wakeup/slots_read.h"
#include "wakeup/waker_list.h"
#include "wakeup/waker_progress.h"
#include "wakeup/wakeup.h"

/*
 * Work for a batch and for each of its channels, in units of the work for one
 * listener; see publication.c.
 */
#define WORK_PER_BATCH		64
#define WORK_PER_CHANNEL	8

/*
 * The reminders after the first one follow at intervals of 2, 4, 8 times
 * PINPOINT_REMINDER_INTERVAL, and so on up to 64 times.
 */
#define REMINDER_MAX_SHIFT	6

/*
 * Milliseconds after which a session begins no further step to free disk space.
 */
#define MAX_GIVE_BACK_TIME	10

/* Argument and result of a look-up at publication. */
typedef struct ListenerSearch
{
	PinpointPublication *publication;
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
 * The slots found for a batch: room for MaxBackends elements, allocated by the
 * postmaster and inherited.  This is sufficient: a slot is found only once for
 * a batch.
 */
static int *found_slots = NULL;

/*
 * The slots found by the last call of pinpoint_wakeup_find_replayed(), and its
 * batch.
 */
static PinpointBatch *replayed = NULL;
static bool *found_replayed = NULL; /* by slot */
static int *slots_replayed = NULL;
static int	nslots_replayed = 0;

static void find_listeners(const PinpointListeners *listeners, void *arg);
static void look_up_rest(PinpointBatchLayout *layout, uint32 from,
						 EarlySearch *search);
static void find_listeners_early(const PinpointListeners *listeners,
								 void *arg);
static void find_joined(ListenerSearch *search);
static void find_slot(int slotno, void *arg);
static bool needs_reminder(PinpointSlot *slot, TimestampTz now);

/*
 * Allocate memory.  The postmaster calls this at start and at restart
 * after a crash.
 */
void
pinpoint_wakeup_init(void *memory)
{
	if (found_slots == NULL)
		found_slots = MemoryContextAlloc(TopMemoryContext,
										 MaxBackends * sizeof(int));
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
	uint64		last_listen;
	int		   *slots;
	uint32		nslots = 0;
	uint32		nlooked = 0;

	AssertNoLockHeld();
	if (layout->nchannels <= PINPOINT_CHANNELS_LOOKED_UP)
	{
		pinpoint_sharing_reserve(layout);
		return;
	}

	search.found = palloc0_array(bool, MaxBackends);
	search.listens = palloc0_array(bool, MaxBackends);

	/* step 5 */
	last_listen = pg_atomic_read_u64(&PinpointSlotsShared->last_listen);

	/*
	 * Partner: the increment in pinpoint_slot_join().  Without this, the map
	 * could be read without the channels of a session whose number is not
	 * above this one.
	 */
	pg_memory_barrier();

	/* step 9 */
	search.nmissing = pinpoint_slots_read_listeners(MyDatabaseId,
													search.listens);

	/*
	 * Step 6.  A session that listens on one channel may listen on all of
	 * them.
	 */
	for (; nlooked < PINPOINT_CHANNELS_LOOKED_UP &&
		 search.nmissing > 0; nlooked++)
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
	pinpoint_batch_layout_add_listeners(layout, slots, nslots, last_listen);
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
		int			slotno =
			pinpoint_channel_entry_listener(listeners, i)->slotno;

		Assert(slotno < MaxBackends);
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
 * directly before the publication, without PinpointOrderLock: see step 10.
 */
void
pinpoint_wakeup_find_replayed(PinpointBatch *batch)
{
	EarlySearch search = {.found = found_replayed};
	const char *channel = pinpoint_batch_first_channel(batch);

	AssertNoLockHeld();
	Assert(batch->state == PINPOINT_BATCH_RESERVED);

	replayed = NULL;
	if (batch->nchannels <= PINPOINT_CHANNELS_LOOKED_UP)
		return;

	memset(found_replayed, 0, MaxBackends * sizeof(bool));

	/* step 5; the barrier is that of pinpoint_wakeup_find_early() */
	batch->last_listen = pg_atomic_read_u64(&PinpointSlotsShared->last_listen);
	pg_memory_barrier();

	/* step 6 */
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
pinpoint_wakeup_find(PinpointPublication *publication, PinpointBatch *batch,
					 uint64 mark)
{
	ListenerSearch search = {publication, batch, 0, mark, 0};
	dlist_iter	iter;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(batch->state == PINPOINT_BATCH_RESERVED ||
		   batch->state == PINPOINT_BATCH_READY);
	Assert(mark == pinpoint_message_log_sequence());

	pinpoint_publication_add_work(publication, WORK_PER_BATCH);
	if (batch->nchannels <= PINPOINT_CHANNELS_LOOKED_UP)
	{
		const char *channel = pinpoint_batch_first_channel(batch);

		pinpoint_publication_add_work(publication,
									  batch->nchannels * WORK_PER_CHANNEL);
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

		/* step 8 */
		for (uint32 i = 0; i < nslots; i++)
			find_slot(slots[i], &search);
		if (pg_atomic_read_u64(&PinpointSlotsShared->last_listen) >
			batch->last_listen)
			find_joined(&search);
	}

	/* Sessions with channels that do not fit into the channel map. */
	dlist_foreach(iter, wakes_for_all_in(batch->dboid))
	{
		PinpointSlot *slot =
			dlist_container(PinpointSlot, locked_publication.wakes_for_all_link,
							iter.cur);

		find_slot(slot - PinpointSlotsShared->slots, &search);
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
	AssertHeldExclusive(PinpointOrderLock);
	pinpoint_publication_add_work(search->publication, MaxBackends);
	for (int i = 0; i < MaxBackends; i++)
	{
		if (pg_atomic_read_u64(&PinpointSlotsShared->slots[i].last_listen) >
			search->batch->last_listen)
			find_slot(i, search);
	}
}

static void
find_listeners(const PinpointListeners *listeners, void *arg)
{
	ListenerSearch *search = arg;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(search->channel < search->batch->nchannels);

	pg_atomic_write_u64(listeners->transactions,
						pg_atomic_read_u64(listeners->transactions) + 1);
	for (int i = 0; i < listeners->nslots; i++)
		find_slot(pinpoint_channel_entry_listener(listeners, i)->slotno, arg);
	pinpoint_publication_add_work(search->publication,
								  pinpoint_sharing_assign(search->batch,
														  search->channel,
														  listeners, find_slot,
														  arg));
}

/*
 * Note that a slot is found for a publication.  Skips a slot that was already
 * found, that has no owner or one of another database, or that is evicted.
 */
static void
find_slot(int slotno, void *arg)
{
	ListenerSearch *search = arg;
	PinpointSlot *slot = &PinpointSlotsShared->slots[slotno];

	AssertHeldExclusive(PinpointOrderLock);
	Assert(slotno >= 0 && slotno < MaxBackends);
	Assert(read_publication(slot)->marked <= search->mark &&
		   search->nfound < MaxBackends);

	pinpoint_publication_add_work(search->publication, 1);
	if (readable(slot)->pid != 0 &&
		readable(slot)->dboid == search->batch->dboid &&
		!readable(slot)->evicted &&
		read_publication(slot)->marked != search->mark)
	{
		write_publication(slot)->marked = search->mark;
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
pinpoint_wakeup_collect(PinpointPublication *publication, PinpointBatch *batch,
						int nfound)
{
	PinpointBatchRef ref = pinpoint_message_log_ref(batch);
	int			nsignals = 0;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(nfound > 0 && nfound <= MaxBackends);

	pinpoint_publication_add_work(publication, nfound);
	for (int i = 0; i < nfound; i++)
	{
		PinpointSlot *slot = &PinpointSlotsShared->slots[found_slots[i]];

		Assert(read_publication(slot)->marked == ref.sequence);
		if (pinpoint_slot_publish(slot, &ref))
		{
			pinpoint_publication_add_signal(publication, found_slots[i]);
			nsignals++;
		}
	}
	pinpoint_counter_add(batch->dboid, PINPOINT_COUNT_SIGNALS, nsignals);
	pinpoint_counter_add(batch->dboid, PINPOINT_COUNT_SIGNALS_SAVED,
						 nfound - nsignals);
}

/*
 * Free disk space of the log that is not needed any more.  This can take long,
 * so it is left to the waker, which does it in steps.  If the waker makes no
 * progress, or there is none, this does some of the steps.
 */
void
pinpoint_wakeup_give_back(void)
{
	struct Latch *waker;
	instr_time	began;
	instr_time	taken;

	AssertNoLockHeld();
	if (!pinpoint_message_log_has_spare_file())
		return;

	waker = pinpoint_waker_progress_latch();
	if (waker != NULL)
	{
		SetLatch(waker);
		return;
	}

	INSTR_TIME_SET_CURRENT(began);
	do
	{
		if (!pinpoint_message_log_give_back())
			break;
		INSTR_TIME_SET_CURRENT(taken);
		INSTR_TIME_SUBTRACT(taken, began);
	} while (INSTR_TIME_GET_MILLISEC(taken) < MAX_GIVE_BACK_TIME);
}

/*
 * Signal sessions again that were signalled long ago and have not begun to
 * read.  Most of them are in a transaction: for these, the signal changes
 * nothing.  Called before a commit, and by the waker, while an epoch is
 * pinned.  Does this once a second.  Returns whether it has done it now.
 *
 * Errors: out of memory.
 */
bool
pinpoint_wakeup_remind(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz last =
		*(volatile TimestampTz *) &PinpointSlotsShared->last_reminders;
	PinpointWakeup *reminders;
	int			nreminders = 0;

	AssertNoLockHeld();

	if (!pinpoint_interval_has_passed(last, now, PINPOINT_REMINDER_INTERVAL))
		return false;
	if (PINPOINT_FAULT(DROP_SIGNALS))
		return false;

	reminders = palloc_array(PinpointWakeup, MaxBackends);

	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	PinpointSlotsShared->last_reminders = now;
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotsShared->slots[i];

		if (readable(slot)->pid != 0 &&
			readable(slot)->state == PINPOINT_SIGNALLED &&
			needs_reminder(slot, now))
		{
			writable(slot)->signalled_at = now;
			writable(slot)->reminders++;
			write_publication(slot)->wakeups++;
			pinpoint_counter_add(readable(slot)->dboid, PINPOINT_COUNT_SIGNALS,
								 1);
			reminders[nreminders].slotno = i;
			reminders[nreminders].pid = readable(slot)->pid;
			nreminders++;
		}
	}
	LWLockRelease(PinpointOrderLock);

	pinpoint_signal_again(reminders, nreminders);
	pfree(reminders);
	return true;
}

/*
 * Was a slot signalled long enough ago?  The time of a signal is not stored
 * when it is sent, which would cost time for each notification, but by the
 * first check.
 */
static bool
needs_reminder(PinpointSlot *slot, TimestampTz now)
{
	int			interval = PINPOINT_REMINDER_INTERVAL <<
		Min(readable(slot)->reminders, REMINDER_MAX_SHIFT);

	AssertHeldExclusive(PinpointOrderLock);
	Assert(readable(slot)->state == PINPOINT_SIGNALLED);

	if (readable(slot)->signalled_at == 0 || readable(slot)->signalled_at > now)
	{
		writable(slot)->signalled_at = now;
		return false;
	}
	return TimestampDifferenceExceeds(readable(slot)->signalled_at, now,
									  interval);
}
