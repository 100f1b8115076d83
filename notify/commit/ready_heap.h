/*-------------------------------------------------------------------------
 *
 * ready_heap.h
 *		The heap of committed batches that are not published yet, ordered by
 *		stamp.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_READY_HEAP_H
#define PINPOINT_READY_HEAP_H

#include "queue/batch.h"

extern PinpointBatch *pinpoint_ready_heap_insert(PinpointBatch *heap,
												 PinpointBatch *batch);
extern PinpointBatch *pinpoint_ready_heap_remove_first(PinpointBatch *heap);

#ifdef USE_ASSERT_CHECKING
extern uint32 pinpoint_ready_heap_check(PinpointBatch *heap, uint32 limit,
										uint64 turn, uint32 *nturns);
#endif

#endif							/* PINPOINT_READY_HEAP_H */
