/*-------------------------------------------------------------------------
 *
 * waker_progress.c
 *		Has the waker work, and does it make progress?
 *
 * A waker can exist and not run: a debugger has stopped it, its container is
 * throttled, it waits for a disk or for the pipe of the log.  Then other
 * processes do its work; see commit/waker_reserve.c.  They find this in shared
 * memory:
 *
 *	wanted		a process that leaves work to the waker increments it, after
 *				the work is in shared memory.
 *	finished	the value of wanted that was read before a complete round: all
 *				work that was left before that value is done.  The waker has
 *				work while the two differ.
 *	rounds		the waker increments it at the beginning of each round, and
 *				again when it has set finished and will sleep.  A session that
 *				publishes a rest does so, too, at each hold of the lock.
 *	seen_rounds, seen_at
 *				the waker had work at this time, and rounds had this value.
 *
 * A process that leaves work also sets the latch of the waker, so a waker that
 * runs begins a round.  So if the waker has work, and rounds is still
 * seen_rounds after PINPOINT_STALL_INTERVAL, the waker makes no progress: it
 * does not run, or it is in a long step.
 *
 * A waker that sleeps because it has nothing to do begins no round, either.
 * So seen_rounds must not be the last value before it sleeps, unless its latch
 * was set since.  A process that leaves work sets the latch.  One that only
 * looks reads rounds first, and then whether there is work.  If rounds has the
 * last value, there is work only if it was left later, and the latch was set.
 *
 * Why work is never forgotten.  A process that sets finished has read wanted
 * before its round.  An increment is a release, and a barrier follows the
 * read.  So it has found all work that was left before the value that it has
 * read, wherever it is stopped: until it has done this work, finished keeps
 * its old value.  A process that was stopped for long can set finished to an
 * old value.  Then the next round finds nothing to do.
 *
 * An error in the other direction does no harm, either.  The processes that
 * write seen_rounds and seen_at use no lock, and the clock can be set.  If
 * this process takes a waker for stalled that is not, both do a part of the
 * work, under the same locks.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/first_number.h"
#include "base/interval.h"
#include "base/settings.h"
#include "wakeup/waker_list.h"
#include "wakeup/waker_progress.h"

/* Milliseconds between two values of seen_rounds, at least. */
#define SEEN_INTERVAL	10

/* The value of wanted when this process left work for the last time. */
static uint64 mine = 0;

/* No lock. */
typedef struct WakerProgress
{
	pg_atomic_uint64 wanted;
	pg_atomic_uint64 finished;
	pg_atomic_uint64 rounds;
	pg_atomic_uint64 seen_rounds;
	pg_atomic_uint64 seen_at;	/* a TimestampTz */
} WakerProgress;

static WakerProgress *progress = NULL;

static bool has_moved(uint64 rounds);

Size
pinpoint_waker_progress_shmem_size(void)
{
	return sizeof(WakerProgress);
}

void
pinpoint_waker_progress_shmem_init(void *memory)
{
	progress = memory;
	pg_atomic_init_u64(&progress->wanted, PINPOINT_FIRST_NUMBER);
	pg_atomic_init_u64(&progress->finished, PINPOINT_FIRST_NUMBER);
	pg_atomic_init_u64(&progress->rounds, PINPOINT_FIRST_NUMBER);
	pg_atomic_init_u64(&progress->seen_rounds, PINPOINT_FIRST_NUMBER);
	pg_atomic_init_u64(&progress->seen_at, 0);
}

/*
 * This process leaves work to another one.  Called when the work is in shared
 * memory.  Does not fail.
 */
void
pinpoint_waker_progress_want(void)
{
	mine = pg_atomic_add_fetch_u64(&progress->wanted, 1);
}

/*
 * Is any work left to the waker?  Called by every transaction, and by signal
 * handlers.  Needs no lock.
 */
bool
pinpoint_waker_progress_has_work(void)
{
	return pg_atomic_read_u64(&progress->wanted) !=
		pg_atomic_read_u64(&progress->finished);
}

/*
 * The same for the work that this process has left.
 */
bool
pinpoint_waker_progress_has_my_work(void)
{
	return pg_atomic_read_u64(&progress->finished) < mine;
}

/*
 * Does the waker, or the publisher, make progress?  The caller leaves work, and
 * sets the latch of the waker.  Needs no lock.
 */
bool
pinpoint_waker_progress_is_made(void)
{
	return has_moved(pinpoint_waker_progress_rounds());
}

/*
 * Is work left to the waker, or to the publisher, that makes no progress?  The
 * caller only looks.  Needs no lock.
 */
bool
pinpoint_waker_progress_is_stalled(void)
{
	uint64		rounds = pinpoint_waker_progress_rounds();

	/*
	 * Partner: pinpoint_waker_progress_end_round().  Without this, a waker
	 * that has nothing to do and sleeps could count as one that has work.
	 */
	pg_read_barrier();
	return pinpoint_waker_progress_has_work() && !has_moved(rounds);
}

/*
 * Has the waker moved on to this value of rounds within the interval?
 *
 * While the waker is busy, many processes call this.  Most of them write
 * nothing, so a waker that stops is noticed up to SEEN_INTERVAL later.
 */
static bool
has_moved(uint64 rounds)
{
	bool		is_seen = pg_atomic_read_u64(&progress->seen_rounds) == rounds;
	TimestampTz seen_at;
	TimestampTz now;

	/* Partner: the write barrier.  So seen_at is not older than seen_rounds. */
	pg_read_barrier();
	seen_at = pg_atomic_read_u64(&progress->seen_at);
	now = GetCurrentTimestamp();

	if (PINPOINT_FAULT(NO_RESERVE))
		return true;

	/* Do not wait if the clock was set back. */
	if (is_seen && now >= seen_at)
		return !TimestampDifferenceExceeds(seen_at, now,
										   PINPOINT_STALL_INTERVAL);
	if (pinpoint_interval_has_passed(seen_at, now, SEEN_INTERVAL))
	{
		pg_atomic_write_u64(&progress->seen_at, now);
		pg_write_barrier();
		pg_atomic_write_u64(&progress->seen_rounds, rounds);
	}
	return true;
}

/*
 * Leave work to the waker: returns its latch, which the caller sets.  Returns
 * NULL if there is no waker, or if it makes no progress: then the caller does
 * the work.  The work is in shared memory.  Needs no lock.  Does not fail.
 *
 * If the waker has ended, setting its latch does no harm.
 */
struct Latch *
pinpoint_waker_progress_latch(void)
{
	struct Latch *waker;

	waker = pinpoint_waker_list_get_latch();
	if (waker == NULL || !pinpoint_waker_progress_is_made())
		return NULL;
	pinpoint_waker_progress_want();
	return waker;
}

uint64
pinpoint_waker_progress_rounds(void)
{
	return pg_atomic_read_u64(&progress->rounds);
}

/*
 * The waker begins a round, or the publisher a hold of PinpointOrderLock.
 * Returns the argument for pinpoint_waker_progress_finish().
 */
uint64
pinpoint_waker_progress_begin_round(void)
{
	(void) pg_atomic_fetch_add_u64(&progress->rounds, 1);
	return pinpoint_waker_progress_wanted();
}

/*
 * The waker has done all work that was left before its round, and will sleep.
 */
void
pinpoint_waker_progress_end_round(uint64 wanted)
{
	pinpoint_waker_progress_finish(wanted);

	/*
	 * Partner: pinpoint_waker_progress_is_stalled().  This is a release.
	 */
	(void) pg_atomic_fetch_add_u64(&progress->rounds, 1);
}

/*
 * The argument for pinpoint_waker_progress_finish(), for a process that will
 * now look for all kinds of work.
 */
uint64
pinpoint_waker_progress_wanted(void)
{
	uint64		wanted = pg_atomic_read_u64(&progress->wanted);

	/*
	 * Partner: the increment in pinpoint_waker_progress_want().  Without
	 * this, the caller could read the lists without the work that was left
	 * before it, and that work would count as finished.
	 */
	pg_memory_barrier();
	return wanted;
}

/*
 * All work that was left until wanted had this value is done.
 */
void
pinpoint_waker_progress_finish(uint64 wanted)
{
	Assert(wanted <= pg_atomic_read_u64(&progress->wanted));
	if (pg_atomic_read_u64(&progress->finished) != wanted)
		pg_atomic_write_u64(&progress->finished, wanted);
}
