/*-------------------------------------------------------------------------
 *
 * pacing.c
 *		When a listening session delivers: pinpoint.latency_target, and the
 *		pause of pinpoint.fold.
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
 * Pause.  Many listeners that fold leave too little processor time to senders
 * if each of them delivers a few transactions at a time.  So with
 * pinpoint.fold, and without pinpoint.latency_target, a session pauses after a
 * delivery that shows load: more was published for it while it delivered, or it
 * delivered MANY_TRANSACTIONS.  The pause is a delay or a rest, as above: no
 * sender signals the session, and a publisher only reads or changes the state
 * of its slot.  MAX_RESTS does not apply, because the pause is longer if there
 * are more sessions.
 *
 * The pause is PAUSE_FACTOR times as long as the delivery took, for each
 * session under load, but at most MAX_PAUSE.  Thus the deliveries to all of
 * these sessions together take about half of a processor, and a single session
 * under load pauses for less than a millisecond.  (How late a timeout is would
 * not show that processors are busy: the kernel prefers processes that have
 * slept.)
 *
 * - At a low rate, there is no pause: a delivery contains few transactions, and
 *	 nothing is published meanwhile.  A pause after which the session finds
 *	 little to read is the last one.
 * - A notification arrives at most MAX_PAUSE later than without the pause.
 * - A statement of the client ends the pause, and notifications are delivered
 *	 at its end, as always.  The session is idle meanwhile, in no transaction,
 *	 and waits for its client as usual: it processes all interrupts at once.
 * - If the timeout is lost, senders signal a session that still rests a second
 *	 after the end of its pause, and remind one that is still SIGNALLED after
 *	 one to two seconds (wakeup.c).
 * - A session that pauses keeps what was published meanwhile.  There is no
 *	 pause after a delivery that has read a large part of what a listener may
 *	 keep.
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
#include "queue/message_log.h"
#include "wakeup/slots.h"

/*
 * A session rests at most this many times in a row.
 */
#define MAX_RESTS			16

/*
 * A delivery of so many transactions shows load.  After the longest pause, it
 * takes 160 transactions per second to reach it again.
 */
#define MANY_TRANSACTIONS	16

/* The length of a pause; see above.  MAX_PAUSE is in microseconds. */
#define PAUSE_FACTOR		2
#define MAX_PAUSE			(100 * 1000)

/*
 * There is no pause after a delivery that has read more than this part of what
 * a listener may keep, since more can be published during the pause.
 */
#define MAX_READ_DIVISOR	16

/* Time of the last delivery with pinpoint.latency_target; 0 if none. */
static TimestampTz last_delivery = 0;

/* End of the last delivery, and the pause after it, in us; 0 if none. */
static TimestampTz last_end = 0;
static int64 load_pause = 0;

/* Time when the current delivery was due. */
static TimestampTz due_from = 0;

/* Timeout at the end of a delay or a rest; MAX_TIMEOUTS if not registered. */
static TimeoutId due_timeout = MAX_TIMEOUTS;

/*
 * How many times this session may still rest.  0 if no delivery was delayed,
 * or if a rest has ended without a notification since then.
 */
static int	rests_left = 0;

static TimestampTz last_counted(void);
static int64 interval(void);
static int64 choose_pause(const PinpointDelivered *delivered, bool more);
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
	{
		rests_left = 0;
		load_pause = 0;
		pinpoint_slot_set_under_load(false);
	}
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
	if (interval() <= 0 || !pq_is_reading_msg())
		return false;

	/* If the clock was set back, do not wait for it. */
	now = GetCurrentTimestamp();
	if (now >= next_due() || now < last_counted())
		return false;

	set_due();
	if (pinpoint_latency_target > 0)
		rests_left = MAX_RESTS;
	return true;
}

/*
 * This session begins to read its batches.  After a delay or a rest, it could
 * have begun earlier, unless it executed a command of its client.
 */
void
pinpoint_pacing_begin_reading(TimestampTz now)
{
	due_from = now;
	if (interval() > 0 && pq_is_reading_msg() &&
		last_counted() <= now && next_due() < now)
		due_from = next_due();
}

/*
 * This session has read its batches: end to read, and begin to rest if the next
 * delivery will probably be delayed.
 *
 * Returns true if there are more unread batches, which the session must read
 * now; see pinpoint_slot_end_reading().
 */
bool
pinpoint_pacing_end_reading(const PinpointDelivered *delivered)
{
	bool		more;
	bool		rest;

	AssertNoLockHeld();
	Assert(rests_left >= 0 && rests_left <= MAX_RESTS);

	if (pinpoint_latency_target > 0 || pinpoint_fold)
		last_end = GetCurrentTimestamp();
	if (pinpoint_latency_target > 0)
		last_delivery = last_end;
	load_pause = choose_pause(delivered, false);
	rest = pinpoint_latency_target > 0 ? rests_left > 0 : load_pause > 0;
	more = pinpoint_slot_end_reading(delivered->notifications, last_end,
									 rest ? next_due() : 0);
	if (more)
		load_pause = choose_pause(delivered, true);
	pinpoint_slot_set_under_load(load_pause > 0);
	if (more)
		return !pinpoint_pacing_delays();

	if (rest)
	{
		set_due();
		if (rests_left > 0)
			rests_left--;
	}
	return false;
}

/*
 * Returns the time from which the interval is counted.  A delivery without
 * pinpoint.latency_target does not count for the first one with it.
 */
static TimestampTz
last_counted(void)
{
	return pinpoint_latency_target > 0 ? last_delivery : last_end;
}

/*
 * Returns the minimum time between the last delivery and the next one, in
 * microseconds.
 */
static int64
interval(void)
{
	if (pinpoint_latency_target > 0)
		return pinpoint_latency_target * INT64CONST(1000);
	return pinpoint_fold ? load_pause : 0;
}

/*
 * Returns the pause after a delivery that has just ended, in microseconds.
 *
 * more: have more batches been published for this session meanwhile?
 */
static int64
choose_pause(const PinpointDelivered *delivered, bool more)
{
	Size		limit;
	int64		took;

	if (!pinpoint_fold || pinpoint_latency_target > 0)
		return 0;
	if (!more && delivered->transactions < MANY_TRANSACTIONS)
		return 0;
	limit = pinpoint_message_log_lag_limit(pinpoint_max_listener_lag);
	if (delivered->bytes > limit / MAX_READ_DIVISOR)
		return 0;

	/* The clock may have been set back. */
	took = last_end - due_from;
	if (took <= 0)
		return 0;
	return Min(Min(took, MAX_PAUSE) * PAUSE_FACTOR *
			   pinpoint_slots_under_load(), MAX_PAUSE);
}

/*
 * Returns the earliest time of the next delivery.
 */
static TimestampTz
next_due(void)
{
	return last_counted() + interval();
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
