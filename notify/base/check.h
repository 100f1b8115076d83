/*-------------------------------------------------------------------------
 *
 * check.h
 *		What a function requires of its caller, as assertions.
 *
 * A comment such as "the caller holds PinpointOrderLock" has one of these at
 * the start of the function.  Without assertions, they compile to nothing.
 *
 * While shared memory is initialized, there is one process and it holds no
 * lock.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_CHECK_H
#define PINPOINT_CHECK_H

#include "miscadmin.h"

#include "base/locks.h"

/* The caller holds the lock in any mode; in exclusive mode; not at all. */
#define AssertHeld(lock) \
	Assert(!IsUnderPostmaster || LWLockHeldByMe(lock))
#define AssertHeldExclusive(lock) \
	Assert(!IsUnderPostmaster || LWLockHeldByMeInMode((lock), LW_EXCLUSIVE))
#define AssertNotHeld(lock) \
	Assert(!LWLockHeldByMe(lock))

/* The caller holds no lock of pg_pinpoint; none of this rank or higher. */
#define AssertNoLockHeld() \
	Assert(pinpoint_lock_highest_rank() == PINPOINT_RANK_NONE)
#define AssertLocksBelow(rank) \
	Assert(pinpoint_lock_highest_rank() < (rank))

/* No cancel request and no termination can interrupt the caller. */
#define AssertInterruptsHeld() \
	Assert(InterruptHoldoffCount > 0 || CritSectionCount > 0)

/*
 * Between these two, nothing may fail and nothing may be allocated, for
 * instance because the commit record is written.  With assertions, this is a
 * critical section: an error ends the server, and an allocation fails an
 * assertion.  Without, they do nothing.
 */
#ifdef USE_ASSERT_CHECKING
#define PINPOINT_BEGIN_CANNOT_FAIL()	START_CRIT_SECTION()
#define PINPOINT_END_CANNOT_FAIL()		END_CRIT_SECTION()
#else
#define PINPOINT_BEGIN_CANNOT_FAIL()	((void) 0)
#define PINPOINT_END_CANNOT_FAIL()		((void) 0)
#endif

/*
 * Only the startup process calls this; in single-user mode, the only process.
 * Only the waker does.
 */
#define AssertStartupProcess() \
	Assert(AmStartupProcess() || !IsUnderPostmaster)
#define AssertWaker() \
	Assert(MyBackendType == B_BG_WORKER)

#endif							/* PINPOINT_CHECK_H */
