/*-------------------------------------------------------------------------
 *
 * wakeup.c
 *		Whom to wake, and how often.
 *
 * Every session that listens has a slot, which is in one of four states:
 *
 *	IDLE			nothing unread.  The slot has no position in the log.
 *	SIGNALLED		a batch for this session was published; it is pinned, and
 *					a signal is under way.
 *	READING			the session reads from the pinned batch on, up to the one
 *					that was the last when it began.
 *	READING_AGAIN	more has been published for it since then.
 *
 *					publish			session
 *	IDLE			SIGNALLED		-
 *	SIGNALLED		SIGNALLED		READING when it begins to read
 *	READING			READING_AGAIN	IDLE when it is done
 *	READING_AGAIN	READING_AGAIN	SIGNALLED when it is done: by itself
 *
 * Only the step from IDLE to SIGNALLED sends a signal, so at most one is ever
 * under way to a session, however many batches are published.  What is
 * published after the pinned batch stays as long as the pin does, so the other
 * steps need no pin of their own.
 *
 * Signals are collected under PinpointOrderLock and sent after it is released.
 * They are PostgreSQL's own PROCSIG_NOTIFY_INTERRUPT: PostgreSQL then runs a
 * small transaction as soon as the session is idle, and delivery.c does its
 * work in there.
 *
 * Reminders.  A signal can be spent for nothing: PostgreSQL may run out of
 * memory before its small transaction has begun, or may know of no channel that
 * the session listens on.  Nobody would signal the session again, and what it
 * pins would stay.  So while anything is pinned, senders look once a second for
 * slots that have been SIGNALLED for long, and signal those again, at intervals
 * that grow.  A reminder comes with PROCSIG_CATCHUP_INTERRUPT, too, for which
 * PostgreSQL runs a transaction in an idle session whatever else it thinks of
 * it; see delivery.c for what the session does then.
 *
 * Many channels.  To look up the listeners of one channel after the other takes
 * too long to do under a lock that all commits need, if there are very many.  A
 * sender with many channels looks before its commit, without the lock, and its
 * batch carries the slots that it found.  Listeners that came later are those
 * whose last LISTEN has a higher number than the last one at that time:
 *
 *	LISTEN		enter the channels into the map, then take a number (under
 *				PinpointOrderLock), then commit
 *	sender		note the last number (under PinpointOrderLock), then look into
 *				the map, then commit, then publish
 *
 * If the sender's look into the map came before the listener's entry, the number
 * that it noted is lower than the one that the listener has taken.  And if the
 * listener's commit came before the sender's, it has taken it before the sender
 * publishes.  So at publication it is enough to look at the slots.  A slot
 * may be found that is another session's by then, or that does not listen any
 * more; then a session is woken in vain.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/async.h"
#include "miscadmin.h"
#include "storage/procsignal.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "channel_map.h"
#include "compat.h"
#include "locks.h"
#include "message_log.h"
#include "wakeup.h"

/*
 * A batch with more channels than this carries its listeners.  So this is also
 * how many channels are looked up while PinpointOrderLock is held.
 */
#define MANY_CHANNELS		64

/*
 * Milliseconds between two looks for slots that need a reminder, and until the
 * first one.  The next ones come after 2, 4, 8 ... times this, up to 64.
 */
#define REMINDER_INTERVAL	1000
#define REMINDER_MAX_SHIFT	6

/* All fields are protected by PinpointOrderLock. */
typedef struct WakeupControl
{
	uint64		wakeups;		/* signals sent since start */
	uint64		joined;			/* number of the last LISTEN */
	TimestampTz last_reminders; /* when somebody looked last; read without the
								 * lock, too */
	PinpointSlot slots[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends of them */
} WakeupControl;

/* A signal to be sent. */
typedef struct Wakeup
{
	int			slotno;
	int			pid;
} Wakeup;

/* What a look-up is to find, and what it has found. */
typedef struct ListenerSearch
{
	Oid			dboid;
	uint64		mark;			/* number of the publication */
	int			nfound;
} ListenerSearch;

/* The same for one before commit. */
typedef struct EarlySearch
{
	bool	   *found;			/* by slot */
	int			nfound;
	int			limit;			/* there can be no more than this */
} EarlySearch;

static WakeupControl *wakeup_control = NULL;

/* Does this session own its slot? */
static bool registered = false;

/* To how many reminders since it was woken has this session answered? */
static uint32 answered = 0;

/*
 * Room for what a publication finds, made before commit: the slots that listen
 * on a batch, and the signals to send.  MaxBackends elements each, as no slot
 * is found twice for one batch, or signalled twice without reading in between.
 */
static int *found_slots = NULL;
static Wakeup *wakeups = NULL;
static int	nwakeups = 0;

static PinpointSlot *my_slot(void);
static void set_unread(PinpointSlot *slot, PinpointBatch *batch);
static void trim_and_release_lock(void);
static bool find_slot(int slotno, void *arg);
static bool find_slot_early(int slotno, void *arg);
static bool needs_reminder(PinpointSlot *slot, TimestampTz now);

static PinpointSlot *
my_slot(void)
{
	return &wakeup_control->slots[PINPOINT_MY_SLOT_NUMBER];
}

Size
pinpoint_wakeup_shmem_size(void)
{
	return add_size(offsetof(WakeupControl, slots),
					mul_size(MaxBackends, sizeof(PinpointSlot)));
}

void
pinpoint_wakeup_shmem_init(void)
{
	bool		found;

	wakeup_control = ShmemInitStruct("pg_pinpoint sessions",
									 pinpoint_wakeup_shmem_size(), &found);
	if (!found)
		memset(wakeup_control, 0, pinpoint_wakeup_shmem_size());
}

/*
 * Before commit: make the room that a publication needs.
 *
 * Errors: out of memory.
 */
void
pinpoint_wakeup_prepare(void)
{
	if (found_slots == NULL)
		found_slots = MemoryContextAlloc(TopMemoryContext,
										 MaxBackends * sizeof(int));
	if (wakeups == NULL)
		wakeups = MemoryContextAlloc(TopMemoryContext,
									 MaxBackends * sizeof(Wakeup));
}

/*
 * This session begins to listen, unless it does already.
 */
void
pinpoint_wakeup_register(void)
{
	PinpointSlot *slot = my_slot();

	if (registered)
		return;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	memset(slot, 0, sizeof(PinpointSlot));
	slot->pid = MyProcPid;
	slot->dboid = MyDatabaseId;
	slot->state = PINPOINT_IDLE;
	LWLockRelease(PinpointOrderLock);
	answered = 0;
	registered = true;
}

/*
 * This session listens no more, or ends: what is unread is none of its
 * business.
 */
void
pinpoint_wakeup_unregister(void)
{
	PinpointSlot *slot = my_slot();

	if (!registered)
		return;
	registered = false;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	set_unread(slot, NULL);
	slot->pid = 0;
	slot->state = PINPOINT_IDLE;
	trim_and_release_lock();
}

bool
pinpoint_wakeup_registered(void)
{
	return registered;
}

/*
 * Before the commit of a LISTEN, and after its channels have been entered into
 * the channel map: let those know who have looked there already.
 */
void
pinpoint_wakeup_join(void)
{
	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	my_slot()->joined = ++wakeup_control->joined;
	LWLockRelease(PinpointOrderLock);
}

/*
 * Tell the views how many channels this session listens on.
 */
void
pinpoint_wakeup_set_channels(uint32 nchannels)
{
	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	my_slot()->nchannels = nchannels;
	LWLockRelease(PinpointOrderLock);
}

/*
 * Pin the batch that a slot must read first, or none if NULL, instead of the
 * one that it has pinned.  The caller holds PinpointOrderLock, and gives back
 * what the old pin kept.
 */
static void
set_unread(PinpointSlot *slot, PinpointBatch *batch)
{
	if (batch != NULL)
	{
		pinpoint_message_log_pin(batch);
		slot->unread_sequence = batch->sequence;
		slot->unread_position = batch->position;
	}
	if (slot->unread != NULL)
		pinpoint_message_log_unpin(slot->unread);
	slot->unread = batch;
}

/*
 * Give back what no pin keeps any more, bit by bit, so that others get
 * PinpointOrderLock in between, and release it.
 */
static void
trim_and_release_lock(void)
{
	while (pinpoint_message_log_trim())
	{
		LWLockRelease(PinpointOrderLock);
		LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	}
	LWLockRelease(PinpointOrderLock);
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
	ListCell   *lc;

	if (list_length(layout->channels) <= MANY_CHANNELS)
		return;

	search.found = palloc0_array(bool, MaxBackends);

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	joined = wakeup_control->joined;
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &wakeup_control->slots[i];

		if (slot->pid != 0 && slot->dboid == MyDatabaseId)
			search.limit++;
	}
	LWLockRelease(PinpointOrderLock);

	foreach(lc, layout->channels)
	{
		const char *channel = lfirst(lc);

		if (search.nfound >= search.limit ||
			!pinpoint_channel_map_lookup(MyDatabaseId, channel,
										 pinpoint_channel_hash(channel),
										 find_slot_early, &search))
			break;
	}

	slots = palloc_array(int, Max(search.nfound, 1));
	for (int i = 0; i < MaxBackends; i++)
	{
		if (search.found[i])
			slots[nslots++] = i;
	}
	pfree(search.found);
	pinpoint_batch_layout_add_listeners(layout, slots, nslots, joined);
}

static bool
find_slot_early(int slotno, void *arg)
{
	EarlySearch *search = arg;

	if (!search->found[slotno])
	{
		search->found[slotno] = true;
		search->nfound++;
	}
	return search->nfound < search->limit;
}

/*
 * Find the slots that listen on any channel of a batch.  Changes nothing but
 * marks.
 *
 * mark: number of the publication.
 *
 * Returns how many there are.  The caller holds PinpointOrderLock, and calls
 * pinpoint_wakeup_collect() before the next batch.
 */
int
pinpoint_wakeup_find(PinpointBatch *batch, uint64 mark)
{
	ListenerSearch search = {batch->dboid, mark, 0};

	if (batch->nchannels <= MANY_CHANNELS)
	{
		const char *channel = pinpoint_batch_first_channel(batch);

		for (uint32 i = 0; i < batch->nchannels; i++)
		{
			(void) pinpoint_channel_map_lookup(batch->dboid, channel,
											   pinpoint_batch_channel_hash(channel),
											   find_slot, &search);
			channel = pinpoint_batch_next_channel(channel);
		}
	}
	else
	{
		const int  *slots = pinpoint_batch_listeners(batch);

		for (uint32 i = 0; i < batch->nlisteners; i++)
			(void) find_slot(slots[i], &search);
		for (int i = 0; i < MaxBackends; i++)
		{
			if (wakeup_control->slots[i].joined > batch->joined)
				(void) find_slot(i, &search);
		}
	}
	return search.nfound;
}

/*
 * Note that a slot is found for a publication, unless it was before, or is not,
 * or no longer, that of a listener in this database.
 */
static bool
find_slot(int slotno, void *arg)
{
	ListenerSearch *search = arg;
	PinpointSlot *slot = &wakeup_control->slots[slotno];

	if (slot->pid != 0 && slot->dboid == search->dboid &&
		slot->marked != search->mark)
	{
		slot->marked = search->mark;
		found_slots[search->nfound++] = slotno;
	}
	return true;
}

/*
 * A batch is published: let the nfound slots that pinpoint_wakeup_find() found
 * know, and remember which of them need a signal.  The caller holds
 * PinpointOrderLock.
 */
void
pinpoint_wakeup_collect(PinpointBatch *batch, int nfound)
{
	for (int i = 0; i < nfound; i++)
	{
		PinpointSlot *slot = &wakeup_control->slots[found_slots[i]];

		if (slot->state == PINPOINT_IDLE)
		{
			slot->state = PINPOINT_SIGNALLED;
			slot->signalled_at = 0;
			slot->reminders = 0;
			set_unread(slot, batch);
			slot->wakeups++;
			wakeup_control->wakeups++;
			wakeups[nwakeups].slotno = found_slots[i];
			wakeups[nwakeups].pid = slot->pid;
			nwakeups++;
		}
		else if (slot->state == PINPOINT_READING)
			slot->state = PINPOINT_READING_AGAIN;
	}
}

/*
 * Send the signals that were collected.  The caller holds no lock.
 */
void
pinpoint_wakeup_send(void)
{
	for (int i = 0; i < nwakeups; i++)
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
	nwakeups = 0;
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
	TimestampTz last = *(volatile TimestampTz *) &wakeup_control->last_reminders;
	Wakeup	   *reminders;
	int			nreminders = 0;

	/* A clock that was set back must not silence us. */
	if (last <= now && !TimestampDifferenceExceeds(last, now, REMINDER_INTERVAL))
		return;

	reminders = palloc_array(Wakeup, MaxBackends);

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	wakeup_control->last_reminders = now;
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &wakeup_control->slots[i];

		if (slot->pid != 0 && slot->state == PINPOINT_SIGNALLED &&
			needs_reminder(slot, now))
		{
			slot->signalled_at = now;
			slot->reminders++;
			slot->wakeups++;
			wakeup_control->wakeups++;
			reminders[nreminders].slotno = i;
			reminders[nreminders].pid = slot->pid;
			nreminders++;
		}
	}
	LWLockRelease(PinpointOrderLock);

	/* As in pinpoint_wakeup_send(), it may have exited meanwhile. */
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

/*
 * PID of the listener that keeps the oldest batch, 0 if there is none.  The
 * caller holds PinpointOrderLock.
 */
int
pinpoint_wakeup_furthest_behind(void)
{
	PinpointSlot *furthest = NULL;

	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &wakeup_control->slots[i];

		if (slot->pid != 0 && slot->unread != NULL &&
			(furthest == NULL ||
			 slot->unread_sequence < furthest->unread_sequence))
			furthest = slot;
	}
	return furthest ? furthest->pid : 0;
}

/*
 * Give up all listeners that have more than limit bytes to read: mark them, and
 * store their PIDs in pids, which has room for MaxBackends elements.  Returns
 * how many there are; each is found once only.
 */
int
pinpoint_wakeup_give_up(Size limit, int *pids)
{
	int			n = 0;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &wakeup_control->slots[i];

		if (slot->pid == 0 || slot->unread == NULL || slot->given_up ||
			pinpoint_message_log_bytes() - slot->unread_position <= limit)
			continue;
		slot->given_up = true;
		pids[n++] = slot->pid;
	}
	LWLockRelease(PinpointOrderLock);
	return n;
}

/*
 * Was this session given up?
 */
bool
pinpoint_wakeup_given_up(void)
{
	return registered && *(volatile bool *) &my_slot()->given_up;
}

/*
 * Is there something to read?  Asked at every commit of a session that
 * listens, so it looks without a lock: a signal follows if it looks too early.
 */
bool
pinpoint_wakeup_pending(void)
{
	return registered &&
		*(volatile PinpointWakeState *) &my_slot()->state == PINPOINT_SIGNALLED;
}

/*
 * Was this session reminded of it?  True once for each reminder.
 */
bool
pinpoint_wakeup_reminded(void)
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
 * Begin to read: from *first, which stays pinned, to *last.  False if there is
 * nothing to read after all.
 */
bool
pinpoint_wakeup_begin_reading(PinpointBatch **first, PinpointBatch **last)
{
	PinpointSlot *slot = my_slot();
	bool		result = false;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	if (slot->state == PINPOINT_SIGNALLED)
	{
		slot->state = PINPOINT_READING;
		answered = 0;
		*first = slot->unread;
		*last = pinpoint_message_log_last();
		result = true;
	}
	LWLockRelease(PinpointOrderLock);
	return result;
}

/*
 * All before next has been read: let the log have it back.
 */
void
pinpoint_wakeup_advance(PinpointBatch *next)
{
	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	set_unread(my_slot(), next);
	trim_and_release_lock();
}

/*
 * All up to last has been read, with so many notifications for this session
 * delivered.  Returns true if more has come: then the session is to begin to
 * read again, without a signal.
 */
bool
pinpoint_wakeup_end_reading(PinpointBatch *last, uint64 delivered)
{
	PinpointSlot *slot = my_slot();
	PinpointBatch *next = NULL;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	slot->delivered += delivered;
	if (slot->state == PINPOINT_READING_AGAIN)
		next = pinpoint_message_log_after(last);
	set_unread(slot, next);
	slot->state = next ? PINPOINT_SIGNALLED : PINPOINT_IDLE;
	slot->signalled_at = 0;
	slot->reminders = 0;
	trim_and_release_lock();
	return next != NULL;
}

/*
 * Copy the slots of all listeners to copy[], and the bytes of the log that
 * each has not read to backlog[].  Both have room for MaxBackends elements.
 * Returns their number.
 */
int
pinpoint_wakeup_slots(PinpointSlot *copy, uint64 *backlog)
{
	int			n = 0;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &wakeup_control->slots[i];

		if (slot->pid == 0)
			continue;
		copy[n] = *slot;
		backlog[n] = slot->unread ?
			pinpoint_message_log_bytes() - slot->unread_position : 0;
		n++;
	}
	LWLockRelease(PinpointOrderLock);
	return n;
}

/*
 * Signals sent since the server started.  The caller holds PinpointOrderLock.
 */
uint64
pinpoint_wakeup_total(void)
{
	return wakeup_control->wakeups;
}
