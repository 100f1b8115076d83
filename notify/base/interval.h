/*-------------------------------------------------------------------------
 *
 * interval.h
 *		Has the time for something that is repeated come?
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_INTERVAL_H
#define PINPOINT_INTERVAL_H

#include "utils/timestamp.h"

/*
 * Has an interval, in milliseconds, passed between two times?  Also true if the
 * clock was set back since the first one: nobody waits for it.
 */
static inline bool
pinpoint_interval_has_passed(TimestampTz since, TimestampTz now, int interval)
{
	return since > now || TimestampDifferenceExceeds(since, now, interval);
}

#endif							/* PINPOINT_INTERVAL_H */
