/*-------------------------------------------------------------------------
 *
 * waker_list.c
 *		The list of sessions that the waker has to signal.
 *
 * A slot is in the list at most once.  So the list has one element for each
 * slot, and is never full.  A slot remains in the list when its session ends:
 * who takes it from the list looks whether it still needs a signal; see
 * publication.c.
 *
 * The slots that were taken from the list last remain in in_hand: the process
 * that has taken them may stop before it has signalled them.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/check.h"
#include "base/compat.h"
#include "wakeup/waker_list.h"

/* Values of next[] that are no slots. */
#define END_OF_LIST		(-1)
#define NOT_IN_LIST		(-2)

/*
 * Protected by PinpointOrderLock: written under the exclusive lock.  The latch
 * is also read without it.
 */
typedef struct WakerList
{
	struct Latch *waker;		/* latch of the waker; NULL if there is none */
	int			first;			/* first slot of the list, or END_OF_LIST */
	int			last;
	int			nin_hand;
	int			in_hand[PINPOINT_SIGNALS_PER_ROUND];
	int			next[FLEXIBLE_ARRAY_MEMBER];	/* by slot: the next slot of
												 * the list, END_OF_LIST or
												 * NOT_IN_LIST */
} WakerList;

static WakerList *list = NULL;

Size
pinpoint_waker_list_shmem_size(void)
{
	return add_size(offsetof(WakerList, next),
					mul_size(MaxBackends, sizeof(int)));
}

void
pinpoint_waker_list_shmem_init(void *memory)
{
	list = memory;
	list->waker = NULL;
	list->first = END_OF_LIST;
	list->last = END_OF_LIST;
	list->nin_hand = 0;
	for (int i = 0; i < MaxBackends; i++)
		list->next[i] = NOT_IN_LIST;
}

/*
 * Set the latch of the waker; NULL if the waker ends.  The caller holds
 * PinpointOrderLock exclusively.
 */
void
pinpoint_waker_list_set_latch(struct Latch *waker)
{
	AssertHeldExclusive(PinpointOrderLock);

	list->waker = waker;
}

/*
 * The latch of the waker; NULL if there is no waker.  Needs no lock: if the
 * waker has ended, setting its latch does no harm.
 */
struct Latch *
pinpoint_waker_list_get_latch(void)
{
	return *(struct Latch *volatile *) &list->waker;
}

/*
 * Add a slot to the list, unless it is in the list.  The caller holds
 * PinpointOrderLock exclusively.
 */
void
pinpoint_waker_list_add(int slotno)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(slotno >= 0 && slotno < MaxBackends);

	if (list->next[slotno] != NOT_IN_LIST)
	{
		Assert(pinpoint_waker_list_any());
		return;
	}
	list->next[slotno] = END_OF_LIST;
	if (list->first == END_OF_LIST)
		list->first = slotno;
	else
		list->next[list->last] = slotno;
	list->last = slotno;
}

/*
 * Is any slot in the list?  The caller holds PinpointOrderLock.
 */
bool
pinpoint_waker_list_any(void)
{
	AssertHeld(PinpointOrderLock);
	return list->first != END_OF_LIST;
}

/*
 * Is a slot in the list?  The caller holds PinpointOrderLock.
 */
bool
pinpoint_waker_list_contains(int slotno)
{
	AssertHeld(PinpointOrderLock);
	Assert(slotno >= 0 && slotno < MaxBackends);
	return list->next[slotno] != NOT_IN_LIST;
}

/*
 * Remove up to max slots from the list, and store them in slots[].  Returns
 * their number.  The caller holds PinpointOrderLock exclusively.
 */
int
pinpoint_waker_list_take(int *slots, int max)
{
	int			n = 0;

	AssertHeldExclusive(PinpointOrderLock);
	list->nin_hand = 0;
	while (n < max && list->first != END_OF_LIST)
	{
		int			slotno = list->first;

		Assert(list->next[slotno] != NOT_IN_LIST);
		list->first = list->next[slotno];
		list->next[slotno] = NOT_IN_LIST;
		if (list->nin_hand < PINPOINT_SIGNALS_PER_ROUND)
			list->in_hand[list->nin_hand++] = slotno;
		slots[n++] = slotno;
	}
	return n;
}

/*
 * Store the slots that were taken from the list last in slots[], an array of
 * PINPOINT_SIGNALS_PER_ROUND elements.  Returns their number.  The caller holds
 * PinpointOrderLock.
 */
int
pinpoint_waker_list_in_hand(int *slots)
{
	AssertHeld(PinpointOrderLock);
	Assert(list->nin_hand <= PINPOINT_SIGNALS_PER_ROUND);

	memcpy(slots, list->in_hand, list->nin_hand * sizeof(int));
	return list->nin_hand;
}

#ifdef USE_ASSERT_CHECKING
/*
 * The invariants of the list.  The caller holds PinpointOrderLock exclusively.
 */
void
pinpoint_waker_list_check(void)
{
	int			n = 0;
	int			last = END_OF_LIST;

	AssertHeldExclusive(PinpointOrderLock);
	for (int i = 0; i < MaxBackends; i++)
		n += list->next[i] != NOT_IN_LIST;
	for (int i = list->first; i != END_OF_LIST; i = list->next[i])
	{
		Assert(i >= 0 && i < MaxBackends && n > 0);
		n--;
		last = i;
	}
	Assert(n == 0);
	Assert(last == END_OF_LIST || last == list->last);
}
#endif
