/*-------------------------------------------------------------------------
 *
 * pacing.c
 *		When a listening session delivers: pinpoint.latency_target.
 *
 * A delivery that would be too soon after the last one is delayed: a timeout
 * raises the interrupt again when it is due.  The slot stays SIGNALLED
 * meanwhile, so no sender signals this session again.  No process waits for
 * it, and no transaction is open.  PostgreSQL cancels all timeouts when there
 * is an error, and then the interrupt is raised at once; see
 * disconnect_reason.c.  Between a command and its ReadyForQuery, when the
 * client waits, no delivery is delayed.
 *
 * After a delayed delivery, the next one will probably be delayed, too.  Then
 * the session is not signalled for it.  It sets the timeout after the
 * delivery, and is RESTING until then.  Thus a session under constant load
 * wakes up once in each interval, and not twice.  If it finds no notification
 * at the timeout, the load is over.
 *
 * On a busy server with very many listeners, the waker takes longer than the
 * interval to signal all of them.  Sessions that rest would then wake up more
 * often than those that wait for their signal, and leave too little processor
 * time to senders.  So after MAX_RESTS, a session waits for a signal again.
 * It rests again if the signal comes too soon.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/async.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/settings.h"
#include "listener/pacing.h"
#include "wakeup/slots.h"

/*
 * A session rests at most this many times in a row.
 */
#define MAX_RESTS			16

/* Time of the last delivery with pinpoint.latency_target; 0 if none. */
static TimestampTz last_delivery = 0;

/* Timeout at the end of a delay or a rest; MAX_TIMEOUTS if not registered. */
static TimeoutId due_timeout = MAX_TIMEOUTS;

/*
 * How many times this session may still rest.  0 if no delivery was delayed,
 * or if a rest has ended without a notification since then.
 */
static int	rests_left = 0;

static TimestampTz next_due(void);
static void set_due(void);

/*
 * Will a timeout raise the interrupt, at the end of a delay or a rest?
 */
bool
pinpoint_pacing_timeout_is_active(void)
{
	return due_timeout != MAX_TIMEOUTS && get_timeout_active(due_timeout);
}

/*
 * End a rest.  If there is nothing to read, the load is over, too.
 */
void
pinpoint_pacing_stop_resting(void)
{
	AssertNoLockHeld();
	pinpoint_slot_stop_resting();
	if (!pinpoint_slot_pending())
		rests_left = 0;
}

/*
 * Is a delivery to be delayed, because it is too early?  If so, a timeout will
 * cause the next attempt.
 */
bool
pinpoint_pacing_delays(void)
{
	TimestampTz now;

	AssertNoLockHeld();
	if (pinpoint_latency_target <= 0 || !pq_is_reading_msg())
		return false;

	/* If the clock was set back, do not wait for it. */
	now = GetCurrentTimestamp();
	if (now >= next_due() || now < last_delivery)
		return false;

	set_due();
	rests_left = MAX_RESTS;
	return true;
}

/*
 * This session has read its batches: end to read, and begin to rest if the next
 * delivery will probably be delayed.
 *
 * delivered: number of notifications.
 *
 * Returns true if there are more unread batches; see
 * pinpoint_slot_end_reading().
 */
bool
pinpoint_pacing_end_reading(uint64 delivered)
{
	bool		rest = rests_left > 0 && pinpoint_latency_target > 0;

	AssertNoLockHeld();
	Assert(rests_left >= 0 && rests_left <= MAX_RESTS);

	if (pinpoint_latency_target > 0)
		last_delivery = GetCurrentTimestamp();
	if (pinpoint_slot_end_reading(delivered, last_delivery,
								  rest ? next_due() : 0))
		return true;

	if (rest)
	{
		set_due();
		rests_left--;
	}
	return false;
}

/*
 * Returns the earliest time of the next delivery.
 */
static TimestampTz
next_due(void)
{
	return TimestampTzPlusMilliseconds(last_delivery, pinpoint_latency_target);
}

/*
 * Set the timeout to the earliest time of the next delivery.
 */
static void
set_due(void)
{
	if (due_timeout == MAX_TIMEOUTS)
		due_timeout = RegisterTimeout(USER_TIMEOUT, HandleNotifyInterrupt);
	enable_timeout_at(due_timeout, next_due());
}
