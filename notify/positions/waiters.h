/*-------------------------------------------------------------------------
 *
 * waiters.h
 *		Sessions in pinpoint.wait().
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAITERS_H
#define PINPOINT_WAITERS_H

#include "datatype/timestamp.h"

/*
 * Number of places, of channels and of databases; a power of two.  The last
 * ones are those of databases.  See positions.c.
 */
#define PINPOINT_NPLACES			65536
#define PINPOINT_NDATABASE_PLACES	1024

/*
 * Number of lists that a notifier takes.  The first ones belong to the places.
 * The others also belong to the places of databases: they contain the sessions
 * that each counted transaction of their database wakes.
 */
#define PINPOINT_NWAIT_LISTS \
	(PINPOINT_NPLACES + PINPOINT_NDATABASE_PLACES)

/*
 * A session that waits for more channels than this is woken by each counted
 * transaction of its database.
 */
#define PINPOINT_MAX_WAIT_CHANNELS	64

/* A session as in the view pinpoint.waiting. */
typedef struct PinpointWaiterStats
{
	int			pid;
	Oid			dboid;
	Oid			roleid;			/* session user */
	int			nchannels;
	TimestampTz since;
} PinpointWaiterStats;

extern Size pinpoint_waiters_shmem_size(void);
extern void pinpoint_waiters_shmem_init(void *memory);
extern bool pinpoint_waiters_begin(int nchannels, int limit);
extern void pinpoint_waiters_enter(const int *lists, int n);
extern bool pinpoint_waiters_woken(void);
extern void pinpoint_waiters_end(void);
extern bool pinpoint_waiters_exist(void);
extern void pinpoint_waiters_take(int list);
extern void pinpoint_waiters_wake(void);
extern bool pinpoint_waiters_wake_queued(void);
extern int	pinpoint_waiters_copy(PinpointWaiterStats *copy);
#ifdef USE_ASSERT_CHECKING
extern void pinpoint_waiters_check(void);
#endif

#endif							/* PINPOINT_WAITERS_H */
