/*-------------------------------------------------------------------------
 *
 * commit_order.h
 *		Parallel commits, with notifications in commit order.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_COMMIT_ORDER_H
#define PINPOINT_COMMIT_ORDER_H

#include "nodes/pg_list.h"
#include "queue/batch.h"

/*
 * The number of batches that are not published; see the view
 * pinpoint.stat_queue.
 */
typedef struct PinpointOrderStats
{
	uint64		in_flight;		/* batches whose transactions are committing */
	uint64		held_back;		/* committed batches that are not published
								 * yet */
} PinpointOrderStats;

extern Size pinpoint_commit_order_shmem_size(void);
extern void pinpoint_commit_order_shmem_init(void *memory);
extern void pinpoint_commit_order_reserve(List *notifications);
extern void pinpoint_commit_order_announce(void);
extern void pinpoint_commit_order_stamp(void);
extern void pinpoint_commit_order_publish(void);
extern void pinpoint_commit_order_publish_replayed(PinpointBatch *batch);
extern uint64 pinpoint_commit_order_published(void);
extern void pinpoint_commit_order_publish_heartbeat(PinpointBatch *batch);
extern void pinpoint_commit_order_withdraw(void);
extern bool pinpoint_commit_order_continue(void);
extern bool pinpoint_commit_order_take_over(bool in_parts);
extern void pinpoint_commit_order_remove_waker(void);
extern void pinpoint_commit_order_at_exit(void);
extern void pinpoint_commit_order_stats(PinpointOrderStats *stats);

#ifdef USE_ASSERT_CHECKING
extern void pinpoint_commit_order_check(void);
#else
#define pinpoint_commit_order_check()	((void) 0)
#endif

#endif							/* PINPOINT_COMMIT_ORDER_H */
