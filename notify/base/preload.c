/*-------------------------------------------------------------------------
 *
 * preload.c
 *		The library must be in shared_preload_libraries.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/locks.h"
#include "base/preload.h"

/*
 * Shared memory is there only if the library was preloaded.
 */
bool
pinpoint_preload_is_done(void)
{
	return PinpointOrderLock != NULL;
}

/*
 * Errors: ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, if it was not.
 */
void
pinpoint_preload_check(void)
{
	if (!pinpoint_preload_is_done())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_pinpoint must be loaded via \"shared_preload_libraries\""),
				 errhint("Add pg_pinpoint to \"shared_preload_libraries\" in postgresql.conf and restart the server.")));
}
