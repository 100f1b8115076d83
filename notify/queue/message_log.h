/*-------------------------------------------------------------------------
 *
 * message_log.h
 *		The queue: committed batches, in the order in which they are read.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_MESSAGE_LOG_H
#define PINPOINT_MESSAGE_LOG_H

#include "queue/batch.h"

/* The fill level of the log; see the view pinpoint.stat_queue. */
typedef struct PinpointLogStats
{
	Size		size;			/* capacity, in bytes */
	Size		used;			/* bytes in use, in whole blocks */
	Size		file;			/* bytes of allocated disk space */
	uint64		batches;		/* number of published batches that are kept */
} PinpointLogStats;

/*
 * A published batch, and a copy of those of its fields that other sessions
 * need under the lock.
 */
typedef struct PinpointBatchRef
{
	PinpointBatch *batch;		/* NULL if it refers to none */
	uint64		sequence;		/* number of its publication */
	uint64		epoch;			/* the epoch of its publication */
	uint64		bytes;			/* bytes published before it */
	TimestampTz published_at;
} PinpointBatchRef;

extern Size pinpoint_message_log_shmem_size(void);
extern void pinpoint_message_log_shmem_init(void *memory);
extern Size pinpoint_message_log_capacity(void);
extern Size pinpoint_message_log_lag_limit(int max_lag);
extern PinpointBatch *pinpoint_message_log_reserve(Size size, int *error);
extern uint64 pinpoint_message_log_sequence(void);
extern uint64 pinpoint_message_log_next_sequence(void);
extern void pinpoint_message_log_append(PinpointBatch *batch);
extern void pinpoint_message_log_withdraw(PinpointBatch *batch);
extern PinpointBatch *pinpoint_message_log_last(void);
extern PinpointBatch *pinpoint_message_log_after(PinpointBatch *batch);
extern PinpointBatchRef pinpoint_message_log_ref(PinpointBatch *batch);
extern void pinpoint_message_log_pin(uint64 epoch);
extern bool pinpoint_message_log_unpin(uint64 epoch);
extern void pinpoint_message_log_trim(void);
extern uint64 pinpoint_message_log_bytes(void);
extern Size pinpoint_message_log_kept(void);
extern bool pinpoint_message_log_has_spare_file(void);
extern bool pinpoint_message_log_give_back(void);
extern void pinpoint_message_log_stats(PinpointLogStats *stats);
#ifdef USE_ASSERT_CHECKING
extern void pinpoint_message_log_check(void);
#endif

#endif							/* PINPOINT_MESSAGE_LOG_H */
