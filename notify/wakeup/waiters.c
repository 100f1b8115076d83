/*-------------------------------------------------------------------------
 *
 * waiters.c
 *		Sessions in pinpoint.wait(), and how they are woken.
 *
 * A session that waits has an entry in a list for each of its channels.  The number of
 * the list is the place of the channel; see positions.c.  One more entry is in the
 * list of the place of its database.  A session that waits for very many channels has
 * a single entry instead, in the list of PINPOINT_EVERY_PLACE.
 *
 * A process that has counted a transaction takes the entries from the lists of the
 * places of this transaction, and sets the latches of their sessions.  A session whose
 * entry was taken enters all its entries again before it looks again.  So a session
 * that is being woken costs nothing to the next transactions.
 *
 * Why no wakeup is lost.
 *
 *	session		enter the entries, then look whether a channel has changed, then
 *				wait for the latch
 *	notifier	count the transaction, then check whether there are entries, then
 *				take them, then set the latches
 *
 * There is a full barrier between the first two steps on both sides: both release a
 * lock there, or execute an explicit barrier.  So either the session sees that the
 * channel has changed, or the notifier sees its entries.  A session resets its latch
 * before it checks whether its entries were taken, and the latch is set after they
 * were taken.  So a session that waits has all its entries, or its latch will be set.
 * A latch that is set without need does no harm: the session looks again.
 *
 * Why PinpointOrderLock is not used.  Sessions that begin and end to wait, and
 * notifiers of their channels, would delay all commits.  PinpointWaitersLock protects
 * the lists.  A notifier reads one counter without a lock if no session waits, and
 * otherwise one number for each place.  It acquires the lock only for a list that is
 * not empty.
 *
 * The work of a notifier is bounded.  It sets at most MAX_LATCHES latches.  The rest of
 * a list is appended to the list of the waker in one step, whatever its length.  The
 * waker takes LATCHES_PER_ROUND entries of it under each hold of the lock.  If there
 * is no waker, the notifier does this.
 *
 * The entries have a fixed number in shared memory, about 800 bytes for each possible
 * session.  Nothing is allocated here, so nothing can fail.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/compat.h"
#include "wakeup/slots.h"
#include "wakeup/waiters.h"

/* Entries of a session: its channels, and its database. */
#define ENTRIES_PER_SESSION		(PINPOINT_MAX_WAIT_CHANNELS + 1)

/* The list of entries that are left to the waker, and the number of lists. */
#define QUEUED					(PINPOINT_EVERY_PLACE + 1)
#define NLISTS					(QUEUED + 1)

/* Number of latches that a notifier sets. */
#define MAX_LATCHES				8

/* Number of entries that are taken from QUEUED at a time. */
#define LATCHES_PER_ROUND		16

/*
 * An entry.  Lists are circular.  The numbers of entries are counted from 1;
 * 0 means none.
 */
typedef struct WaitEntry
{
	uint32		next;			/* 0 if it is not in a list */
	uint32		prev;
	uint32		place;			/* its list, unless this is QUEUED */
} WaitEntry;

typedef struct Waiter
{
	int			pid;			/* 0 if it does not wait */
	Oid			dboid;
	Oid			roleid;			/* session user */
	int			nchannels;
	TimestampTz since;
	struct Latch *latch;
	bool		woken;			/* an entry was taken.  Also read by the
								 * session without the lock */
} Waiter;

/*
 * All fields, and the entries behind the waiters, are protected by
 * PinpointWaitersLock.
 *
 * count and lists are also read without it, by notifiers.
 */
typedef struct Waiters
{
	pg_atomic_uint32 count;		/* number of sessions that wait */
	pg_atomic_uint32 lists[NLISTS]; /* the first entry of each list */
	Waiter		waiters[FLEXIBLE_ARRAY_MEMBER]; /* MaxBackends elements */
} Waiters;

static Waiters *waiters = NULL;
static WaitEntry *entries = NULL;	/* of the first session, and so on */

/* Latches to set, and whether entries were left to the waker. */
static struct Latch *latches[MAX_LATCHES];
static int	nlatches = 0;
static bool any_queued = false;

static Size waiters_size(void);
static WaitEntry *entry(uint32 number);
static uint32 first_entry(int list);
static void set_first_entry(int list, uint32 number);
static void append_entry(int place, uint32 number);
static void join_lists(uint32 a, uint32 b);
static void remove_entry(uint32 number);
static void remove_mine(void);
static struct Latch *take_first(int list);

static Size
waiters_size(void)
{
	return MAXALIGN(add_size(offsetof(Waiters, waiters),
							 mul_size(MaxBackends, sizeof(Waiter))));
}

Size
pinpoint_waiters_shmem_size(void)
{
	return add_size(waiters_size(),
					mul_size(mul_size(MaxBackends, ENTRIES_PER_SESSION),
							 sizeof(WaitEntry)));
}

/*
 * The postmaster calls this at start and at restart after a crash.  The memory
 * is zero: all lists are empty, and its pages are not used yet.
 */
void
pinpoint_waiters_shmem_init(void)
{
	bool		found;

	waiters = ShmemInitStruct("pg_pinpoint waiters",
							  pinpoint_waiters_shmem_size(), &found);
	Assert(!found);
	entries = (WaitEntry *) ((char *) waiters + waiters_size());
}

static WaitEntry *
entry(uint32 number)
{
	Assert(number >= 1 &&
		   number <= (uint32) MaxBackends * ENTRIES_PER_SESSION);
	return &entries[number - 1];
}

static uint32
first_entry(int list)
{
	return pg_atomic_read_u32(&waiters->lists[list]);
}

static void
set_first_entry(int list, uint32 number)
{
	pg_atomic_write_u32(&waiters->lists[list], number);
}

/*
 * Append an entry to a list.
 */
static void
append_entry(int place, uint32 number)
{
	WaitEntry  *added = entry(number);

	AssertHeldExclusive(PinpointWaitersLock);
	Assert(added->next == 0);
	added->next = number;
	added->prev = number;
	added->place = place;
	if (first_entry(place) == 0)
		set_first_entry(place, number);
	else
		join_lists(first_entry(place), number);
}

/*
 * Append the circle of entries that begins with b to the one that begins with
 * a.
 */
static void
join_lists(uint32 a, uint32 b)
{
	uint32		last_a = entry(a)->prev;
	uint32		last_b = entry(b)->prev;

	AssertHeldExclusive(PinpointWaitersLock);
	Assert(entry(last_a)->next == a && entry(last_b)->next == b);

	entry(last_a)->next = b;
	entry(b)->prev = last_a;
	entry(last_b)->next = a;
	entry(a)->prev = last_b;
}

/*
 * Remove an entry from the list that contains it.
 */
static void
remove_entry(uint32 number)
{
	WaitEntry  *old = entry(number);
	uint32		new_first = old->next == number ? 0 : old->next;

	AssertHeldExclusive(PinpointWaitersLock);
	Assert(entry(old->next)->prev == number && entry(old->prev)->next == number);

	if (first_entry(old->place) == number)
		set_first_entry(old->place, new_first);
	else if (first_entry(QUEUED) == number)
		set_first_entry(QUEUED, new_first);
	entry(old->prev)->next = old->next;
	entry(old->next)->prev = old->prev;
	old->next = 0;
}

/*
 * Remove the entries of this session that are in lists.
 */
static void
remove_mine(void)
{
	uint32		first = PINPOINT_MY_SLOT_NUMBER * ENTRIES_PER_SESSION + 1;

	for (uint32 i = first; i < first + ENTRIES_PER_SESSION; i++)
	{
		if (entry(i)->next != 0)
			remove_entry(i);
	}
}

/*
 * This session begins to wait.  Its next call is pinpoint_waiters_enter().
 *
 * limit: maximum number of sessions of its session user that wait; no limit if
 * negative.  Returns false if there are as many.
 */
bool
pinpoint_waiters_begin(int nchannels, int limit)
{
	Waiter	   *me = &waiters->waiters[PINPOINT_MY_SLOT_NUMBER];
	Oid			roleid = GetSessionUserId();
	TimestampTz now = GetCurrentTimestamp();
	int			count = 0;

	AssertNoLockHeld();
	pinpoint_lock_acquire(PinpointWaitersLock, LW_EXCLUSIVE);
	Assert(me->pid == 0);
	for (int i = 0; limit >= 0 && i < MaxBackends; i++)
	{
		if (waiters->waiters[i].pid != 0 && waiters->waiters[i].roleid == roleid)
			count++;
	}
	if (limit >= 0 && count >= limit)
	{
		LWLockRelease(PinpointWaitersLock);
		return false;
	}
	me->pid = MyProcPid;
	me->dboid = MyDatabaseId;
	me->roleid = roleid;
	me->nchannels = nchannels;
	me->since = now;
	me->latch = MyLatch;
	pg_atomic_write_u32(&waiters->count,
						pg_atomic_read_u32(&waiters->count) + 1);
	LWLockRelease(PinpointWaitersLock);
	return true;
}

/*
 * Enter this session into the lists of its places.  The caller looks after
 * this whether a channel has changed.
 *
 * n: number of places, at most ENTRIES_PER_SESSION.
 */
void
pinpoint_waiters_enter(const int *places, int n)
{
	uint32		first = PINPOINT_MY_SLOT_NUMBER * ENTRIES_PER_SESSION + 1;

	AssertNoLockHeld();
	Assert(n <= ENTRIES_PER_SESSION);
	pinpoint_lock_acquire(PinpointWaitersLock, LW_EXCLUSIVE);
	Assert(waiters->waiters[PINPOINT_MY_SLOT_NUMBER].pid == MyProcPid);
	remove_mine();
	for (int i = 0; i < n; i++)
		append_entry(places[i], first + i);
	waiters->waiters[PINPOINT_MY_SLOT_NUMBER].woken = false;
	LWLockRelease(PinpointWaitersLock);
}

/*
 * Was an entry of this session taken?  Then it must enter itself again.
 * Called after its latch was reset.
 */
bool
pinpoint_waiters_woken(void)
{
	return *(volatile bool *) &waiters->waiters[PINPOINT_MY_SLOT_NUMBER].woken;
}

/*
 * This session does not wait any more.
 */
void
pinpoint_waiters_end(void)
{
	Waiter	   *me = &waiters->waiters[PINPOINT_MY_SLOT_NUMBER];

	AssertNoLockHeld();
	pinpoint_lock_acquire(PinpointWaitersLock, LW_EXCLUSIVE);
	if (me->pid == MyProcPid)
	{
		remove_mine();
		me->pid = 0;
		pg_atomic_write_u32(&waiters->count,
							pg_atomic_read_u32(&waiters->count) - 1);
	}
	LWLockRelease(PinpointWaitersLock);
}

/*
 * Does any session wait?  The caller has executed a full barrier since it
 * counted its transaction.
 */
bool
pinpoint_waiters_exist(void)
{
	return pg_atomic_read_u32(&waiters->count) != 0;
}

/*
 * Take the entries of a place.  The caller calls pinpoint_waiters_wake() after
 * all places.  Does not fail.
 */
void
pinpoint_waiters_take(int place)
{
	uint32		rest;

	AssertLocksBelow(PINPOINT_RANK_ORDER);
	Assert(place >= 0 && place <= PINPOINT_EVERY_PLACE);

	if (likely(first_entry(place) == 0))
		return;

	pinpoint_lock_acquire(PinpointWaitersLock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_LATCHES && nlatches < MAX_LATCHES; i++)
	{
		if (first_entry(place) == 0)
			break;
		latches[nlatches] = take_first(place);
		if (latches[nlatches] != NULL)
			nlatches++;
	}

	rest = first_entry(place);
	if (rest != 0)
	{
		set_first_entry(place, 0);
		if (first_entry(QUEUED) == 0)
			set_first_entry(QUEUED, rest);
		else
			join_lists(first_entry(QUEUED), rest);
		any_queued = true;
	}
	LWLockRelease(PinpointWaitersLock);
}

/*
 * Take the first entry of a list.  Returns the latch to set, or NULL if the
 * session is being woken already.
 */
static struct Latch *
take_first(int list)
{
	uint32		number = first_entry(list);
	Waiter	   *waiter = &waiters->waiters[(number - 1) / ENTRIES_PER_SESSION];

	AssertHeldExclusive(PinpointWaitersLock);
	Assert(number != 0 && waiter->pid != 0);

	remove_entry(number);
	if (waiter->woken)
		return NULL;
	waiter->woken = true;
	return waiter->latch;
}

/*
 * Wake the sessions whose entries were taken.  The caller holds no lock.  Does
 * not fail.
 */
void
pinpoint_waiters_wake(void)
{
	AssertLocksBelow(PINPOINT_RANK_ORDER);

	/* Setting the latch of a session that has ended does no harm. */
	for (int i = 0; i < nlatches; i++)
		SetLatch(latches[i]);
	nlatches = 0;

	if (any_queued)
	{
		struct Latch *waker;

		/*
		 * When the waker ends, it first resets its latch here, and then wakes
		 * the queued sessions.  Both sides acquire locks in between, so if
		 * this reads the old latch, the waker finds these sessions.
		 */
		waker = *(struct Latch *volatile *) &PinpointSharedSlots->waker_queue.waker;
		if (waker != NULL)
			SetLatch(waker);
		else
		{
			while (pinpoint_waiters_wake_queued())
				 /* loop */ ;
		}
	}
	any_queued = false;
}

/*
 * Wake some of the sessions that are left to the waker.  Returns false if
 * there were none.
 */
bool
pinpoint_waiters_wake_queued(void)
{
	struct Latch *queued[LATCHES_PER_ROUND];
	int			n;

	AssertLocksBelow(PINPOINT_RANK_ORDER);
	if (first_entry(QUEUED) == 0)
		return false;

	pinpoint_lock_acquire(PinpointWaitersLock, LW_EXCLUSIVE);
	for (n = 0; n < LATCHES_PER_ROUND && first_entry(QUEUED) != 0; n++)
		queued[n] = take_first(QUEUED);
	LWLockRelease(PinpointWaitersLock);

	for (int i = 0; i < n; i++)
	{
		if (queued[i] != NULL)
			SetLatch(queued[i]);
	}
	return n > 0;
}

/*
 * Data for the view pinpoint.waiting.
 *
 * copy: an array of MaxBackends elements.  Returns the number of sessions.
 */
int
pinpoint_waiters_copy(PinpointWaiterStats *copy)
{
	int			n = 0;

	AssertNoLockHeld();
	pinpoint_lock_acquire(PinpointWaitersLock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		Waiter	   *waiter = &waiters->waiters[i];

		if (waiter->pid == 0)
			continue;
		copy[n].pid = waiter->pid;
		copy[n].dboid = waiter->dboid;
		copy[n].roleid = waiter->roleid;
		copy[n].nchannels = waiter->nchannels;
		copy[n].since = waiter->since;
		n++;
	}
	LWLockRelease(PinpointWaitersLock);
	return n;
}
