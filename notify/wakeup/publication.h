/*-------------------------------------------------------------------------
 *
 * publication.h
 *		One hold of PinpointOrderLock to publish batches, and the signals after
 *		it.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_PUBLICATION_H
#define PINPOINT_PUBLICATION_H

#include "base/check.h"

/*
 * A publication.  The caller of pinpoint_publication_begin() has it on its
 * stack, and passes it to all functions that it calls before
 * pinpoint_publication_end().
 */
typedef struct PinpointPublication
{
	int			nsignals;		/* number of sessions to signal; they are in a
								 * list of this process */
	uint32		work;			/* work under this hold of the lock; see
								 * MAX_WORK_PER_HOLD */
	bool		in_parts;		/* if there is a waker, leave many signals to
								 * its list, although it makes no progress:
								 * the caller sends those of the list in parts */
	struct Latch *waker_to_tell;	/* latch of the waker, if slots or batches
									 * are left to it */
} PinpointPublication;

/*
 * Add to the work under this hold of the lock, in units of the work for one
 * listener.
 */
static inline void
pinpoint_publication_add_work(PinpointPublication *publication, uint32 work)
{
	AssertHeldExclusive(PinpointOrderLock);
	publication->work += work;
}

extern void pinpoint_publication_init(void *memory);
extern void pinpoint_publication_begin(PinpointPublication *publication);
extern void pinpoint_publication_end(PinpointPublication *publication);
extern void pinpoint_publication_add_signal(PinpointPublication *publication,
											int slotno);
extern bool pinpoint_publication_worked_enough(const PinpointPublication *publication);
extern bool pinpoint_publication_leave_to_waker(PinpointPublication *publication);
extern int	pinpoint_publication_signal_listed(bool in_hand);

#endif							/* PINPOINT_PUBLICATION_H */
