/*-------------------------------------------------------------------------
 *
 * publication.c
 *		One hold of PinpointOrderLock to publish batches, and the signals after
 *		it.
 *
 * A process that publishes batches, or reassigns notifications, does this
 * between pinpoint_publication_begin(), which acquires PinpointOrderLock
 * exclusively, and pinpoint_publication_end(), which releases it.  Meanwhile,
 * the sessions to signal are collected.  The signals are sent after the
 * release; see signals.c.
 *
 * The waker.  A sender that signals very many sessions takes a long time, and
 * the sessions that it has woken compete with it for the processor.  If there
 * are more than MAX_SIGNALS, it adds the slots to a list of a background
 * worker, the waker; see waker.c and waker_list.c.  The waker skips a slot
 * that is not SIGNALLED any more.  Batches that are published while it
 * processes the list need no further signal for these slots.  If there is no
 * waker, senders send all signals, including those of the list.  If the waker
 * makes no progress (see waker_progress.c), senders send all of their own
 * signals; commit/waker_reserve.c sends those of the list, of batches that it
 * publishes for others, and those that were taken from the list last.  A second
 * signal does no harm.
 *
 * The limit of work.  While a process holds the lock, all other sessions that
 * notify, and all that begin or end to read, wait.  So a process that
 * publishes batches of other sessions ends the publication when it has worked
 * enough.
 *
 * Nothing fails or is allocated here, because publications follow the commit
 * record.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/async.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/counters.h"
#include "base/settings.h"
#include "wakeup/publication.h"
#include "wakeup/signals.h"
#include "wakeup/slot_private.h"
#include "wakeup/slots.h"
#include "wakeup/waker_list.h"
#include "wakeup/waker_progress.h"

/*
 * If a process has more signals to send than this, it leaves them to the
 * waker.
 */
#define MAX_SIGNALS			8

/*
 * Limit of the work under one hold of PinpointOrderLock.  The unit is the work
 * for one listener of a channel, which took about 20 ns in a measurement.
 */
#define MAX_WORK_PER_HOLD	4096

/*
 * The sessions to signal at the end of the current publication: room for
 * MaxBackends elements, allocated by the postmaster and inherited.  This is
 * sufficient: a session needs a signal only once until it has read.
 */
static PinpointWakeup *signals = NULL;

#ifdef USE_ASSERT_CHECKING
/* The publication that has begun, NULL if none. */
static const PinpointPublication *current = NULL;
#endif

static void share_out(PinpointPublication *publication);
static int	take_all(PinpointWakeup *wakeups, int max);
static int	find_wakeups(PinpointWakeup *wakeups, const int *slots, int nslots);
static bool add_wakeup(PinpointWakeup *wakeup, int slotno);

/*
 * Allocate memory in the postmaster, at start and at restart after a crash.
 */
void
pinpoint_publication_init(void *memory)
{
	if (signals == NULL)
		signals = MemoryContextAlloc(TopMemoryContext,
									 MaxBackends * sizeof(PinpointWakeup));
}

/*
 * Begin a publication.  No interrupt is processed until its end.
 */
void
pinpoint_publication_begin(PinpointPublication *publication)
{
	AssertLocksBelow(PINPOINT_RANK_ORDER);
	Assert(current == NULL);

	HOLD_INTERRUPTS();
	publication->nsignals = 0;
	publication->work = 0;
	publication->in_parts = false;
	publication->waker_to_tell = NULL;
	pinpoint_lock_acquire_order("publish");
#ifdef USE_ASSERT_CHECKING
	current = publication;
#endif
}

/*
 * End a publication, and send the signals or leave them to the waker.
 */
void
pinpoint_publication_end(PinpointPublication *publication)
{
	Assert(current == publication);
	AssertHeldExclusive(PinpointOrderLock);

	share_out(publication);
	pinpoint_slots_check(false);
#ifdef USE_ASSERT_CHECKING
	current = NULL;
#endif
	pinpoint_lock_release_order();

	if (publication->nsignals > 0)
		pinpoint_signal(signals, publication->nsignals);

	/* If the waker has ended, setting its latch does no harm. */
	if (publication->waker_to_tell != NULL)
		SetLatch(publication->waker_to_tell);
	RESUME_INTERRUPTS();
}

/*
 * Signal the owner of a slot at the end of the publication.  The slot is
 * SIGNALLED.
 */
void
pinpoint_publication_add_signal(PinpointPublication *publication, int slotno)
{
	PinpointSlot *slot = &PinpointSlotsShared->slots[slotno];

	Assert(current == publication);
	AssertHeldExclusive(PinpointOrderLock);
	Assert(publication->nsignals < MaxBackends);
	Assert(readable(slot)->pid != 0 &&
		   readable(slot)->state == PINPOINT_SIGNALLED);

	signals[publication->nsignals].slotno = slotno;
	signals[publication->nsignals].pid = readable(slot)->pid;
	publication->nsignals++;
}

/*
 * Has this process done as much work as is allowed under one hold of the lock?
 */
bool
pinpoint_publication_worked_enough(const PinpointPublication *publication)
{
	Assert(current == publication);
	AssertHeldExclusive(PinpointOrderLock);

	return publication->work >= MAX_WORK_PER_HOLD;
}

/*
 * Set the latch of the waker at the end of the publication, because batches
 * are left to it.  Returns false if there is no waker.  If it makes no
 * progress, the next processes that look find the batches; see
 * commit/waker_reserve.c.
 */
bool
pinpoint_publication_leave_to_waker(PinpointPublication *publication)
{
	Assert(current == publication);
	AssertHeldExclusive(PinpointOrderLock);

	publication->waker_to_tell = pinpoint_waker_list_get_latch();
	return publication->waker_to_tell != NULL;
}

/*
 * Leave the signals to the waker, if there are many.  Without a waker, take
 * over the signals on its list.
 */
static void
share_out(PinpointPublication *publication)
{
	struct Latch *waker = pinpoint_waker_list_get_latch();

	if (waker == NULL)
	{
		/* Send the signals that an ended waker has left. */
		if (unlikely(pinpoint_waker_list_any()))
			publication->nsignals += take_all(signals + publication->nsignals,
											  MaxBackends - publication->nsignals);
		return;
	}
	if (publication->nsignals <= MAX_SIGNALS ||
		!(publication->in_parts || pinpoint_waker_progress_is_made()))
		return;

	for (int i = 0; i < publication->nsignals; i++)
	{
		/* This session needs no signal, and does not wait for the waker. */
		if (signals[i].pid == MyProcPid)
			notifyInterruptPending = true;
		else
		{
			PinpointSlot *slot = &PinpointSlotsShared->slots[signals[i].slotno];

			Assert(readable(slot)->state == PINPOINT_SIGNALLED);
			pinpoint_waker_list_add(signals[i].slotno);
			pinpoint_counter_add(readable(slot)->dboid,
								 PINPOINT_COUNT_WAKER_SIGNALS, 1);
		}
	}
	pinpoint_waker_list_check();
	publication->nsignals = 0;
	publication->waker_to_tell = waker;
	pinpoint_waker_progress_want();
}

/*
 * Remove up to max sessions that still need a signal from the list of the
 * waker.  The caller holds PinpointOrderLock exclusively.
 */
static int
take_all(PinpointWakeup *wakeups, int max)
{
	int			slots[PINPOINT_SIGNALS_PER_ROUND];
	int			n = 0;

	while (n < max && pinpoint_waker_list_any())
	{
		int			nslots;

		nslots =
			pinpoint_waker_list_take(slots,
									 Min(max - n, (int) lengthof(slots)));
		n += find_wakeups(&wakeups[n], slots, nslots);
	}
	return n;
}

/*
 * Signal the first sessions in the list of the waker.  Returns the number of
 * signals, or -1 if the list was empty.
 *
 * in_hand: also signal those that another process has taken from the list and
 * has possibly not signalled.
 */
int
pinpoint_publication_signal_listed(bool in_hand)
{
	int			slots[2 * PINPOINT_SIGNALS_PER_ROUND];
	PinpointWakeup wakeups[2 * PINPOINT_SIGNALS_PER_ROUND];
	int			nslots = 0;
	int			n;
	bool		any;

	/* Those that are taken from the list must be signalled. */
	HOLD_INTERRUPTS();
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	any = pinpoint_waker_list_any();
	if (in_hand)
		nslots = pinpoint_waker_list_in_hand(slots);
	nslots += pinpoint_waker_list_take(slots + nslots,
									   PINPOINT_SIGNALS_PER_ROUND);
	n = find_wakeups(wakeups, slots, nslots);
	LWLockRelease(PinpointOrderLock);

	if (n > 0)
		pinpoint_signal(wakeups, n);
	RESUME_INTERRUPTS();
	return any || n > 0 ? n : -1;
}

/*
 * Store those of the slots that still need a signal in wakeups[], and return
 * their number.  The caller holds PinpointOrderLock exclusively.
 */
static int
find_wakeups(PinpointWakeup *wakeups, const int *slots, int nslots)
{
	int			n = 0;

	for (int i = 0; i < nslots; i++)
		n += add_wakeup(&wakeups[n], slots[i]);
	return n;
}

/*
 * Does the owner of a slot still need a signal?  If so, sets *wakeup.
 */
static bool
add_wakeup(PinpointWakeup *wakeup, int slotno)
{
	PinpointSlot *slot = &PinpointSlotsShared->slots[slotno];

	AssertHeldExclusive(PinpointOrderLock);
	if (readable(slot)->pid == 0 ||
		readable(slot)->state != PINPOINT_SIGNALLED ||
		PINPOINT_FAULT(DROP_SIGNALS))
		return false;
	wakeup->slotno = slotno;
	wakeup->pid = readable(slot)->pid;
	return true;
}
