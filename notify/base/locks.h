/*-------------------------------------------------------------------------
 *
 * locks.h
 *		The locks of pg_pinpoint, and the order in which they are taken.
 *
 *	1. PinpointStorageLock protects the size of the file of the message log.
 *	   It is held while that file grows or shrinks, which is rare, and is
 *	   never taken after the commit.
 *	2. PinpointReassignmentLock protects no data.  A session that ends holds
 *	   it while it reassigns, so that only one session does this at a time.
 *	   It is acquired by LWLockConditionalAcquire(); see turn.c.  A spinlock
 *	   protects the list of sessions that wait for it.
 *	3. PinpointOrderLock protects the in-flight list, the ready heap, the
 *	   message log and all session slots.
 *	4. A partition lock of the channel map protects the entries of that
 *	   partition and their listeners.  A spinlock below it protects the list
 *	   of free memory.
 *	5. PinpointWaitersLock protects the lists of sessions in pinpoint.wait();
 *	   see waiters.c.  No other lock is taken with it.
 *
 * A process that takes several of these locks takes them in this order.  The
 * last three are not held while signalling, sending to a client or doing I/O.
 * None of them is held while a commit record is written or flushed.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_LOCKS_H
#define PINPOINT_LOCKS_H

#include "storage/lwlock.h"

/* Partitions of the channel map: a power of two, and its logarithm. */
#define PINPOINT_PARTITIONS_LOG2	7
#define PINPOINT_PARTITIONS			(1 << PINPOINT_PARTITIONS_LOG2)

extern LWLock *PinpointStorageLock;
extern LWLock *PinpointReassignmentLock;
extern LWLock *PinpointOrderLock;
extern LWLockPadded *PinpointChannelMapLocks;	/* one for each partition */
extern LWLock *PinpointWaitersLock;

extern void pinpoint_locks_request(void);
extern void pinpoint_locks_init(void);
extern bool pinpoint_lock_has_waiters(LWLock *lock);

/*
 * The rank of a lock in the order above.  A partition lock of the channel map
 * has the rank of all of them: no process holds two.
 */
typedef enum PinpointLockRank
{
	PINPOINT_RANK_NONE,			/* no lock of pg_pinpoint */
	PINPOINT_RANK_STORAGE,
	PINPOINT_RANK_REASSIGNMENT,
	PINPOINT_RANK_ORDER,
	PINPOINT_RANK_CHANNEL_MAP,
	PINPOINT_RANK_WAITERS
} PinpointLockRank;

/*
 * Acquire one of the locks above.  In a build with assertions, the order in
 * which the locks are taken is checked, and pinpoint_lock_highest_rank()
 * returns the rank of the lock that this process took last of those that it
 * holds.
 *
 * Result: that of LWLockAcquire(): true if the lock was free.
 */
#ifdef USE_ASSERT_CHECKING
extern bool pinpoint_lock_acquire(LWLock *lock, LWLockMode mode);
extern PinpointLockRank pinpoint_lock_highest_rank(void);
#else
static inline bool
pinpoint_lock_acquire(LWLock *lock, LWLockMode mode)
{
	return LWLockAcquire(lock, mode);
}
#endif

/*
 * PinpointOrderLock in exclusive mode, in the two steps of each transaction
 * that notifies: its announcement, and its publication (see publication.c).
 * With -DPINPOINT_TIME_ORDER_LOCK, the time for which it is held there is
 * measured; see locks.c.
 */
#ifdef PINPOINT_TIME_ORDER_LOCK
extern void pinpoint_lock_acquire_order(const char *step);
extern void pinpoint_lock_release_order(void);
#else
static inline void
pinpoint_lock_acquire_order(const char *step)
{
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
}

static inline void
pinpoint_lock_release_order(void)
{
	LWLockRelease(PinpointOrderLock);
}
#endif

#endif							/* PINPOINT_LOCKS_H */
