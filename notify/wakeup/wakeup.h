/*-------------------------------------------------------------------------
 *
 * wakeup.h
 *		Finds the listeners of a batch, and wakes them.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAKEUP_H
#define PINPOINT_WAKEUP_H

#include "queue/batch.h"

/*
 * Maximum number of channels that are looked up while PinpointOrderLock is
 * held.  For a batch with more channels, they are looked up before that; see
 * wakeup.c.
 */
#define PINPOINT_CHANNELS_LOOKED_UP		64

/* A session to signal. */
typedef struct PinpointWakeup
{
	int			slotno;
	int			pid;
} PinpointWakeup;

extern void pinpoint_wakeup_init(void);
extern void pinpoint_wakeup_find_early(PinpointBatchLayout *layout);
extern void pinpoint_wakeup_find_replayed(PinpointBatch *batch);
extern int	pinpoint_wakeup_find(PinpointBatch *batch, uint64 mark);
extern void pinpoint_wakeup_collect(PinpointBatch *batch, int nfound);
extern bool pinpoint_wakeup_note(int slotno);
extern void pinpoint_wakeup_give_back(void);
extern void pinpoint_wakeup_release_and_send(void);
extern bool pinpoint_wakeup_worked_enough(void);
extern bool pinpoint_wakeup_leave_to_waker(void);
extern void pinpoint_wakeup_set_waker(struct Latch *waker);
extern int	pinpoint_wakeup_take(PinpointWakeup *wakeups, int max);
extern void pinpoint_wakeup_signal(const PinpointWakeup *wakeups, int n);
extern void pinpoint_wakeup_remind(void);

#endif							/* PINPOINT_WAKEUP_H */
