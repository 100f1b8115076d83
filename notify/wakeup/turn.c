/*-------------------------------------------------------------------------
 *
 * turn.c
 *		Sessions that end reassign their notifications one after the other.
 *
 * When all clients of a job queue disconnect at once, a hundred sessions would
 * take the processor time of others.  Also, the sessions that wait can leave
 * the channel map first, so that no notification is reassigned to a session
 * that ends, too.  Therefore a session that ends holds
 * PinpointReassignmentLock while it reassigns.
 *
 * Barriers.  The turn of a session can take seconds if the backlog is long.
 * Another process, for instance one that drops a database, waits until each
 * session has processed its barrier (see ProcSignalBarrier) or has ended.
 * PostgreSQL processes no interrupts at exit, and none while a process waits
 * for an LWLock.  So a session that ends processes barriers here, and does not
 * wait in LWLockAcquire().  This is legal: no function of the session
 * continues after this, and the callbacks that follow, for instance the abort
 * of its transaction, open files again that the barrier has closed.
 *
 * The list.  A session that waits is in a list, and sleeps on its latch.  The
 * session that releases the lock sets the latch of the first one.  No wakeup
 * is lost:
 *
 *	waits		enter the list, then try to acquire the lock, then sleep
 *	releases	release the lock, then read the list, then set the latch
 *
 * Both access the list under its spinlock.  If the one that waits is the first
 * to acquire the spinlock, the other one finds it in the list, or another
 * session before it.  Otherwise the spinlock makes the release of the lock
 * visible to it.  A session whose latch was set may find the lock taken by a
 * session that has just come.  It remains in the list, and is woken at the
 * next release.
 *
 * The first session of the list may be stopped, or busy with a barrier.  So
 * each session tries again RESERVE milliseconds after it went to sleep: then
 * the others go on.
 *
 * The session that holds the lock may be stopped, too.  It counts its steps.  A
 * session that has seen no step for MAX_STANDSTILL milliseconds does not wait
 * any longer, and reassigns without the lock.
 *
 * Errors.  Processing a barrier may raise an error.  PostgreSQL turns an error
 * at exit into FATAL, which cannot be caught, releases all LWLocks, and goes
 * on with the next callback.  This is at_exit() of transaction_events.c again,
 * which has registered itself for this.  In this second attempt, the session
 * neither waits for its turn nor processes barriers, so it cannot fail again.
 * It is correct without a turn, as PinpointOrderLock protects each
 * reassignment: UNLISTEN does not wait for a turn, either.  The barrier remains
 * pending until the session has ended, which PostgreSQL accepts in place of
 * processing it.  The second attempt also leaves the list, and wakes the next
 * session.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/procsignal.h"
#include "storage/spin.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/first_number.h"
#include "wakeup/turn.h"

/*
 * Milliseconds after which a session tries again to acquire the lock, although
 * nobody has woken it.
 */
#define RESERVE		1000

/*
 * Milliseconds after which a session does not wait any longer, if the session
 * that holds the lock makes no step.
 */
#define MAX_STANDSTILL	3000

/* A session that waits for its turn.  The index is PINPOINT_MY_SLOT_NUMBER. */
typedef struct WaitingSession
{
	dlist_node	link;
	struct Latch *latch;
} WaitingSession;

typedef struct Turns
{
	pg_atomic_uint64 steps;		/* number of steps of all sessions that have
								 * held the lock; see pinpoint_turn_step() */
	slock_t		mutex;			/* protects all fields below */
	dlist_head	waiting;		/* sessions that wait, in order of arrival */
	WaitingSession sessions[FLEXIBLE_ARRAY_MEMBER]; /* MaxBackends elements */
} Turns;

static Turns *turns = NULL;

/* Has this session waited for its turn?  Is it in the list? */
static bool attempted = false;
static bool listed = false;

/* Does this session process barriers?  Not in the second attempt. */
static bool absorbs = false;

static void wait_for_lock(void);
static void absorb_barrier(void);
static void enter_list(void);
static void leave_list(void);
static void wake_first(void);

Size
pinpoint_turn_shmem_size(void)
{
	return add_size(offsetof(Turns, sessions),
					mul_size(MaxBackends, sizeof(WaitingSession)));
}

/*
 * The postmaster calls this at start and at restart after a crash.
 */
void
pinpoint_turn_shmem_init(void *memory)
{
	turns = memory;
	pg_atomic_init_u64(&turns->steps, PINPOINT_FIRST_NUMBER);
	SpinLockInit(&turns->mutex);
	dlist_init(&turns->waiting);
}

/*
 * At exit: begin to reassign, when it is the turn of this session.  In a
 * second attempt, begin at once.
 *
 * Errors: those of a barrier, in the first attempt; the server has ended.
 */
void
pinpoint_turn_begin(void)
{
	Assert(proc_exit_inprogress);
	AssertNoLockHeld();

	absorbs = !attempted;
	attempted = true;
	if (absorbs)
		wait_for_lock();
}

/*
 * Acquire PinpointReassignmentLock, and process barriers meanwhile.  Returns
 * without the lock if the session that holds it stands still.
 * pg_stat_activity shows the wait as one for this lock.
 */
static void
wait_for_lock(void)
{
	uint32		wait_event = PG_WAIT_LWLOCK | PinpointReassignmentLock->tranche;
	uint64		steps = pg_atomic_read_u64(&turns->steps);
	instr_time	since;

	AssertLocksBelow(PINPOINT_RANK_REASSIGNMENT);
	INSTR_TIME_SET_CURRENT(since);
	enter_list();
	while (!LWLockConditionalAcquire(PinpointReassignmentLock, LW_EXCLUSIVE))
	{
		instr_time	waited;

		absorb_barrier();

		/* The signal for a barrier sets the latch, too. */
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 RESERVE, wait_event);
		ResetLatch(MyLatch);

		INSTR_TIME_SET_CURRENT(waited);
		if (pg_atomic_read_u64(&turns->steps) != steps)
		{
			steps = pg_atomic_read_u64(&turns->steps);
			since = waited;
		}
		INSTR_TIME_SUBTRACT(waited, since);
		if (INSTR_TIME_GET_MILLISEC(waited) >= MAX_STANDSTILL)
			break;
	}
	leave_list();
	pinpoint_turn_step();
}

/*
 * At exit, between pinpoint_turn_begin() and pinpoint_turn_end(): a step, after
 * which others see that this session does not stand still.  Processes a
 * barrier, if there is one.
 *
 * Errors: those of the barrier, in the first attempt.
 */
void
pinpoint_turn_step(void)
{
	Assert(proc_exit_inprogress);
	if (LWLockHeldByMe(PinpointReassignmentLock))
		pg_atomic_fetch_add_u64(&turns->steps, 1);
	absorb_barrier();
}

static void
absorb_barrier(void)
{
	AssertLocksBelow(PINPOINT_RANK_ORDER);
	if (unlikely(ProcSignalBarrierPending) && absorbs)
		ProcessProcSignalBarrier();
}

/*
 * This session has reassigned its notifications, or will not do it.  Does not
 * fail.
 */
void
pinpoint_turn_end(void)
{
	Assert(proc_exit_inprogress);
	if (LWLockHeldByMe(PinpointReassignmentLock))
		LWLockRelease(PinpointReassignmentLock);
	leave_list();
	wake_first();
}

static void
enter_list(void)
{
	WaitingSession *me = &turns->sessions[PINPOINT_MY_SLOT_NUMBER];

	Assert(!listed);
	me->latch = MyLatch;
	SpinLockAcquire(&turns->mutex);
	dlist_push_tail(&turns->waiting, &me->link);
	SpinLockRelease(&turns->mutex);
	listed = true;
}

/*
 * Leave the list, unless this session is not in it.
 */
static void
leave_list(void)
{
	if (!listed)
		return;
	listed = false;
	SpinLockAcquire(&turns->mutex);
	dlist_delete(&turns->sessions[PINPOINT_MY_SLOT_NUMBER].link);
	SpinLockRelease(&turns->mutex);
}

/*
 * Wake the first session of the list.  This process has released the lock.
 */
static void
wake_first(void)
{
	struct Latch *latch = NULL;

	AssertNotHeld(PinpointReassignmentLock);
	SpinLockAcquire(&turns->mutex);
	if (!dlist_is_empty(&turns->waiting))
		latch =
			dlist_head_element(WaitingSession, link, &turns->waiting)->latch;
	SpinLockRelease(&turns->mutex);

	/* Setting the latch of a session that has ended does no harm. */
	if (latch != NULL)
		SetLatch(latch);
}
