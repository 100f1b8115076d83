/*-------------------------------------------------------------------------
 *
 * wakeup.h
 *		Finds the listeners of a batch, and marks them.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAKEUP_H
#define PINPOINT_WAKEUP_H

#include "queue/batch.h"
#include "wakeup/publication.h"

/*
 * Maximum number of channels that are looked up while PinpointOrderLock is
 * held.  For a batch with more channels, they are looked up before that; see
 * wakeup.c.
 */
#define PINPOINT_CHANNELS_LOOKED_UP		64

extern void pinpoint_wakeup_init(void *memory);
extern void pinpoint_wakeup_find_early(PinpointBatchLayout *layout);
extern void pinpoint_wakeup_find_replayed(PinpointBatch *batch);
extern int	pinpoint_wakeup_find(PinpointPublication *publication,
								 PinpointBatch *batch, uint64 mark);
extern void pinpoint_wakeup_collect(PinpointPublication *publication,
									PinpointBatch *batch, int nfound);
extern void pinpoint_wakeup_give_back(void);
extern bool pinpoint_wakeup_remind(void);

#endif							/* PINPOINT_WAKEUP_H */
