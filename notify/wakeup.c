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

#include "compat.h"
#include "pinpoint.h"

/*
 * From so many channels of a batch on, all slots are counted first, to stop
 * looking when there is nobody left to be found.
 */
#define MANY_CHANNELS	64

typedef struct WakeupControl
{
	uint64		wakeups;		/* signals sent since start; protected by
								 * PinpointOrderLock */
	PinpointSlot slots[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends of them */
} WakeupControl;

/* A signal to be sent. */
typedef struct Wakeup
{
	int			slotno;
	int			pid;
} Wakeup;

/* What a look-up under pinpoint_guard() is to find, and what it found. */
typedef struct ListenerSearch
{
	PinpointBatch *batch;
	uint64		mark;
	int			nfound;
} ListenerSearch;

static WakeupControl *control = NULL;

/* Does this session own its slot? */
static bool registered = false;

/*
 * Room for what a publication finds, made before commit: the slots that listen
 * on a batch, and the signals to send.  MaxBackends elements each, as no slot
 * is found twice for one batch, or signalled twice without reading in between.
 */
static int *found_slots = NULL;
static Wakeup *wakeups = NULL;
static int	nwakeups = 0;

static PinpointSlot *my_slot(void);
static void release_lock_and_trim(bool trim);
static int	count_listeners(Oid dboid);
static void search_listeners(void *arg);

static PinpointSlot *
my_slot(void)
{
	return &control->slots[PINPOINT_MY_SLOT_NUMBER];
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

	control = ShmemInitStruct("pg_pinpoint sessions",
							  pinpoint_wakeup_shmem_size(), &found);
	if (!found)
		memset(control, 0, pinpoint_wakeup_shmem_size());
}

/*
 * Before commit: make the room that a publication needs.  May fail.
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
	if (slot->unread != NULL)
		(void) pinpoint_message_log_unpin(slot->unread);
	slot->unread = NULL;
	slot->pid = 0;
	slot->state = PINPOINT_IDLE;
	release_lock_and_trim(true);
}

bool
pinpoint_wakeup_registered(void)
{
	return registered;
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
 * Release PinpointOrderLock, and if a pin at the front of the log has gone, give
 * back what it kept: bit by bit, so that others get the lock in between.
 */
static void
release_lock_and_trim(bool trim)
{
	while (trim)
	{
		trim = pinpoint_message_log_trim();
		if (trim)
		{
			LWLockRelease(PinpointOrderLock);
			LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
		}
	}
	LWLockRelease(PinpointOrderLock);
}

/*
 * Find the slots that listen on any channel of a batch.
 *
 * mark: number of the publication.  everyone: do not ask the channel map, take
 * all listeners of the database.
 *
 * Returns how many there are, or -1 if the channel map could not be read; then
 * PinpointOrderLock, which the caller holds, has been released.  Changes
 * nothing but marks.
 */
int
pinpoint_wakeup_find(PinpointBatch *batch, uint64 mark, bool everyone)
{
	ListenerSearch search = {batch, mark, 0};

	if (!everyone)
	{
		if (!pinpoint_guard(search_listeners, &search,
							"every listener of the database is woken instead"))
			return -1;
	}
	else
	{
		for (int i = 0; i < MaxBackends; i++)
		{
			if (pinpoint_wakeup_mark(i, batch->dboid, mark))
				found_slots[search.nfound++] = i;
		}
	}
	return search.nfound;
}

/*
 * How many sessions listen in a database.  The caller holds PinpointOrderLock.
 */
static int
count_listeners(Oid dboid)
{
	int			n = 0;

	for (int i = 0; i < MaxBackends; i++)
	{
		if (control->slots[i].pid != 0 && control->slots[i].dboid == dboid)
			n++;
	}
	return n;
}

static void
search_listeners(void *arg)
{
	ListenerSearch *search = arg;
	const char *channel = pinpoint_batch_first_channel(search->batch);
	int			limit = MaxBackends;

	if (pinpoint_fault == PINPOINT_FAULT_LOOKUP)
		elog(ERROR, "planted fault: the channel map cannot be read");

	/* With many channels it is worth knowing when all are found. */
	if (search->batch->nchannels >= MANY_CHANNELS)
		limit = count_listeners(search->batch->dboid);

	for (uint32 i = 0; i < search->batch->nchannels && search->nfound < limit; i++)
	{
		search->nfound =
			pinpoint_channel_map_lookup(search->batch->dboid, channel,
										pinpoint_batch_channel_hash(channel),
										search->mark, found_slots,
										search->nfound);
		channel = pinpoint_batch_next_channel(channel);
	}
}

/*
 * Note that a slot is found for a publication.  False if it was before, or if
 * the slot is not, or no longer, that of a listener in this database.
 */
bool
pinpoint_wakeup_mark(int slotno, Oid dboid, uint64 mark)
{
	PinpointSlot *slot = &control->slots[slotno];

	if (slot->pid == 0 || slot->dboid != dboid || slot->marked == mark)
		return false;
	slot->marked = mark;
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
		PinpointSlot *slot = &control->slots[found_slots[i]];

		if (slot->state == PINPOINT_IDLE)
		{
			slot->state = PINPOINT_SIGNALLED;
			slot->unread = batch;
			pinpoint_message_log_pin(batch);
			slot->wakeups++;
			control->wakeups++;
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
 * PID of the listener that keeps the oldest batch, 0 if there is none.  The
 * caller holds PinpointOrderLock.
 */
int
pinpoint_wakeup_furthest_behind(void)
{
	PinpointSlot *furthest = NULL;

	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &control->slots[i];

		if (slot->pid != 0 && slot->unread != NULL &&
			(furthest == NULL ||
			 slot->unread->sequence < furthest->unread->sequence))
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
		PinpointSlot *slot = &control->slots[i];

		if (slot->pid == 0 || slot->unread == NULL || slot->given_up ||
			pinpoint_message_log_backlog(slot->unread) <= limit)
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
	PinpointSlot *slot = my_slot();
	bool		more;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_message_log_pin(next);
	more = pinpoint_message_log_unpin(slot->unread);
	slot->unread = next;
	release_lock_and_trim(more);
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
	bool		more;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	slot->delivered += delivered;
	if (slot->state == PINPOINT_READING_AGAIN)
	{
		next = pinpoint_message_log_after(last);
		pinpoint_message_log_pin(next);
	}
	more = pinpoint_message_log_unpin(slot->unread);
	slot->unread = next;
	slot->state = next ? PINPOINT_SIGNALLED : PINPOINT_IDLE;
	release_lock_and_trim(more);
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
		PinpointSlot *slot = &control->slots[i];

		if (slot->pid == 0)
			continue;
		copy[n] = *slot;
		backlog[n] = slot->unread ?
			pinpoint_message_log_backlog(slot->unread) : 0;
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
	return control->wakeups;
}
