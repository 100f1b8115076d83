/*
 * listen.pml: the beginning of LISTEN, on two channels in one transaction.
 *
 * Guarantees (docs/reliability.md, "Promises"):
 *
 *	none_missed		"Nothing is lost": a session receives what was committed after its LISTEN,
 *					also by a transaction that began before.
 *	together		"All LISTENs of a transaction begin together": after the first
 *					notification that a session receives on either channel, it misses none.
 *
 * A session executes LISTEN.  N transactions send a notification on either channel, or
 * on both, and have few channels or many: then the listeners are looked up without
 * PinpointOrderLock, before the commit, or after it on a standby.  One hold of the lock
 * publishes any number of transactions.  The second channel may not fit into the channel
 * map.  The lock is a variable, because LISTEN acquires it exclusively only for a channel
 * that does not fit.  It also acquires it in shared mode when the session registers; the
 * model omits this, which permits more orders.  Each access to shared memory is a step,
 * and the steps of a process have the same order for all others: the comments in the code
 * explain the barriers.  Shared channels, and more than one session, are not modelled.
 *
 * The functions are at the steps.  Mutants: see README.md.
 */

#ifndef N
#define N				2
#endif
#define BIT(x)			(1 << (x))

/* Shared memory.  Channels are bits. */
bool registered = false;		/* PinpointSlot.pid is not 0 */
byte in_map = 0;
bool wakes_for_all = false;
byte joined = 0;				/* PinpointSlots.last_listen */
byte slot_joined = 0;			/* PinpointSlot.last_listen */
byte number = 0;				/* of the last publication */
bool lock = false;				/* PinpointOrderLock is held exclusively */
bool goes_on = false;			/* by a process that publishes one more transaction */
byte waiting = 0;				/* transactions that are not published yet */
byte not_visible = 0;			/* numbers that others do not see yet */

/* What the guarantees are about.  Publications are bits. */
bool listens = false;			/* the LISTEN has committed */
byte since = 0;
byte found = 0;					/* publications that have found the session */
byte later = 0;					/* publications of transactions that have committed after it */
byte ended = 0;

inline acquire()	{ atomic { !lock -> lock = true } }
inline release()	{ atomic { lock = false; number = number + not_visible; not_visible = 0 } }
inline join()		{ joined++; slot_joined = joined }	/* pinpoint_slot_join() */

/* pinpoint_listening_begin() and pinpoint_listening_commit() in listener/listening.c */
active proctype listener()
{
#ifdef WAKES_FOR_ALL_LAST
	bool fits = true;

#endif
	registered = true;						/* pinpoint_slot_register() */
#ifdef NUMBER_READ_FIRST
	since = number;
#endif
#ifdef JOINED_FIRST
	join();
#endif
	in_map = in_map | BIT(0);				/* enter() */
	if
	:: in_map = in_map | BIT(1)
#ifdef WAKES_FOR_ALL_LAST
	:: fits = false
#else
	:: acquire(); wakes_for_all = true; release()	/* pinpoint_slot_set_wakes_for_all() */
#endif
	fi;
#ifdef NUMBER_READ_BEFORE_JOIN
	since = number;							/* begin_after */
#endif
#if !defined(JOINED_FIRST) && !defined(JOINED_AFTER_COMMIT)
	join();
#endif
#if !defined(NUMBER_READ_FIRST) && !defined(NUMBER_READ_BEFORE_JOIN) && !defined(NUMBER_READ_AFTER_COMMIT)
	since = number;							/* begin_after */
#endif
#ifdef WAKES_FOR_ALL_LAST
	if
	:: !fits -> acquire(); wakes_for_all = true; release()
	:: else
	fi;
#endif
	atomic { listens = true; printf("LISTEN is committed\n") }
#ifdef NUMBER_READ_AFTER_COMMIT
	since = number;
#endif
#ifdef JOINED_AFTER_COMMIT
	join();
#endif

	/* is_for_me() in listener/delivery.c, when all is published */
	atomic {
		ended == N ->
		byte i = 1;
		bool none_missed = true, together = true, begun = false;
		do
		:: i <= N ->
			bool received = (found & BIT(i)) != 0 && i > since;
			none_missed = none_missed && (received || (later & BIT(i)) == 0);
			together = together && (received || !begun);
			begun = begun || received;
			i++
		:: else -> break
		od;
		assert(none_missed);
		assert(together)
	}
}

/* The look-up of channel c. */
inline look_up(c)
{
	finds = finds || ((channels & BIT(c)) != 0 && (in_map & BIT(c)) != 0)
}

/* pinpoint_wakeup_find_early() and pinpoint_wakeup_find_replayed() in wakeup/wakeup.c */
inline find_early()
{
#ifdef MAP_READ_FIRST
	look_up(0); look_up(1);
	early_joined = joined
#else
#ifdef LISTENERS_MARKED_FIRST
	any = registered;						/* pinpoint_slots_read_listeners() */
#endif
	early_joined = joined;					/* step 5 */
#ifndef LISTENERS_MARKED_FIRST
	any = registered;						/* step 9 */
#endif
	if
	:: any -> look_up(0); look_up(1)		/* step 6 */
	:: else
	fi
#endif
}

inline commit()
{
	atomic { is_later = listens; waiting++; printf("T%d is committed\n", _pid) }
}

active [N] proctype sender()
{
	byte channels, early_joined, mine;
	bool many, any, finds, is_later;

	if
	:: channels = 1
	:: channels = 2
	:: channels = 3
	fi;
	if
	:: many = true; find_early(); commit()
	:: many = true; commit(); find_early()	/* on a standby */
	:: commit()
	fi;

	/* pinpoint_publication_begin(), or the same hold */
	atomic { !lock || goes_on -> lock = true; goes_on = false; waiting-- }
#ifdef NUMBER_NOT_VISIBLE
	not_visible++; mine = number + not_visible;
#else
	number++; mine = number;				/* pinpoint_message_log_next_sequence() */
#endif
	if										/* pinpoint_wakeup_find() */
	:: !many -> look_up(0); look_up(1)
	:: else -> finds = finds || slot_joined > early_joined	/* find_joined() */
	fi;
	finds = finds || wakes_for_all;
	atomic {
		if
		:: finds -> found = found | BIT(mine); printf("publication %d of T%d finds the session\n", mine, _pid)
		:: else -> printf("publication %d of T%d does not find the session\n", mine, _pid)
		fi;
		if
		:: is_later -> later = later | BIT(mine)
		:: else
		fi;
		ended++;
		if
		:: waiting > 0 -> goes_on = true
		:: release()
		fi
	}
}
