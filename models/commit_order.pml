/*
 * commit_order.pml: publication in commit order, with hold-back and one publisher.
 *
 * Guarantees (docs/reliability.md, "Promises"):
 *
 *	in_order		"Transactions arrive in commit order."  A transaction is not published
 *					before another one whose commit record precedes its own, or whose
 *					COMMIT returned before its own COMMIT began.
 *	sees_rows		"A listener that has received a notification sees the rows of its
 *					transaction, and the locks of the transaction are released."
 *	none_invented	"Nothing is lost, repeated or invented": nothing of a rollback is delivered.
 *	none_left		"Nothing is lost": no batch stays in the heap while it can be published,
 *					even if no other transaction ever commits, and if the waker or the
 *					publisher stops.
 *	own_rest		"A session does only a limited amount of work for others": it becomes
 *					the publisher only if there is no waker, and if its own commit has held
 *					back this rest.
 *
 * N sessions commit one transaction each, with or without a commit record, or roll back;
 * with RECORDS_ONLY, all commit with a commit record.  The waker starts and ends at any
 * time, and starts at most LIVES times.  It stops before any of its steps, and goes on
 * later or never; so does a session that is the publisher, which never goes on.  Both
 * together stop at most STOPS times.  All work under PinpointOrderLock is one
 * step, because the lock is exclusive there: no process stops while it has the lock.  One
 * batch exceeds the limit of work of one hold.
 *
 * The reserve stands for all sessions that look at the work of the waker: when they
 * commit, or by a timeout.  There is no time in the model: a look finds no progress if
 * the waker has begun no round since the last look.
 *
 * The names of functions are at the steps; all are in commit/commit_order.c, unless
 * stated otherwise.  Mutants: see README.md.
 */

#ifndef N
#define N				3
#endif
#ifndef LIVES
#define LIVES			2		/* how often the waker starts */
#endif
#ifndef STOPS
#define STOPS			0		/* how often the waker, or a publisher, stops */
#endif
#if STOPS == 0
#define NO_RESERVE
#endif
#define WAKER			N		/* number of the waker as publisher */
#define RESERVE			(N + 1)
#define NOBODY			255
#define BIT(x)			(1 << (x))

/* LSNs: a record that ends at w is 2w; "directly after" it is 2w + 1. */
byte wal = 0;
#define BEHIND_LAST		(2 * wal + 1)

/* CommitOrder.  Sets are bits. */
byte in_flight = 0;
byte ready = 0;
byte bound[N], number[N];		/* lower bound; order in the in-flight list */
byte stamp[N], turn[N];
byte announced = 0, turns = 0;
byte publisher = NOBODY;

bool waker_set = false;			/* the waker has set its latch (wakeup/waker_list.c) */
bool latch = false;
bool waker_sleeps = true;		/* or does not exist */
bool stopped = false;			/* the waker */
byte stops = 0;

/*
 * wakeup/waker_progress.c.  undone: "wanted" is not "finished".  current: the value of "wanted"
 * that the waker or the reserve has read last is the last one.  moved: "rounds" is not
 * "seen_rounds".
 */
#ifdef NO_RESERVE
inline want() { skip }
inline move() { skip }
#else
bool undone = false, waker_current = false, reserve_current = false, moved = false;
inline want() { undone = true; waker_current = false; reserve_current = false }
inline move() { moved = true }
#endif
byte ended = 0;					/* sessions */

/* What the guarantees are about. */
byte record[N];					/* end of its commit record, 0 if there is none */
byte before[N];					/* transactions that it must follow */
byte returned = 0, released = 0, rolled_back = 0, published = 0;

/* Does a batch that is not published have to come before batch b? */
#define PRECEDES(a, b)	((a) != (b) && !((published | rolled_back) & BIT(a)) && ((before[b] & BIT(a)) || \
						 (record[a] && record[b] && record[a] < record[b])))

#if N > 3
#define T3_PRECEDES		PRECEDES(3, first)
#else
#define T3_PRECEDES		false
#endif

/* Sets "first" to the first batch of the heap, NOBODY if it must not be published. */
inline find_first()
{
	d_step {
	i = 0; oldest = NOBODY; first = NOBODY;
	do
	:: i < N ->
		if
		:: (in_flight & BIT(i)) && (oldest == NOBODY || number[i] < number[oldest]) -> oldest = i
		:: else
		fi;
		if									/* comes_before() in commit/ready_heap.c */
		:: (ready & BIT(i)) && (first == NOBODY || stamp[i] < stamp[first] ||
#ifdef TIES_REVERSED
			(stamp[i] == stamp[first] && turn[i] > turn[first])) -> first = i
#else
			(stamp[i] == stamp[first] && turn[i] < turn[first])) -> first = i
#endif
		:: else
		fi;
		i++
	:: else -> break
	od;
#ifndef NO_HOLD_BACK
	if										/* may_publish() */
	:: first != NOBODY && oldest != NOBODY && stamp[first] > bound[oldest] -> first = NOBODY
	:: else
	fi;
#endif
	i = 0; oldest = 0
	}
}

/* publish_some(): sets "more". */
inline publish_some()
{
	find_first();
	if
	:: first != NOBODY ->
		ready = ready & ~BIT(first);
		in_order = !PRECEDES(0, first) && !PRECEDES(1, first) && !PRECEDES(2, first) && !T3_PRECEDES;
		sees_rows = (released & BIT(first)) != 0;
		none_invented = ((published | rolled_back) & BIT(first)) == 0;
		printf("%d publishes T%d\n", me, first);
		assert(in_order);
		assert(sees_rows);
		assert(none_invented);
		published = published | BIT(first);
		stamp[first] = 0; turn[first] = 0; record[first] = 0; before[first] = 0;
		find_first()
	:: else
	fi;
	more = first != NOBODY;
	first = 0; in_order = 0; sees_rows = 0; none_invented = 0
}

/* publish_rest() */
inline publish_rest()
{
	do
#if STOPS > 0 && !defined(WAKER_STOPS)
	:: atomic { stops < STOPS && me != WAKER -> stops++; printf("publisher %d stops\n", me); break }
#endif
	:: atomic {
		move();
		publish_some();
		if
		:: !more ->
#ifndef PUBLISHER_RESET_LATER
			publisher = NOBODY;
#endif
			break
		:: more
		fi }
	od;
#ifdef PUBLISHER_RESET_LATER
	publisher = NOBODY
#endif
}

/* publish_ready(); the caller has begun the hold of the lock. */
inline publish_ready()
{
	publish_some();
#ifndef NOT_WANTED
	if
	:: more -> want()
	:: else
	fi;
#endif
	if
	:: !more || (publisher != NOBODY && !waker_set)
	:: more && waker_set -> tell = true
	:: more && publisher == NOBODY && !waker_set ->
		publisher = me;
		own_rest = !any_before;
		printf("%d becomes the publisher\n", me);
		assert(own_rest);
		own_rest = false
	fi;
	more = false
}

active [N] proctype session()
{
	byte i, oldest, first, me = _pid;
	bool more, tell, any_before, in_order, sees_rows, none_invented, own_rest;
	bool commits, has_xid;

#ifndef ANNOUNCED_AFTER_RECORD
	/* The sessions are equal, so their order at this point is their number. */
	atomic { announced == me ->				/* pinpoint_commit_order_announce() */
		before[me] = returned;
		in_flight = in_flight | BIT(me); number[me] = announced; announced++;
		bound[me] = BEHIND_LAST;
		printf("%d announces T%d, bound %d\n", me, me, bound[me])
	}
#endif
	if
	:: atomic { commits = true; has_xid = true }
#ifndef RECORDS_ONLY
	:: commits = true
	:: skip
#endif
	fi;
	if
	:: commits ->
		atomic {
			if
			:: has_xid -> wal++; record[me] = 2 * wal	/* XactLogCommitRecord() */
			:: !has_xid
			fi;
			printf("%d commits T%d, record %d\n", me, me, record[me]);
#ifndef ANNOUNCED_AFTER_RECORD
			if
			:: has_xid -> stamp[me] = record[me]
			:: !has_xid
			fi;
#endif
#ifdef RECORDS_ONLY
			released = released | BIT(me)	/* fewer states: all in one step */
#endif
		}
#ifdef ANNOUNCED_AFTER_RECORD
		atomic {
			in_flight = in_flight | BIT(me); number[me] = announced; announced++;
			bound[me] = BEHIND_LAST
		}
#endif
#ifndef RECORDS_ONLY
		atomic {							/* pinpoint_commit_order_stamp() */
#ifdef STAMP_OF_EARLIER_RECORD
			stamp[me] = record[me];
#else
			stamp[me] = (has_xid -> record[me] : BEHIND_LAST);
#endif
			printf("%d stamps T%d with %d\n", me, me, stamp[me]);
#ifndef PUBLISHED_BEFORE_RELEASE
			released = released | BIT(me)	/* CommitTransaction(): visible, no locks */
#endif
		}
#endif
		atomic {							/* pinpoint_commit_order_publish() */
			find_first(); any_before = first != NOBODY;
			in_flight = in_flight & ~BIT(me); bound[me] = 0; number[me] = 0;
			ready = ready | BIT(me); turn[me] = turns; turns++;
			printf("%d: T%d is ready\n", me, me);
			publish_ready()
		}
#ifdef PUBLISHED_BEFORE_RELEASE
		released = released | BIT(me);
#endif
	:: !commits ->
		atomic {							/* pinpoint_commit_order_withdraw() */
			find_first(); any_before = first != NOBODY;
			in_flight = in_flight & ~BIT(me); bound[me] = 0; number[me] = 0; rolled_back = rolled_back | BIT(me);
			printf("%d withdraws T%d\n", me, me);
#ifndef WITHDRAWN_ONLY
			publish_ready()
#endif
		}
	fi;
	/* pinpoint_publication_end() in wakeup/publication.c, and publish_rest() */
	if
	:: tell ->
#ifndef LATCH_NOT_SET
		atomic { latch = true; printf("%d sets the latch\n", me) }
#endif
	:: !tell && publisher == me -> publish_rest()
	:: else
	fi;
	atomic {
		returned = returned | BIT(me); ended++;
		more = 0; tell = 0; any_before = 0; commits = 0; has_xid = 0; first = 0
	}
}

/* pinpoint_waker_main() in waker.c */
active proctype waker() provided (!stopped)
{
	byte i, oldest, first, me = WAKER, lives = 0;
	bool more, in_order, sees_rows, none_invented;

start:
	atomic { lives < LIVES -> lives++; waker_sleeps = false; latch = false; printf("waker starts\n") }
	atomic { waker_set = true; printf("waker is set\n") }	/* pinpoint_waker_list_set_latch() */
	do
	:: break								/* ShutdownRequestPending */
#ifndef NO_RESERVE
	:: atomic { move(); waker_current = true }	/* pinpoint_waker_progress_begin_round() */
		if
#endif
		:: ready != 0 ->					/* pinpoint_commit_order_continue() */
			atomic { publish_some() }
			if
			:: more
			:: !more -> goto sleep
			fi
		:: ready == 0 -> goto sleep
#ifndef NO_RESERVE
		fi
#endif
	:: false ->
sleep:
#ifndef NO_RESERVE
#ifdef WANTED_READ_LAST
		waker_current = true;
#endif
		atomic { undone = !waker_current; waker_current = false }	/* pinpoint_waker_progress_end_round() */
		move();
#endif
#ifdef LATCH_RESET_BEFORE_SLEEP
		latch = false;
#endif
		atomic { waker_sleeps = true; more = false }
		if									/* WaitLatch(), ResetLatch() */
		:: atomic { latch -> latch = false; waker_sleeps = false }
		:: atomic { lives < LIVES -> waker_sleeps = false; break }
		fi
	od;

	/* at_exit() in waker.c */
	printf("waker ends\n");
#ifdef WAKER_REMOVED_FIRST
	atomic { waker_set = false; printf("waker is removed\n") }
#endif
	atomic {								/* pinpoint_commit_order_remove_waker() */
#ifndef NO_TAKE_OVER
		if
		:: publisher == NOBODY -> publisher = WAKER; printf("waker is the publisher\n")
		:: else -> printf("waker finds publisher %d\n", publisher)
		fi;
#endif
#ifndef REMOVED_IN_ANOTHER_HOLD
		waker_set = false; printf("waker is removed\n")
#endif
	}
#ifdef REMOVED_IN_ANOTHER_HOLD
	atomic { waker_set = false; printf("waker is removed\n") }
#endif
	if										/* pinpoint_commit_order_at_exit() */
	:: publisher == WAKER -> publish_rest()
	:: else
	fi;
	atomic { waker_sleeps = true; latch = false }
	goto start
}

#if STOPS > 0
/* SIGSTOP, SIGCONT */
active proctype stopper()
{
	do
	:: atomic { stops < STOPS -> stopped = true; stops++; printf("waker stops\n") }
	:: atomic { stopped -> stopped = false; printf("waker continues\n") }
	od
}
#endif

#ifndef NO_RESERVE
/* pinpoint_waker_reserve_at_pre_commit() in commit/waker_reserve.c */
active proctype reserve()
{
	byte i, oldest, first, me = RESERVE;
	bool more, in_order, sees_rows, none_invented;

	do
	:: atomic { undone && moved -> moved = false }	/* pinpoint_waker_progress_is_stalled() */
	:: atomic { undone && !moved -> reserve_current = true }	/* do_part() */
		atomic { publish_some() }			/* pinpoint_commit_order_take_over() */
		atomic {
			if
			:: !more -> undone = !reserve_current	/* pinpoint_waker_progress_finish() */
			:: more
			fi;
			reserve_current = false; more = 0
		}
	od
}
#define NOTHING_WANTED	(!undone)
#else
#define NOTHING_WANTED	true
#endif

/* When all sessions have ended, and no process has anything to do. */
active proctype end()
{
	bool none_left;

	atomic {
		ended == N && (stopped || (waker_sleeps && !latch)) && NOTHING_WANTED ->
		none_left = ready == 0;
		assert(none_left)
	}
}
