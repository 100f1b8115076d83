/*-------------------------------------------------------------------------
 *
 * counters.h
 *		Counters by database, since the server started.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_COUNTERS_H
#define PINPOINT_COUNTERS_H

#include "datatype/timestamp.h"

/* In the order of the columns of pinpoint.stat_notify. */
typedef enum PinpointCounter
{
	PINPOINT_COUNT_TRANSACTIONS,	/* transactions published */
	PINPOINT_COUNT_NOTIFICATIONS,	/* notifications in them */
	PINPOINT_COUNT_REPLAYED,	/* transactions replayed on a standby; they
								 * are also counted above */
	PINPOINT_COUNT_UNHEARD,		/* transactions without a listener */
	PINPOINT_COUNT_HELD_BACK,	/* transactions that waited for a slower
								 * commit */
	PINPOINT_MAX_HELD_BACK,		/* longest of these waits, in microseconds */
	PINPOINT_COUNT_BY_OTHERS,	/* transactions published by another session
								 * or the waker */
	PINPOINT_COUNT_SIGNALS,		/* signals to listeners */
	PINPOINT_COUNT_SIGNALS_SAVED,	/* listeners that needed no signal: awake,
									 * or signalled already */
	PINPOINT_COUNT_WAKER_SIGNALS,	/* signals that were left to the waker;
									 * also counted above */
	PINPOINT_COUNT_DELIVERED,	/* notifications delivered to sessions */
	PINPOINT_COUNT_FOLDED,		/* of these, not sent to the client because of
								 * pinpoint.fold */
	PINPOINT_COUNT_REASSIGNED,	/* notifications reassigned to another session
								 * that shares the channel */
	PINPOINT_COUNT_WARNED,		/* warnings about slow listeners */
	PINPOINT_COUNT_DISCONNECTED,	/* sessions told to end, for any reason */
	PINPOINT_COUNT_QUEUE_FULL,	/* transactions that failed because the queue
								 * was full */
	PINPOINT_COUNT_DISK_FULL,	/* transactions that failed because the disk
								 * was full */
	PINPOINT_NCOUNTERS
} PinpointCounter;

/* A copy of the counters of a database. */
typedef struct PinpointCounts
{
	Oid			dboid;			/* InvalidOid for the shared element */
	uint64		counts[PINPOINT_NCOUNTERS];
	TimestampTz reset;			/* time of the last reset, 0 if never */
} PinpointCounts;

/* Elements of the array, including the shared one. */
#define PINPOINT_MAX_COUNTED_DATABASES	1024

extern Size pinpoint_counters_shmem_size(void);
extern void pinpoint_counters_shmem_init(void *memory);
extern void pinpoint_counter_add(Oid dboid, PinpointCounter counter, uint64 n);
extern void pinpoint_counter_raise_max_held_back(Oid dboid, uint64 time);
extern int	pinpoint_counters_copy(PinpointCounts *copy);
extern void pinpoint_counters_reset(void);

#endif							/* PINPOINT_COUNTERS_H */
