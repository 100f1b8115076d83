/*-------------------------------------------------------------------------
 *
 * waiters.c
 *		Sessions in pinpoint.wait(), and how they are woken.
 *
 * A session that waits has an entry in a list for each of its channels.  The
 * number of the list is the place of the channel; see positions.c.  One more
 * entry is in the list of the place of its database.  A session that waits for
 * very many channels has a single entry instead, in a list that each counted
 * transaction of its database takes.
 *
 * A process that has counted a transaction takes the entries from the lists of
 * the places of this transaction, and sets the latches of their sessions.  A
 * session whose entry was taken enters all its entries again before it looks
 * again.  So a session that is being woken costs nothing to the next
 * transactions.
 *
 * Why no wakeup is lost.
 *
 *	session		enter the entries, then look whether a channel has changed, then
 *				wait for the latch
 *	notifier	count the transaction, then check whether there are entries,
 *				then take them, then set the latches
 *
 * There is a full barrier between the first two steps on both sides: at the
 * end of pinpoint_waiters_enter(), and at the start of
 * pinpoint_waiters_exist().  The release of a lock between these steps is not
 * sufficient: a later read can pass the stores before it.
 *
 * So either the session sees that the channel has changed, or the notifier
 * sees its entries.  Without one of these barriers, both could read old
 * values, and the session would sleep although its channel has changed.
 *
 * A session resets its latch before it checks whether its entries were taken,
 * and the latch is set after they were taken.  Both ResetLatch() and
 * SetLatch() contain a full barrier.  So a session that waits has all its
 * entries, or its latch will be set.  A latch that is set without need does no
 * harm: the session looks again.
 *
 * Why PinpointOrderLock is not used.  Sessions that begin and end to wait, and
 * notifiers of their channels, would delay all commits.  PinpointWaitersLock
 * protects the lists.  A notifier reads one counter without a lock if no
 * session waits, and otherwise one number for each place.  It acquires the
 * lock only for a list that is not empty.
 *
 * The work of a notifier is bounded.  It sets at most MAX_LATCHES latches.
 * The rest of a list is appended to the list of the waker in one step,
 * whatever its length.  The waker takes LATCHES_PER_ROUND entries of it under
 * each hold of the lock.
 *
 * If there is no waker, or if it makes no progress (see waker_progress.c), the
 * notifier takes LATCHES_PER_ROUND entries.  Each session that it has woken
 * takes as many when it enters its entries again or ends to wait, and so on.
 * As long as entries remain, there is a session that has been woken and has
 * not done this.  Further notifiers, and a new waker, take entries, too.
 *
 * No entry is left in the list of the waker when it ends:
 *
 *	notifier	append entries, then read the latch of the waker: it wakes the
 *				waker, or takes entries as above
 *	waker		remove its latch, then read the list: it wakes all
 *
 * There is a full barrier between the two steps on both sides: in
 * pinpoint_waiters_wake(), and at the start of pinpoint_waiters_wake_queued(),
 * which at_exit() in waker.c calls after pinpoint_commit_order_remove_waker().
 * So the notifier sees that there is no latch, or the waker sees the entries.
 * A waker that starts sets its latch and then reads the list, likewise.
 *
 * A process can stop after it has counted a transaction, and before it has set
 * the latches.  Nobody else sets them: for others, these sessions are being
 * woken.  So a session also looks every few seconds without being woken; see
 * LOOK_INTERVAL in wait.c.
 *
 * The entries have a fixed number in shared memory, about 800 bytes for each
 * possible session.  Nothing is allocated here, so nothing can fail.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/compat.h"
#include "positions/waiters.h"
#include "wakeup/slots.h"
#include "wakeup/waker_progress.h"

/* Entries of a session: its channels, and its database. */
#define ENTRIES_PER_SESSION		(PINPOINT_MAX_WAIT_CHANNELS + 1)

/* The list of entries that are left to the waker, and the number of lists. */
#define WAKER_LIST				PINPOINT_NWAIT_LISTS
#define NLISTS					(WAKER_LIST + 1)

/* Number of latches that a notifier sets. */
#define MAX_LATCHES				8

/* Number of entries that are taken from WAKER_LIST at a time. */
#define LATCHES_PER_ROUND		16

/*
 * An entry.  Lists are circular.  The numbers of entries are counted from 1;
 * 0 means none.
 */
typedef struct WaitEntry
{
	uint32		next;			/* 0 if it is not in a list */
	uint32		prev;
	uint32		list;			/* the list to which it was appended: it is in
								 * this one or in WAKER_LIST */
} WaitEntry;

typedef struct Waiter
{
	int			pid;			/* 0 if it does not wait */
	Oid			dboid;
	Oid			roleid;			/* session user */
	int			nchannels;
	TimestampTz since;
	struct Latch *latch;
	bool		woken;			/* an entry was taken, or none is entered yet.
								 * Also read by the session without the lock */
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
static void append_entry(int list, uint32 number);
static void join_lists(uint32 a, uint32 b);
static void remove_entry(uint32 number);
static void remove_mine(void);
static struct Latch *take_first(int list);
static void continue_waking(void);
static void check_changed(int list);
#ifdef USE_ASSERT_CHECKING
static int	number_of_entries(const Waiter *waiter);
static void check_waiter(int slotno);
static uint32 check_list(int list);
static void check_all(void);
#endif

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
pinpoint_waiters_shmem_init(void *memory)
{
	waiters = memory;
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
	Assert(list >= 0 && list < NLISTS);
	return pg_atomic_read_u32(&waiters->lists[list]);
}

static void
set_first_entry(int list, uint32 number)
{
	AssertHeldExclusive(PinpointWaitersLock);
	Assert(list >= 0 && list < NLISTS);
	pg_atomic_write_u32(&waiters->lists[list], number);
}

/*
 * Append an entry to a list.
 */
static void
append_entry(int list, uint32 number)
{
	WaitEntry  *added = entry(number);

	AssertHeldExclusive(PinpointWaitersLock);
	Assert(added->next == 0);
	Assert(list != WAKER_LIST);

	added->next = number;
	added->prev = number;
	added->list = list;
	if (first_entry(list) == 0)
		set_first_entry(list, number);
	else
		join_lists(first_entry(list), number);
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
	Assert(entry(old->prev)->next == number &&
		   entry(old->next)->prev == number);

	if (first_entry(old->list) == number)
		set_first_entry(old->list, new_first);
	else if (first_entry(WAKER_LIST) == number)
		set_first_entry(WAKER_LIST, new_first);
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

	AssertHeldExclusive(PinpointWaitersLock);
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
	Assert(nchannels >= 0);

	pinpoint_lock_acquire(PinpointWaitersLock, LW_EXCLUSIVE);
	Assert(me->pid == 0);
	for (int i = 0; limit >= 0 && i < MaxBackends; i++)
	{
		if (waiters->waiters[i].pid != 0 &&
			waiters->waiters[i].roleid == roleid)
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
	me->woken = true;
	pg_atomic_write_u32(&waiters->count,
						pg_atomic_read_u32(&waiters->count) + 1);
	check_changed(WAKER_LIST);
	LWLockRelease(PinpointWaitersLock);
	return true;
}

/*
 * Enter this session into lists.  The caller looks after this whether a channel
 * has changed.
 *
 * n: number of lists, at most ENTRIES_PER_SESSION.
 */
void
pinpoint_waiters_enter(const int *lists, int n)
{
	uint32		first = PINPOINT_MY_SLOT_NUMBER * ENTRIES_PER_SESSION + 1;

	AssertNoLockHeld();
	Assert(n > 0 && n <= ENTRIES_PER_SESSION);

	pinpoint_lock_acquire(PinpointWaitersLock, LW_EXCLUSIVE);
	Assert(waiters->waiters[PINPOINT_MY_SLOT_NUMBER].pid == MyProcPid);
	remove_mine();
	for (int i = 0; i < n; i++)
		append_entry(lists[i], first + i);
	waiters->waiters[PINPOINT_MY_SLOT_NUMBER].woken = false;
	check_changed(lists[n - 1]);
	LWLockRelease(PinpointWaitersLock);
	continue_waking();

	/*
	 * Partner: pinpoint_waiters_exist().  Without this, both could read old
	 * values, and the session would sleep although its channel has changed.
	 */
	pg_memory_barrier();
}

/*
 * Was an entry of this session taken?  Then it must enter itself again.
 * Called after its latch was reset.
 */
bool
pinpoint_waiters_woken(void)
{
	Assert(waiters->waiters[PINPOINT_MY_SLOT_NUMBER].pid == MyProcPid);
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
		Assert(pg_atomic_read_u32(&waiters->count) > 0);
		remove_mine();
		me->pid = 0;
		pg_atomic_write_u32(&waiters->count,
							pg_atomic_read_u32(&waiters->count) - 1);
		check_changed(WAKER_LIST);
	}
	LWLockRelease(PinpointWaitersLock);
	continue_waking();
}

/*
 * Does any session wait?  The caller has counted a transaction; see the top of
 * this file.
 */
bool
pinpoint_waiters_exist(void)
{
	AssertNotHeld(PinpointOrderLock);
	AssertNotHeld(PinpointWaitersLock);

	/* Partner: pinpoint_waiters_enter(), which tells what could happen. */
	pg_memory_barrier();
	return pg_atomic_read_u32(&waiters->count) != 0;
}

/*
 * Take the entries of a list.  The caller calls pinpoint_waiters_wake() after
 * all lists.  Does not fail.
 */
void
pinpoint_waiters_take(int list)
{
	uint32		rest;

	AssertLocksBelow(PINPOINT_RANK_ORDER);
	Assert(list != WAKER_LIST);

	if (likely(first_entry(list) == 0))
		return;

	pinpoint_lock_acquire(PinpointWaitersLock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_LATCHES && nlatches < MAX_LATCHES; i++)
	{
		if (first_entry(list) == 0)
			break;
		latches[nlatches] = take_first(list);
		if (latches[nlatches] != NULL)
			nlatches++;
	}

	rest = first_entry(list);
	if (rest != 0)
	{
		set_first_entry(list, 0);
		if (first_entry(WAKER_LIST) == 0)
			set_first_entry(WAKER_LIST, rest);
		else
			join_lists(first_entry(WAKER_LIST), rest);
		any_queued = true;
	}
	check_changed(WAKER_LIST);
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
	Assert(waiter->pid != 0);

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
	Assert(nlatches <= MAX_LATCHES);

	/* Setting the latch of a session that has ended does no harm. */
	for (int i = 0; i < nlatches; i++)
		SetLatch(latches[i]);
	nlatches = 0;

	/*
	 * Partner: pinpoint_waiters_wake_queued().  Without this, the waker could
	 * end and leave these entries, while this process reads its old latch:
	 * nobody would wake these sessions.
	 */
	if (any_queued)
		pg_memory_barrier();
	any_queued = false;
	continue_waking();
}

/*
 * If sessions are left to the waker, tell it.  If there is none, or if it makes
 * no progress, wake some of them here.  They do the same.
 */
static void
continue_waking(void)
{
	struct Latch *waker;

	if (likely(first_entry(WAKER_LIST) == 0))
		return;
	waker = pinpoint_waker_progress_latch();
	if (waker != NULL)
		SetLatch(waker);
	else
		(void) pinpoint_waiters_wake_queued();
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

	/* Partner: pinpoint_waiters_wake(), which tells what could happen. */
	pg_memory_barrier();
	if (first_entry(WAKER_LIST) == 0)
		return false;

	pinpoint_lock_acquire(PinpointWaitersLock, LW_EXCLUSIVE);
	for (n = 0; n < LATCHES_PER_ROUND && first_entry(WAKER_LIST) != 0; n++)
		queued[n] = take_first(WAKER_LIST);
	check_changed(WAKER_LIST);
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

/*
 * In a build with assertions: check what a change of this session, or of a
 * list, can have broken.  The caller holds PinpointWaitersLock.
 */
static void
check_changed(int list)
{
#ifdef USE_ASSERT_CHECKING
	static uint32 nchanges = 0;

	/* The startup process of a standby has no slot. */
	if (PINPOINT_MY_SLOT_NUMBER >= 0 && PINPOINT_MY_SLOT_NUMBER < MaxBackends)
		check_waiter(PINPOINT_MY_SLOT_NUMBER);
	if (++nchanges % 16 == 0)
		(void) check_list(list);
	if (nchanges % 4096 == 0)
		check_all();
#endif
}

#ifdef USE_ASSERT_CHECKING
/*
 * The number of entries that a session enters.
 */
static int
number_of_entries(const Waiter *waiter)
{
	return waiter->nchannels > PINPOINT_MAX_WAIT_CHANNELS ? 1 :
		waiter->nchannels + 1;
}

/*
 * Check the entries of a session: without need to enter again, it has all.
 */
static void
check_waiter(int slotno)
{
	const Waiter *waiter = &waiters->waiters[slotno];
	uint32		first = slotno * ENTRIES_PER_SESSION + 1;
	int			n = 0;

	for (uint32 i = first; i < first + ENTRIES_PER_SESSION; i++)
	{
		if (entry(i)->next == 0)
			continue;
		Assert(entry(entry(i)->next)->prev == i);
		Assert(entry(entry(i)->prev)->next == i);
		n++;
	}
	Assert(waiter->pid != 0 || n == 0);
	Assert(waiter->pid == 0 || n <= number_of_entries(waiter));
	Assert(waiter->pid == 0 || waiter->woken || n == number_of_entries(waiter));
}

/*
 * Check a list.  Returns the number of its entries.
 */
static uint32
check_list(int list)
{
	uint32		first = first_entry(list);
	uint32		number = first;
	uint32		n = 0;

	if (first == 0)
		return 0;
	do
	{
		WaitEntry  *e = entry(number);

		Assert(list == WAKER_LIST || e->list == (uint32) list);
		Assert(e->next != 0 && entry(e->next)->prev == number);
		n++;
		Assert(n <= (uint32) MaxBackends * ENTRIES_PER_SESSION);
		number = e->next;
	} while (number != first);
	return n;
}

/*
 * Check all waiters and lists: an entry is in exactly one list, or in none.
 */
static void
check_all(void)
{
	uint32		nwaiters = 0;
	uint32		in_use = 0;
	uint32		in_lists = 0;

	for (int i = 0; i < MaxBackends; i++)
	{
		check_waiter(i);
		if (waiters->waiters[i].pid != 0)
			nwaiters++;
	}
	Assert(nwaiters == pg_atomic_read_u32(&waiters->count));

	for (uint32 i = 1; i <= (uint32) MaxBackends * ENTRIES_PER_SESSION; i++)
	{
		if (entry(i)->next != 0)
			in_use++;
	}
	for (int i = 0; i < NLISTS; i++)
		in_lists += check_list(i);
	Assert(in_use == in_lists);
}

/*
 * Check the whole structure.
 */
void
pinpoint_waiters_check(void)
{
	AssertNoLockHeld();
	pinpoint_lock_acquire(PinpointWaitersLock, LW_SHARED);
	check_all();
	LWLockRelease(PinpointWaitersLock);
}
#endif
