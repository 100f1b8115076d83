/*
 * barriers.pml: where a load must follow a store of the same process, on processors that
 * reorder them.
 *
 * Guarantee (docs/reliability.md, "Promises"):
 *
 *	noticed			"Nothing is lost": of two processes that each store a value and then load that
 *					of the other, at least one sees what the other has stored.
 *
 * A store goes to a buffer of its process.  It becomes visible to the other process at any
 * time later, but not after a full barrier.  The load comes after the store in the program,
 * so this buffer is the only way in which it can overtake it.  An atomic read-modify-write
 * and LWLockRelease() count as an acquisition and a release only, so a later load can overtake
 * their store, too: they have no step here.
 *
 * The pairs:
 *
 *	REPLICATE	a commit sets its mark, and reads the flag: steps a and b of
 *				pinpoint_replication_status_begin_commit(); the waker sets the flag, and reads
 *				the mark: steps 1 and 2 of set_flag(); both in standby/replication_status.c
 *	PLACE		a session in pinpoint.wait() enters its list, pinpoint_waiters_enter(), and
 *				reads the place of its channel, pinpoint_positions_changed(); a notifier sets
 *				the place, set_places(), and reads the list, pinpoint_waiters_exist()
 *	PRIMARY		the same, but the session reads whether the primary replicates, at the
 *				beginning of pinpoint_positions_begin_look(); the startup process sets it in
 *				pinpoint_positions_set_replicates()
 *	WAKER		a notifier adds sessions to WAKER_LIST, pinpoint_waiters_take(), and reads the
 *				latch of the waker, pinpoint_waiters_wake(); a waker that ends removes its
 *				latch, and reads the list, pinpoint_waiters_wake_queued()
 *
 * Mutants: see README.md.
 */

#define REPLICATE	0
#define PLACE		1
#define PRIMARY		2
#define WAKER		3

byte pair;						/* chosen at the beginning */
bool chosen = false;

/* What each process has stored: in its buffer, and visible to the other one. */
bool buffered[2] = false;
bool visible[2] = false;
bool seen[2] = false;			/* the process has seen the store of the other one */
byte ended = 0;

inline store(me)		{ buffered[me] = true }
inline full_barrier(me)	{ atomic { !buffered[me] } }
inline load(me)			{ seen[me] = visible[1 - me] }

/* The store of a process leaves its buffer. */
active [2] proctype buffer()
{
end:
	atomic { buffered[_pid] -> visible[_pid] = true; buffered[_pid] = false }
}

/* The commit; the session that waits; the session that waits; the notifier. */
active proctype first()
{
	chosen;
	store(0);
	if
	:: pair == REPLICATE ->
#ifndef NO_BARRIER_BEFORE_FLAG
		full_barrier(0);
#endif
		skip
	:: pair == PLACE ->
		/* those of pinpoint_waiters_enter() and pinpoint_positions_begin_look() */
#ifndef NO_BARRIER_BEFORE_PLACE
		full_barrier(0);
#endif
		skip
	:: pair == PRIMARY ->
		/* that of pinpoint_waiters_enter() */
#ifndef NO_BARRIER_AFTER_ENTERING
		full_barrier(0);
#endif
		skip
	:: pair == WAKER ->
#ifndef NO_BARRIER_BEFORE_LATCH
		full_barrier(0);
#endif
		skip
	fi;
	load(0);
	ended++
}

/* The waker; the notifier; the startup process; the waker that ends. */
active proctype second()
{
	chosen;
	store(1);
	if
	:: pair == REPLICATE ->
#ifndef NO_BARRIER_BEFORE_MARKS
		full_barrier(1);
#endif
		skip
	:: pair == PLACE || pair == PRIMARY ->
#ifndef NO_BARRIER_BEFORE_LIST
		full_barrier(1);
#endif
		skip
	:: pair == WAKER ->
#ifndef NO_BARRIER_BEFORE_QUEUED
		full_barrier(1);
#endif
		skip
	fi;
	load(1);
	ended++
}

active proctype check()
{
	bool noticed;

	atomic {
		if
		:: pair = REPLICATE; printf("replicate\n")
		:: pair = PLACE; printf("place\n")
		:: pair = PRIMARY; printf("primary\n")
		:: pair = WAKER; printf("waker\n")
		fi;
		chosen = true
	}
	atomic {
		ended == 2 ->
		noticed = seen[0] || seen[1];
		assert(noticed)
	}
}
