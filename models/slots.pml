/*
 * slots.pml: slots of sessions, with signals, timeouts, sharing, exit and reassignment.
 *
 * Guarantees (docs/reliability.md, "Promises"):
 *
 *	plain_once		"Nothing is lost, repeated or invented": a session that does not
 *					share receives each notification once.
 *	group_once		"With pinpoint.share_limit 1, exactly one session of each group
 *					receives it."  Of the exceptions, this model has one: a session
 *					ends during a delivery.
 *	none_lost		the same two, when no process has anything to do.
 *	none_waits		"No session waits for ever for its signal."
 *	kept			a batch that is read is still in the log.
 *
 * Session 0 listens to the channel and does not share it.  Sessions 1 and 2 share it.
 * A sender publishes NB batches.  EVENTS selects what else happens, each at most once
 * for a session: session RESTS may rest or delay a delivery, session 1 may end, and
 * session STAYS may stay in a transaction.  A step is one hold of PinpointOrderLock, or
 * an access to a variable without it.  A lost signal, and the reminder that follows it, are modelled
 * only with REMINDERS.  UNLISTEN, eviction and groups of several roles are not modelled.
 *
 * The functions are at the steps.  Mutants: see README.md.
 */

#define LATENCY			1		/* pinpoint.latency_target; errors cancel the timeout */
#define TRANSACTION		2		/* a session begins a transaction, and may stay in it */
#define EXIT			4		/* session 1 ends */
#define WAKER			8		/* senders leave signals to the waker; it may end */
#define REMINDERS		16		/* one signal has no effect */
#ifndef EVENTS
#define EVENTS			4
#endif
#ifndef RESTS
#define RESTS			2		/* the session with LATENCY */
#endif
#ifndef STAYS
#define STAYS			1		/* the session with TRANSACTION */
#endif
#define OTHER			(3 - STAYS)
#ifdef NO_PLAIN
#define NONE_PLAIN		true	/* session 0 does not listen: fewer states */
#else
#define NONE_PLAIN		false
#endif
#ifndef EXIT_AFTER
#define EXIT_AFTER		true	/* when session 1 may end */
#endif
#define READS_AGAIN		state[1] == READING_AGAIN
#define CAN(event)		((EVENTS & (event)) != 0)
#ifndef NB
#define NB				2
#endif
#define BIT(x)			(1 << (x))

#define IDLE			0
#define RESTING			1
#define SIGNALLED		2
#define READING			3
#define READING_AGAIN	4
#define NOBODY			3

/* PinpointSlot; references are numbers of batches, 0 if there is none. */
byte state[3], unread[3], again[3], reassigned[3], reassigned_again[3];
byte registered = 7, in_map = 7;	/* sessions, as bits */
byte queued = 0;				/* the list of the waker */
bool waker_set = true, latch = false;

byte last = 0;					/* the last batch of the log */
byte receiver[NB + 1];			/* of a batch, with two flags */
byte is_reassigned = 0, has_it = 0;	/* batches, as bits */

/* Of the sessions. */
byte interrupt = 0;				/* notifyInterruptPending */
byte timer = 0;					/* due_timeout is active */
byte in_transaction = 0;
bool exits = false;
bool can_lose = CAN(REMINDERS);

/* What the guarantees are about. */
byte got_plain = 0, got_group = 0, may_repeat = 0;	/* batches, as bits */

#define PINS(ref, b)	(ref && ref <= (b))
#define PIN(i, b)		(PINS(unread[i], b) || PINS(reassigned[i], b) || PINS(reassigned_again[i], b))
#define KEPT(b)			(PIN(0, b) || PIN(1, b) || PIN(2, b))

/* become_signalled() in wakeup/slots.c */
inline note(i)
{
	if
	:: state[i] == IDLE -> noted = noted | BIT(i)
	:: state[i] == RESTING
	:: state[i] == RESTING && !(timer & BIT(i)) -> noted = noted | BIT(i)	/* will_check() */
	fi;
	state[i] = SIGNALLED
}

/* pinpoint_slot_publish() */
inline collect(i, b)
{
	if
	:: state[i] <= RESTING -> unread[i] = b; note(i)
	:: state[i] == SIGNALLED ->
#ifndef SIGNALLED_HAS_UNREAD
		if
		:: unread[i] == 0 -> unread[i] = b
		:: else
		fi
#endif
	:: state[i] >= READING ->
#ifndef NOT_AGAIN
		state[i] = READING_AGAIN;
		if
		:: again[i] == 0 -> again[i] = b
		:: else
		fi
#endif
	fi
}

/* pinpoint_slot_reassign() */
inline reassign_to_slot(i, b)
{
	if
	:: state[i] >= READING -> state[i] = READING_AGAIN;
#ifndef KEPT_ONLY_ONCE
		if
		:: reassigned_again[i] == 0 || b < reassigned_again[i] -> reassigned_again[i] = b
		:: else
		fi
#endif
	:: state[i] <= SIGNALLED ->
		if
		:: reassigned[i] == 0 || b < reassigned[i] -> reassigned[i] = b
		:: else
		fi;
		if
		:: state[i] <= RESTING -> note(i)
		:: else
		fi
	fi
}

/* share_out(), under the lock */
inline share_out()
{
	if
	:: waker_set && CAN(WAKER) && noted != 0 -> queued = queued | noted; noted = 0; tell = true
	:: waker_set
	:: !waker_set -> noted = noted | queued; queued = 0
	fi
}

/* pinpoint_signal(), and SetLatch(), after the lock is released */
inline send()
{
	if
	:: noted != 0 -> atomic { interrupt = interrupt | noted; noted = 0 }
	:: noted != 0 && can_lose -> atomic { can_lose = false; noted = 0 }
	:: noted == 0
	fi;
	if
	:: tell -> atomic { latch = true; tell = false }
	:: !tell
	fi
}

active proctype sender()
{
	byte noted = 0;
	bool tell = false;

	do
	:: atomic { last < NB ->				/* pinpoint_wakeup_find(), ..._collect() */
		last++;
#ifndef NO_PLAIN
		collect(0, last);
#endif
		if									/* pinpoint_sharing_assign() */
		:: in_map & BIT(1) -> receiver[last] = 1; collect(1, last)
		:: in_map & BIT(2) -> receiver[last] = 2; collect(2, last)
		fi;
		printf("batch %d is published for %d\n", last, receiver[last]);
		share_out() }
		send()
	:: last == NB -> break
	od
}

/* deliver_batch() in listener/delivery.c */
inline deliver_batch(b)
{
	kept = KEPT(b);
	assert(kept);
	if
	:: me == 0 ->
		plain_once = !(got_plain & BIT(b));
		assert(plain_once);
		got_plain = got_plain | BIT(b)
	:: me != 0 && receiver[b] == me && !(has_it & BIT(b)) &&
		((is_reassigned & BIT(b)) || (first && b >= first)) ->
		group_once = !(got_group & BIT(b)) || (may_repeat & BIT(b));
		printf("%d receives batch %d\n", me, b);
		assert(group_once);
		got_group = got_group | BIT(b); mine = mine | BIT(b);
		if
#ifndef DELIVERED_NOT_MARKED
		:: is_reassigned & BIT(b) -> has_it = has_it | BIT(b)	/* pinpoint_sharing_delivered() */
#endif
		:: else
		fi
	:: else
	fi;
	plain_once = false; group_once = false; kept = false
}

proctype session(byte me)
{
	byte b = 0, first = 0, to = 0, mine = 0, noted = 0, other;
	bool tell = false, was_queued = false, timed = false, more = false, rest = false;
	bool plain_once, group_once, kept, stays = false;
	bool can_delay = CAN(LATENCY) && me == RESTS;
	bool can_rest = CAN(LATENCY) && me == RESTS;
	bool can_fail = CAN(LATENCY) && me == RESTS;
	bool can_begin = CAN(TRANSACTION) && me == STAYS;

	other = 3 - me;
	{
	do
	/* PostgreSQL's small transaction, and pinpoint_delivery_at_pre_commit() */
	:: atomic { (interrupt & BIT(me)) && !(in_transaction & BIT(me)) -> interrupt = interrupt & ~BIT(me) }
		atomic {
			if
			:: state[me] == RESTING && !(timer & BIT(me)) -> state[me] = IDLE	/* stop_resting() */
			:: else
			fi;
			if
			:: state[me] != SIGNALLED -> goto next
			:: state[me] == SIGNALLED && can_delay ->	/* put_off() */
				can_delay = false; timer = timer | BIT(me); printf("%d delays\n", me); goto next
			:: state[me] == SIGNALLED ->	/* pinpoint_slot_begin_reading() */
				state[me] = READING; again[me] = 0; reassigned_again[me] = 0;
				first = unread[me]; to = last;
				b = first;
				if
				:: reassigned[me] && (!first || reassigned[me] < first) -> b = reassigned[me]
				:: else
				fi;
#ifdef PIN_REMOVED_FIRST
				unread[me] = 0; reassigned[me] = 0;
#endif
				was_queued = (queued & BIT(me)) != 0;
				timed = (timer & BIT(me)) != 0;
				printf("%d reads batches %d to %d\n", me, b, to)
			fi
		}
		do
		:: atomic { b <= to -> deliver_batch(b); b++ }
		:: atomic { b > to -> b = 0; break }
		od;
		atomic {							/* pinpoint_slot_end_reading() */
#ifdef READS_FROM_FIRST
			unread[me] = (again[me] -> first : 0); again[me] = 0;
#else
			unread[me] = again[me]; again[me] = 0;
#endif
			reassigned[me] = reassigned_again[me]; reassigned_again[me] = 0;
			more = unread[me] || reassigned[me];
			if
			:: more -> state[me] = SIGNALLED
			:: !more -> state[me] = IDLE
			:: !more && can_rest -> can_rest = false; rest = true; state[me] = RESTING
			fi;
			first = 0; to = 0; mine = 0;
			printf("%d ends to read, state %d\n", me, state[me])
		}
		atomic {
			if
#ifndef NOT_BY_ITSELF
			:: more -> interrupt = interrupt | BIT(me)
#endif
			:: rest -> timer = timer | BIT(me)
			:: else
			fi;
			if
			:: was_queued || timed -> interrupt = interrupt | BIT(me)
			:: else
			fi;
			more = false; rest = false; was_queued = false; timed = false
		}
next:	skip
	:: atomic { (timer & BIT(me)) ->		/* HandleNotifyInterrupt() */
		timer = timer & ~BIT(me); interrupt = interrupt | BIT(me) }
	:: atomic { can_fail && (timer & BIT(me)) ->	/* an error; listener/disconnect_reason.c */
		can_fail = false; timer = timer & ~BIT(me); printf("%d: an error cancels the timeout\n", me);
#ifndef NOT_RAISED_AFTER_ERROR
		interrupt = interrupt | BIT(me)
#endif
		}
	:: atomic { can_begin -> can_begin = false; in_transaction = in_transaction | BIT(me);
		printf("%d begins a transaction\n", me);
		if
		:: stays = true
		:: stays = false
		fi }
	:: atomic { (in_transaction & BIT(me)) && !stays ->
		/* the end of a transaction of the client: stop_resting(), pinpoint_slot_pending() */
		in_transaction = in_transaction & ~BIT(me);
		if
		:: state[me] == RESTING -> state[me] = IDLE
		:: state[me] == SIGNALLED -> interrupt = interrupt | BIT(me)
		:: else
		fi }
	od
	} unless { me == 1 && exits };
	/* The session ends, also during a delivery. */
	atomic {
		may_repeat = may_repeat | mine;
		printf("%d ends\n", me);
#ifndef REASSIGNED_BEFORE_LEAVING
		in_map = in_map & ~BIT(me)
#endif
	}
	atomic {								/* first_batches() */
		first = unread[me];
		if
#ifndef AGAIN_IGNORED
		:: !first && state[me] == READING_AGAIN -> first = again[me]
#endif
		:: else
		fi;
		b = first;
		if
		:: reassigned[me] && (!first || reassigned[me] < first) -> b = reassigned[me]
		:: else
		fi;
		if
#ifndef REASSIGNED_AGAIN_IGNORED
		:: reassigned_again[me] && (!b || reassigned_again[me] < b) -> b = reassigned_again[me]
#endif
		:: else
		fi;
		to = last
	}
	do
	:: b == 0 || b > to -> break
	:: b != 0 && b <= to ->
		atomic {							/* reassign_batch(), reassign_to() */
			kept = KEPT(b);
			assert(kept);
			kept = false;
			if
			:: receiver[b] == me && !(has_it & BIT(b)) && ((is_reassigned & BIT(b)) || (first && b >= first)) ->
				receiver[b] = other; is_reassigned = is_reassigned | BIT(b);
				printf("batch %d is reassigned to %d\n", b, other);
				reassign_to_slot(other, b);
				share_out()
			:: else
			fi;
			b++
		}
		send()
	od;
	atomic {								/* pinpoint_slot_unregister() */
		in_map = in_map & ~BIT(me); registered = registered & ~BIT(me);
		unread[me] = 0; again[me] = 0; reassigned[me] = 0; reassigned_again[me] = 0; state[me] = IDLE;
		interrupt = interrupt & ~BIT(me); timer = timer & ~BIT(me); in_transaction = in_transaction & ~BIT(me);
		b = 0; first = 0; to = 0; mine = 0
	}
}

/* pinpoint_sharing_stalled() */
#define STALLED			(CAN(TRANSACTION) && (registered & BIT(STAYS)) && state[STAYS] == SIGNALLED && \
						 (in_transaction & BIT(STAYS)))
#define ASSIGNED(b)		((b) <= last && receiver[b] == STAYS && !(has_it & BIT(b)) && (in_map & BIT(OTHER)) && \
						 ((is_reassigned & BIT(b)) || (unread[STAYS] && (b) >= unread[STAYS])))

inline take()
{
	atomic {
		taken = queued; queued = 0;
		if
		:: state[0] != SIGNALLED -> taken = taken & ~BIT(0)
		:: else
		fi;
		if
		:: state[1] != SIGNALLED -> taken = taken & ~BIT(1)
		:: else
		fi;
		if
		:: state[2] != SIGNALLED -> taken = taken & ~BIT(2)
		:: else
		fi
	}
	atomic { interrupt = interrupt | (taken & registered); taken = 0 }
}

/* pinpoint_waker_main(); without WAKER, senders leave nothing to it. */
active proctype waker()
{
	byte taken = 0, noted = 0, b;
	bool tell = false, ends = false;

	if
	:: CAN(WAKER) -> ends = true
	:: true
	fi;
	do
	:: latch -> latch = false; take()
	:: atomic { STALLED && (ASSIGNED(1) || ASSIGNED(2)) ->	/* pinpoint_reassign_stalled() */
		if
		:: ASSIGNED(1) -> b = 1
		:: ASSIGNED(2) -> b = 2
		fi }
		atomic {							/* try_reassign() */
			if
#ifdef STALL_NOT_CHECKED_AGAIN
			:: receiver[b] == STAYS && !(has_it & BIT(b)) ->
#else
			:: STALLED && ASSIGNED(b) ->
#endif
				receiver[b] = OTHER; is_reassigned = is_reassigned | BIT(b);
				printf("the waker reassigns batch %d\n", b);
				reassign_to_slot(OTHER, b);
				share_out()
			:: else
			fi;
			b = 0
		}
		send()
	:: ends -> break
	od;
	/* at_exit() */
#ifdef WAKER_REMOVED_LAST
	take();
#endif
	atomic { waker_set = false; printf("the waker is removed\n") }
#ifndef WAKER_REMOVED_LAST
	take()
#endif
}

/* pinpoint_wakeup_remind(): long after the signal. */
#ifdef NO_REMINDERS
#define REMIND			false
#else
#define REMIND			(CAN(REMINDERS) && !can_lose && (state[0] == SIGNALLED || state[1] == SIGNALLED || \
						 state[2] == SIGNALLED))
#endif

active proctype reminders()
{
	do
	:: atomic { timeout && REMIND -> interrupt = registered; printf("reminders\n") }
	od
}

active proctype events()
{
	if
	:: CAN(EXIT) && (EXIT_AFTER) -> exits = true
	:: true
	fi
}

#define DONE			((BIT(last + 1) - 1) & ~1)	/* batches 1 to last */
#define IS_IDLE(i)		(state[i] == IDLE && unread[i] == 0 && reassigned[i] == 0)
/* Without a waker, or another member, they stay with a session in a transaction. */
#define LEFT			((in_transaction & BIT(STAYS)) && (!waker_set || !(in_map & BIT(OTHER))))

/* When no process has anything to do. */
active proctype end()
{
	bool none_lost, none_waits;

	atomic { run session(0); run session(1); run session(2) }
	atomic { timeout && !REMIND ->
		none_waits = IS_IDLE(0) && (IS_IDLE(STAYS) || (in_transaction & BIT(STAYS))) && IS_IDLE(OTHER);
		none_lost = (got_plain == DONE || NONE_PLAIN) && (got_group == DONE || LEFT);
		assert(none_waits);
		assert(none_lost) }
}
