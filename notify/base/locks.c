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

#include "base/locks.h"

#define STORAGE_TRANCHE		"PinpointStorage"
#define REASSIGNMENT_TRANCHE	"PinpointReassignment"
#define ORDER_TRANCHE		"PinpointOrder"
#define CHANNEL_MAP_TRANCHE	"PinpointChannelMap"

LWLock	   *PinpointStorageLock = NULL;
LWLock	   *PinpointReassignmentLock = NULL;
LWLock	   *PinpointOrderLock = NULL;
LWLockPadded *PinpointChannelMapLocks = NULL;

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
}

/*
 * Shared memory is there only if the library was preloaded.
 *
 * Errors: ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, if it was not.
 */
void
pinpoint_check_preloaded(void)
{
	if (PinpointOrderLock == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_pinpoint must be loaded via \"shared_preload_libraries\""),
				 errhint("Add pg_pinpoint to \"shared_preload_libraries\" in postgresql.conf and restart the server.")));
}
