/*-------------------------------------------------------------------------
 *
 * locks.c
 *		The locks of pg_pinpoint; locks.h lists what they protect.
 *
 * pg_stat_activity shows their names as wait_event.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/proclist.h"

#ifdef PINPOINT_TIME_ORDER_LOCK
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/ipc.h"
#endif

#include "base/locks.h"

#define STORAGE_TRANCHE		"PinpointStorage"
#define REASSIGNMENT_TRANCHE	"PinpointReassignment"
#define ORDER_TRANCHE		"PinpointOrder"
#define CHANNEL_MAP_TRANCHE	"PinpointChannelMap"
#define WAITERS_TRANCHE		"PinpointWaiters"

LWLock	   *PinpointStorageLock = NULL;
LWLock	   *PinpointReassignmentLock = NULL;
LWLock	   *PinpointOrderLock = NULL;
LWLockPadded *PinpointChannelMapLocks = NULL;
LWLock	   *PinpointWaitersLock = NULL;

/*
 * When the server starts: ask for the locks.
 */
void
pinpoint_locks_request(void)
{
	RequestNamedLWLockTranche(STORAGE_TRANCHE, 1);
	RequestNamedLWLockTranche(REASSIGNMENT_TRANCHE, 1);
	RequestNamedLWLockTranche(ORDER_TRANCHE, 1);
	RequestNamedLWLockTranche(CHANNEL_MAP_TRANCHE, PINPOINT_PARTITIONS);
	RequestNamedLWLockTranche(WAITERS_TRANCHE, 1);
}

/*
 * When shared memory is there: find them.
 */
void
pinpoint_locks_init(void)
{
	PinpointStorageLock = &GetNamedLWLockTranche(STORAGE_TRANCHE)->lock;
	PinpointReassignmentLock =
		&GetNamedLWLockTranche(REASSIGNMENT_TRANCHE)->lock;
	PinpointOrderLock = &GetNamedLWLockTranche(ORDER_TRANCHE)->lock;
	PinpointChannelMapLocks = GetNamedLWLockTranche(CHANNEL_MAP_TRANCHE);
	PinpointWaitersLock = &GetNamedLWLockTranche(WAITERS_TRANCHE)->lock;
}

/*
 * Does a process wait for this lock?  This reads a field of the lock
 * without the lock of its wait list, so the result may be outdated.
 */
bool
pinpoint_lock_has_waiters(LWLock *lock)
{
	return !proclist_is_empty(&lock->waiters);
}

#ifdef USE_ASSERT_CHECKING
static PinpointLockRank
rank_of(LWLock *lock)
{
	if (lock == PinpointStorageLock)
		return PINPOINT_RANK_STORAGE;
	if (lock == PinpointReassignmentLock)
		return PINPOINT_RANK_REASSIGNMENT;
	if (lock == PinpointOrderLock)
		return PINPOINT_RANK_ORDER;
	if (lock == PinpointWaitersLock)
		return PINPOINT_RANK_WAITERS;
	if (lock >= &PinpointChannelMapLocks[0].lock &&
		lock <= &PinpointChannelMapLocks[PINPOINT_PARTITIONS - 1].lock)
		return PINPOINT_RANK_CHANNEL_MAP;
	return PINPOINT_RANK_NONE;
}

static bool
holds_partition(void)
{
	for (int i = 0; i < PINPOINT_PARTITIONS; i++)
	{
		if (LWLockHeldByMe(&PinpointChannelMapLocks[i].lock))
			return true;
	}
	return false;
}

/*
 * Result: PINPOINT_RANK_NONE, too, if the library was not preloaded.
 */
PinpointLockRank
pinpoint_lock_highest_rank(void)
{
	if (PinpointOrderLock == NULL)
		return PINPOINT_RANK_NONE;
	if (LWLockHeldByMe(PinpointWaitersLock))
		return PINPOINT_RANK_WAITERS;
	if (holds_partition())
		return PINPOINT_RANK_CHANNEL_MAP;
	if (LWLockHeldByMe(PinpointOrderLock))
		return PINPOINT_RANK_ORDER;
	if (LWLockHeldByMe(PinpointReassignmentLock))
		return PINPOINT_RANK_REASSIGNMENT;
	if (LWLockHeldByMe(PinpointStorageLock))
		return PINPOINT_RANK_STORAGE;
	return PINPOINT_RANK_NONE;
}

bool
pinpoint_lock_acquire(LWLock *lock, LWLockMode mode)
{
	Assert(rank_of(lock) != PINPOINT_RANK_NONE);
	Assert(rank_of(lock) > pinpoint_lock_highest_rank());
	return LWLockAcquire(lock, mode);
}
#endif

#ifdef PINPOINT_TIME_ORDER_LOCK
/*
 * For how long this session held PinpointOrderLock.  When the session ends, it
 * writes a line "announce NANOSECONDS" or "publish NANOSECONDS" for each hold,
 * in their order, to the file pinpoint_order_lock.PID in the data directory.
 * bench/scaling/order_lock.py reads these files.
 *
 * Part of a hold is after commit, where nothing may fail: the memory is
 * reserved when the library is loaded.  When it is full, no more is recorded.
 */
#define MAX_HOLDS	(1 << 18)

static struct
{
	const char *step;
	double		seconds;
}			holds[MAX_HOLDS];
static int	nholds = 0;

/* The hold that has begun; NULL if none. */
static const char *current_step = NULL;
static instr_time held_since;

static void
write_holds(int code, Datum arg)
{
	char		path[MAXPGPATH];
	FILE	   *file;

	snprintf(path, sizeof(path), "pinpoint_order_lock.%d", MyProcPid);
	file = fopen(path, "w");
	if (file == NULL)
		return;
	for (int i = 0; i < nholds; i++)
		fprintf(file, "%s %.0f\n", holds[i].step, holds[i].seconds * 1e9);
	fclose(file);
}

/*
 * step: "announce", which comes first in a session, or "publish".
 */
void
pinpoint_lock_acquire_order(const char *step)
{
	static bool registered = false;

	if (!registered)
		on_proc_exit(write_holds, 0);
	registered = true;

	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	current_step = step;
	INSTR_TIME_SET_CURRENT(held_since);
}

void
pinpoint_lock_release_order(void)
{
	const char *step = current_step;
	instr_time	held;

	INSTR_TIME_SET_CURRENT(held);
	current_step = NULL;
	LWLockRelease(PinpointOrderLock);

	if (nholds == MAX_HOLDS)
		return;
	INSTR_TIME_SUBTRACT(held, held_since);
	holds[nholds].step = step;
	holds[nholds].seconds = INSTR_TIME_GET_DOUBLE(held);
	nholds++;
}
#endif
