/*-------------------------------------------------------------------------
 *
 * waker_reserve.c
 *		Does the work of a waker that makes no progress.
 *
 * Processes leave work to the waker: batches to publish, sessions to signal,
 * and sessions in pinpoint.wait() to wake.  The waker may not run; see
 * waker_progress.c.  Then each session does a part of the work before it
 * commits, in any transaction.  The part is bounded: one hold of
 * PinpointOrderLock to publish batches, twice PINPOINT_SIGNALS_PER_ROUND
 * signals, and a round of pinpoint_waiters_wake_queued().  A session that
 * cannot look again, because it has never notified, sends all signals for the
 * batches that it has published; so does each, if there is no waker.
 *
 * Possibly no session commits.  So a session that has left work looks again
 * after PINPOINT_STALL_INTERVAL: a timeout makes PostgreSQL run a small
 * transaction, as soon as the session is idle.  PROCSIG_CATCHUP_INTERRUPT does
 * the same, and unlike PROCSIG_NOTIFY_INTERRUPT it does so in a session that
 * does not listen.  If the waker makes no progress, the session does a part,
 * and the next one after CONTINUE_INTERVAL, until nothing is left.  In
 * between, it executes the commands of its client.  The same holds for another
 * session that has done a part, if it has ever notified.
 *
 * A session that ends while the waker has its work waits until the waker has
 * completed a round.  If the waker makes no progress meanwhile, the session
 * does all the work.  PostgreSQL processes no barriers at exit (see
 * ProcSignalBarrier), so a process that waits for all sessions waits for this
 * one, too.
 *
 * So work that is left to a waker that does not run is begun 100 to 200 ms
 * later, if the session that has left it is idle or has ended.  If it stays in
 * a transaction, any other session does a part when it commits.  If no session
 * of the server commits, the work waits for the end of that transaction.  Two
 * cases have no timeout, and depend on commits of others: the startup process
 * of a standby, and background workers that notify.  The waker can also stop
 * while it has a lock.  Nobody can release the lock for it, and all who need
 * the lock wait.  The work under a lock is bounded.
 *
 * When the waker goes on, it and the sessions can do the work at the same
 * time.  All of it is taken from lists under a lock, so it is done once, and
 * in order.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/sinval.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/compat.h"
#include "commit/commit_order.h"
#include "commit/waker_reserve.h"
#include "positions/waiters.h"
#include "wakeup/publication.h"
#include "wakeup/reassign.h"
#include "wakeup/waker_progress.h"

/* Milliseconds between two parts that an idle session does. */
#define CONTINUE_INTERVAL	1

/*
 * A session that ends looks at the waker at these intervals, in milliseconds,
 * and not more often than this, whatever the clock does.
 */
#define EXIT_INTERVAL		1
#define MAX_EXIT_LOOKS		(3 * PINPOINT_STALL_INTERVAL)

/*
 * Microseconds after which a sender begins no further portion of
 * reassignments.
 */
#define MAX_REASSIGN_TIME	10000

/*
 * When the number of rounds has increased by this, the waker has begun a round
 * since and completed it: it increments the number at the end of a round before
 * it sleeps, and at the beginning of the next one.
 */
#define MOVES_OF_A_ROUND	3

/* MAX_TIMEOUTS if not registered. */
static TimeoutId look_timeout = MAX_TIMEOUTS;

/* Has this session done a part, and is there more? */
static bool more_to_do = false;

static void look(void);
static bool do_part(void);
static void wait_for_waker(void);

/*
 * Called before the first commit of this session that may leave work.
 *
 * Errors: too many libraries have registered timeouts.
 */
void
pinpoint_waker_reserve_register_timeout(void)
{
	if (MyBackendType == B_BACKEND)
		look_timeout = RegisterTimeout(USER_TIMEOUT, look);
}

/*
 * The timeout: make PostgreSQL run a small transaction.  This is a signal
 * handler.
 */
static void
look(void)
{
	if (pinpoint_waker_progress_has_work())
		HandleCatchupInterrupt();
}

/*
 * Before each commit: do a part of the work of the waker, if it makes no
 * progress.
 */
void
pinpoint_waker_reserve_at_pre_commit(void)
{
	AssertNoLockHeld();
	if (unlikely(pinpoint_waker_progress_has_work()))
		more_to_do = pinpoint_waker_progress_is_stalled() && do_part();
}

/*
 * At the end of each transaction: set the timeout, if the waker has work that
 * this session has left, or of which it has done a part.  Does not fail.
 *
 * An error cancels all timeouts, before the abort comes here.
 */
void
pinpoint_waker_reserve_watch(void)
{
	if (likely(!more_to_do && !pinpoint_waker_progress_has_my_work()))
		return;
	if (look_timeout == MAX_TIMEOUTS || !pinpoint_waker_progress_has_work())
		return;
	if (more_to_do)
		enable_timeout_after(look_timeout, CONTINUE_INTERVAL);
	else if (!get_timeout_active(look_timeout))
		enable_timeout_after(look_timeout, PINPOINT_STALL_INTERVAL);
}

/*
 * A part of the work of the waker.  Returns whether there is more.  Does not
 * fail.
 */
static bool
do_part(void)
{
	uint64		wanted = pinpoint_waker_progress_wanted();
	bool		more;

	/* Without a timeout, it may be unable to send the rest of the signals. */
	more = pinpoint_commit_order_take_over(look_timeout != MAX_TIMEOUTS);
	more |= pinpoint_publication_signal_listed(true) >= 0;
	more |= pinpoint_waiters_wake_queued();
	if (!more)
		pinpoint_waker_progress_finish(wanted);
	return more;
}

/*
 * Before the commit of a sender, once a second: tell the waker to look for
 * sessions that stay in a transaction.  If it makes no progress, or there is
 * none, do this here, in portions.  Does not fail.
 */
void
pinpoint_waker_reserve_reassign(void)
{
	struct Latch *waker = pinpoint_waker_progress_latch();
	TimestampTz began = GetCurrentTimestamp();
	TimestampTz now = began;

	if (waker != NULL)
	{
		SetLatch(waker);
		return;
	}

	/* Also ends if the clock is set back. */
	while (now >= began && now - began < MAX_REASSIGN_TIME &&
		   pinpoint_reassign_stalled())
		now = GetCurrentTimestamp();
}

/*
 * This session ends.  If the waker has work of this session, and does not
 * complete a round, do all of it.  Does not fail.
 */
void
pinpoint_waker_reserve_at_exit(void)
{
	AssertNoLockHeld();
	if (!pinpoint_waker_progress_has_my_work())
		return;
	wait_for_waker();
	while (pinpoint_waker_progress_has_my_work() &&
		   pinpoint_waker_progress_is_stalled() &&
		   do_part())
		 /* loop */ ;
}

/*
 * Wait until the waker has completed a round or makes no progress, or all is
 * done.
 */
static void
wait_for_waker(void)
{
	uint64		rounds = pinpoint_waker_progress_rounds();

	for (int i = 0; i < MAX_EXIT_LOOKS; i++)
	{
		if (!pinpoint_waker_progress_has_my_work() ||
			pinpoint_waker_progress_rounds() - rounds >= MOVES_OF_A_ROUND ||
			pinpoint_waker_progress_is_stalled())
			break;
		pg_usleep(EXIT_INTERVAL * 1000L);
	}
}
