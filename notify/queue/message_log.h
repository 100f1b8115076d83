/*-------------------------------------------------------------------------
 *
 * message_log.h
 *		Committed batches, in the order in which they are to be read.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_MESSAGE_LOG_H
#define PINPOINT_MESSAGE_LOG_H

#include "queue/batch.h"

/* How full the log is; see the view pinpoint.stat_queue. */
typedef struct PinpointLogStats
{
	Size		size;			/* capacity, in bytes */
	Size		used;			/* bytes taken */
	Size		file;			/* bytes of disk space taken */
	uint64		batches;		/* batches published and not yet given back */
} PinpointLogStats;

extern Size pinpoint_message_log_shmem_size(void);
extern void pinpoint_message_log_shmem_init(void);
extern Size pinpoint_message_log_capacity(void);
extern PinpointBatch *pinpoint_message_log_reserve(Size size, int *error);
extern uint64 pinpoint_message_log_sequence(void);
extern uint64 pinpoint_message_log_next_sequence(void);
extern void pinpoint_message_log_append(PinpointBatch *batch);
extern void pinpoint_message_log_free(PinpointBatch *batch);
extern PinpointBatch *pinpoint_message_log_last(void);
extern PinpointBatch *pinpoint_message_log_after(PinpointBatch *batch);
extern void pinpoint_message_log_pin(PinpointBatch *batch);
extern bool pinpoint_message_log_unpin(PinpointBatch *batch);
extern bool pinpoint_message_log_trim(void);
extern uint64 pinpoint_message_log_bytes(void);
extern Size pinpoint_message_log_kept(void);
extern void pinpoint_message_log_give_back(void);
extern void pinpoint_message_log_stats(PinpointLogStats *stats);

#endif							/* PINPOINT_MESSAGE_LOG_H */
