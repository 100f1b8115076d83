/*-------------------------------------------------------------------------
 *
 * pacing.c
 *		When a listening session delivers: pinpoint.latency_target, and the
 *		pause of pinpoint.fold.
 *
 * A delivery that would be too soon after the last one is delayed: a timeout
 * raises the interrupt again when it is due.  The slot stays SIGNALLED
 * meanwhile, so no sender signals this session again, except for reminders if
 * the delay is longer than a second; it delays the delivery again then.  No
 * process waits for it, and no transaction is open.  PostgreSQL cancels all
 * timeouts when there is an error, and then the interrupt is raised at once;
 * see disconnect_reason.c.  Between a command and its ReadyForQuery, when the
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
 * if each of them delivers a few transactions at a time.  No session can see
 * this by itself: its own deliveries are few and short.  So the sessions with
 * pinpoint.fold, and without pinpoint.latency_target, add the processor time of
 * their deliveries to one counter.  At the end of a delivery, a session reads
 * the time that all of them have spent since the end of its last one, and the
 * time that has passed.  If they have spent more than 1/SHARE_DIVISOR of all
 * processors, it pauses so long that they will have spent just that, if all of
 * them deliver once in that time; but at most MAX_PAUSE.  The pause is a delay
 * or a rest, as above: no sender signals the session, and a publisher only
 * reads or changes the state of its slot.  MAX_RESTS does not apply, because
 * the pause is longer if there are more sessions.
 *
 * - At a low rate, there is no pause: little is spent, or the last delivery
 *	 was more than MAX_PAUSE ago, and others spend the time.  A pause after
 *	 which the session finds nothing to read is the last one.
 * - The pause of a single session under load is a multiple of its delivery:
 *	 less than a millisecond.
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

#include <time.h>
#include <unistd.h>

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
 * The part of all processors that the deliveries with pinpoint.fold may use
 * together, and the longest pause, in microseconds; see above.
 */
#define SHARE_DIVISOR		8
#define MAX_PAUSE			(250 * 1000)

/*
 * There is no pause after a delivery that has read more than this part of what
 * a listener may keep, since more can be published during the pause.
 */
#define MAX_READ_DIVISOR	16

/* Time of the last delivery with pinpoint.latency_target; 0 if none. */
static TimestampTz last_delivery = 0;

/*
 * End of the last delivery with pinpoint.fold alone; 0 if none.  The processor
 * time of this session, and the counter of all sessions, at that time, and the
 * pause after it; all in microseconds.
 */
static TimestampTz last_end = 0;
static int64 used_before = 0;
static uint64 spent_before = 0;
static int64 load_pause = 0;

/* Timeout at the end of a delay or a rest; MAX_TIMEOUTS if not registered. */
static TimeoutId due_timeout = MAX_TIMEOUTS;

/*
 * How many times this session may still rest.  0 if no delivery was delayed,
 * or if a rest has ended without a notification since then.
 */
static int	rests_left = 0;

static TimestampTz last_counted(void);
static int64 interval(void);
static int64 choose_pause(const PinpointDelivered *delivered,
						  TimestampTz now);
static int64 processor_time(void);
static int64 allowed_time(uint64 spent);
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
 * This session begins to read its batches.
 *
 * after_statement: has it executed a statement since its last delivery?  Then
 * the processor time from here on is that of the delivery.  Otherwise, all of
 * it since the last delivery is: the wakeup and the transaction cost more than
 * a short delivery itself.
 */
void
pinpoint_pacing_begin_reading(bool after_statement)
{
	if (pinpoint_fold && (after_statement || used_before == 0))
		used_before = processor_time();
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
	TimestampTz now = 0;
	bool		rest = false;

	AssertNoLockHeld();
	Assert(rests_left >= 0 && rests_left <= MAX_RESTS);

	if (pinpoint_latency_target > 0 || pinpoint_fold)
		now = GetCurrentTimestamp();
	if (pinpoint_latency_target > 0)
	{
		last_delivery = now;
		load_pause = 0;
		rest = rests_left > 0;
	}
	else if (pinpoint_fold)
	{
		load_pause = choose_pause(delivered, now);
		rest = load_pause > 0;
	}

	if (pinpoint_slot_end_reading(delivered->notifications, now,
								  rest ? next_due() : 0))
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
 * Count a delivery that ends now.  Returns the pause after it, in microseconds.
 */
static int64
choose_pause(const PinpointDelivered *delivered, TimestampTz now)
{
	int64		used = processor_time();
	int64		cost = Max(used - used_before, 0);
	uint64		spent = pinpoint_slots_add_fold_time(cost);
	int64		needed = allowed_time(spent - spent_before);
	int64		passed = now - last_end;
	bool		paused = load_pause > 0;

	used_before = used;
	spent_before = spent;
	last_end = now;

	if (delivered->bytes >
		pinpoint_message_log_lag_limit(pinpoint_max_listener_lag) /
		MAX_READ_DIVISOR)
		return 0;

	/*
	 * Without the first condition, a session that seldom delivers would pause
	 * because of others.  Without the division, a session would pause after
	 * every second delivery: after a pause, about as much time has passed as
	 * was needed.
	 */
	if (!paused && passed > MAX_PAUSE)
		return 0;
	if (needed < (paused ? passed / 2 : passed))
		return 0;
	return Min(needed, MAX_PAUSE);
}

/*
 * Returns the processor time of this session, in microseconds.
 */
static int64
processor_time(void)
{
	struct timespec used;

	if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) != 0)
		return 0;
	return used.tv_sec * INT64CONST(1000000) + used.tv_nsec / 1000;
}

/*
 * Returns the time in which the sessions may spend so much processor time, both
 * in microseconds.
 */
static int64
allowed_time(uint64 spent)
{
	static long processors = 0;

	if (processors == 0)
		processors = Max(sysconf(_SC_NPROCESSORS_ONLN), 1);
	return Min(spent, (uint64) MAX_PAUSE * processors) * SHARE_DIVISOR /
		processors;
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
