/*-------------------------------------------------------------------------
 *
 * structures.c
 *		A function that checks the structures in shared memory, for tests.
 *
 * It exists only in a build with assertions, and is not part of the extension.
 * A test creates it:
 *
 *	CREATE FUNCTION check_structures(quiet boolean) RETURNS void STRICT
 *		AS '$libdir/pg_pinpoint', 'pinpoint_check_structures' LANGUAGE C
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef USE_ASSERT_CHECKING
#include "fmgr.h"
#include "miscadmin.h"

#include "base/check.h"
#include "base/preload.h"
#include "commit/commit_order.h"
#include "live/watched_tables.h"
#include "positions/waiters.h"
#include "queue/message_log.h"
#include "sql/pending.h"
#include "wakeup/channel_map.h"
#include "wakeup/slots.h"

PG_FUNCTION_INFO_V1(pinpoint_check_structures);

/*
 * Check all structures.  A check that fails stops the server.
 *
 * Argument: true if no other session executes LISTEN or UNLISTEN, or ends,
 * meanwhile.  Then the memory of the channel map must add up, too.
 *
 * Errors: ERRCODE_INSUFFICIENT_PRIVILEGE, because all other sessions wait.
 */
Datum
pinpoint_check_structures(PG_FUNCTION_ARGS)
{
	bool		quiet = PG_GETARG_BOOL(0);

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to check the structures of pg_pinpoint")));
	pinpoint_preload_check();
	AssertNoLockHeld();

	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_message_log_check();
	pinpoint_slots_check(true);
	pinpoint_commit_order_check();
	LWLockRelease(PinpointOrderLock);

	for (int partition = 0; partition < PINPOINT_PARTITIONS; partition++)
		pinpoint_channel_map_check(partition);
	if (quiet)
		pinpoint_channel_map_check_memory();
	pinpoint_waiters_check();

	/* Those of this session. */
	pinpoint_pending_check();
	pinpoint_watched_tables_check();
	PG_RETURN_VOID();
}
#endif
