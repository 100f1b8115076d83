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
	PINPOINT_COUNT_REPLAYED,	/* of the transactions, replayed on a standby */
	PINPOINT_COUNT_UNHEARD,		/* nobody listened */
	PINPOINT_COUNT_HELD_BACK,	/* had to wait for a slower commit, */
	PINPOINT_MAX_HELD_BACK,		/* and for how many microseconds at most */
	PINPOINT_COUNT_BY_OTHERS,	/* published by another session */
	PINPOINT_COUNT_SIGNALS,		/* listeners signalled */
	PINPOINT_COUNT_SIGNALS_SAVED,	/* listeners that were awake, or signalled
									 * already */
	PINPOINT_COUNT_WAKER_SIGNALS, /* of the signals, left to the waker */
	PINPOINT_COUNT_DELIVERED,	/* notifications that listeners have got, */
	PINPOINT_COUNT_FOLDED,		/* of these, not sent to the client again, due
								 * to pinpoint.fold */
	PINPOINT_COUNT_REASSIGNED,	/* given to another session that shares the
								 * channel */
	PINPOINT_COUNT_WARNED,		/* warnings of listeners that were behind */
	PINPOINT_COUNT_DISCONNECTED,	/* listeners, for any reason */
	PINPOINT_COUNT_QUEUE_FULL,	/* transactions that failed, */
	PINPOINT_COUNT_DISK_FULL,	/* likewise */
	PINPOINT_NCOUNTERS
} PinpointCounter;

/* The counters of a database, as they were at some moment. */
typedef struct PinpointCounts
{
	Oid			dboid;			/* invalid for all those that found no place */
	uint64		counts[PINPOINT_NCOUNTERS];
	TimestampTz reset;			/* 0 if never */
} PinpointCounts;

/* At most so many of them. */
#define PINPOINT_MAX_COUNTED_DATABASES	1024

extern Size pinpoint_counters_shmem_size(void);
extern void pinpoint_counters_shmem_init(void);
extern void pinpoint_count(Oid dboid, PinpointCounter counter, uint64 n);
extern void pinpoint_count_max(Oid dboid, PinpointCounter counter, uint64 n);
extern int	pinpoint_counters_copy(PinpointCounts *copy);
extern void pinpoint_counters_reset(void);

#endif							/* PINPOINT_COUNTERS_H */
