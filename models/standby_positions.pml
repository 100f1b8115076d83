/*
 * standby_positions.pml: what a standby knows of its primary.
 *
 * Guarantee (docs/reliability.md, "Promises"):
 *
 *	never_omitted	"The answer of changed_since() names every channel that was notified
 *					since the position."  This holds on a standby in every order of
 *					the events that a run selects, within its bounds.
 *	exact_again		It "names all channels until it has replayed the next status "on" of its
 *					primary".  Then it distinguishes them again, and sends heartbeats.
 *
 * A primary writes WAL, and one standby replays it.  The primary may be restarted, or
 * another server may take its place; the new one may have no library.  One client asks
 * the standby about one channel, and may listen for heartbeats there.  NX transactions
 * notify the channel.  Every step is one hold of PinpointOrderLock, one WAL record, or
 * one access to a shared variable.  A transaction counts as replayed when the function
 * for its commit record has returned.
 *
 * Bounds: what a run checks is limited to NX transactions of one session each, BUDGET
 * events that EVENTS selects, one checkpoint, one restart of each server, and two
 * reloads of the primary.  Longer sequences are not searched.  There is one database,
 * and all transactions have an XID: those that leave nothing in the WAL are not
 * modelled.
 *
 * Steps of the model, and the functions that they stand for:
 *
 *	session			write_left_out() in transaction_events.c,
 *					pinpoint_replication_status_begin_commit(), ..._end_commit(),
 *					pinpoint_wal_messages_write(), ..._write_left_out(),
 *					XactLogCommitRecord()
 *	waker			pinpoint_replication_status_write(), set_flag()
 *	standby			in standby/replay.c: read_message(), decide_counting(),
 *					end_by_commit(), disconnect_listeners(), message_startup(),
 *					message_cleanup(); in standby/primary_status.c:
 *					pinpoint_primary_status_set(), ..._decide_counting(),
 *					..._left_out(), ..._begin(), ..._end(),
 *					xlog_redo_end_of_server();
 *					pinpoint_positions_count(), ..._count_all_of(),
 *					..._raise_floor_locked() in positions/positions.c
 *	standby_waker	pinpoint_heartbeat_send()
 *	client			pinpoint_positions_begin_look(), pinpoint_positions_all_changed(),
 *					pinpoint_positions_changed()
 *
 * Mutants (see README.md).  An event mask limits what happens, so that the trace shows
 * one way to miss a change.
 */

/* Events outside of the protocol; a mutant can limit them. */
#define SET_OFF			1		/* a session executes SET pinpoint.replicate = off */
#define ROLE_OFF		2		/* ALTER ROLE has switched it off for a session */
#define RELOAD_PRIMARY	4		/* at most twice */
#define RELOAD_STANDBY	8
#define CHECKPOINT		16
#define RESTART_PRIMARY	32		/* shutdown or crash; the next start may differ */
#define FAILOVER		64		/* another server becomes the primary */
#define RESTART_STANDBY	128
#define BACKUP			256		/* the standby is made anew from a base backup */
#define WAKER_ENDS		512
#define PROMOTE			1024	/* the standby becomes a primary */
#define HEARTBEATS		2048	/* the client listens for heartbeats */
#ifndef EVENTS
#define EVENTS			2047	/* HEARTBEATS are checked separately */
#endif
#ifndef BUDGET
#define BUDGET			1		/* number of events from RELOAD_PRIMARY to PROMOTE */
#endif
/* Conditions for AFTER. */
#define STANDBY_FIRST	life == 2 && written == 0
#define RELOADED_FIRST	budget == 0 && setting && !replicate
#define AFTER_OFF		life == 2 && checkpoints == 1 && written == STATUS_OFF
#define IN_FLIGHT		budget == 1 && !replicate
#define OFF_AND_ON		written == STATUS_ON && budget == 1
#ifndef RELOAD_AFTER
#define RELOAD_AFTER	true	/* when the primary may reload */
#endif
#ifndef AFTER
#define AFTER			true	/* when the first transaction may begin */
#endif
/* Conditions for COMMIT_AFTER (when a transaction begins to commit) and RELOAD_AFTER. */
#define SWITCHED_ON		written == STATUS_ON
#define NOT_SEEN		budget == 0 && replicate && nwal == 1 && wal[0] == STATUS_ON
#define CAN(event)		((EVENTS & (event)) != 0)
#define HAPPENS(event)	(CAN(event) && budget > 0)
#define PAID			budget--

/* WAL records; those of a transaction have its number added. */
#define REDO			1		/* redo point of a checkpoint */
#define SHUTDOWN		2		/* shutdown checkpoint, also after crash recovery */
#define END_OF_RECOVERY	3
#define STATUS_ON		4
#define STATUS_OFF		5
#define MESSAGE			10		/* the notifications of a transaction */
#define LEFT_OUT		20		/* "my notifications are not in the WAL" */
#define COMMIT			30
#define MARKED_COMMIT	40		/* commit of a transaction with a message */

#ifndef NX
#define NX				1		/* transactions, 1 or 2 */
#endif
#define WAL_SIZE		12
#define BIT(x)			(1 << (x))

/*
 * The WAL from the last redo point on.  A record is written when all earlier ones are
 * replayed.  No order of steps is lost by this: the primary does not depend on the
 * standby, so its steps can always be delayed until the standby has replayed the
 * records before them.
 */
byte wal[WAL_SIZE];
byte nwal = 0;
byte replayed = 0;				/* number of records */
bool replaying = false;
byte life = 1;					/* changes when the shared memory is created again */
bool in_recovery = true;		/* the standby is not promoted */
bool setting;					/* pinpoint.replicate of the standby */
byte budget = BUDGET;

/* ---- The primary ---- */

byte server = 1;				/* changes at a restart and at a failover */
byte waker_life = 1;
bool library = true;
bool replicate;					/* the setting in the configuration file */
bool flag = false;				/* shared: commits that do not replicate write a
								 * message that they are left out */
byte marks = 0;					/* marks of sessions that commit, as bits */
byte begun = 0;					/* transactions begin in their order */
byte checkpoints = 0;

/* Of the waker; in shared memory. */
byte written = 0;				/* the last status that it has written */
byte seen = 0;					/* checkpoints */

/* Static variables of the waker. */
bool has_marks = false;
byte waits_for = 0;				/* the marks that it has read */
bool busy = false;
#define TO_WRITE		(library && (seen != checkpoints || (!replicate && flag) || \
						 written != (replicate -> STATUS_ON : STATUS_OFF)))

/* Not all marks have changed. */
#define WAITS			(replicate && written != STATUS_ON && flag && has_marks && (waits_for & marks))

#define CAN_WRITE		(replayed == nwal && !replaying && in_recovery)

inline write_wal(record)
{
	CAN_WRITE;
	assert(nwal < WAL_SIZE);	/* the model is large enough */
	wal[nwal] = record;
	nwal++
}

/* A session that commits one transaction with a notification. */
proctype session(byte x)
{
	byte my_server;
	bool value, marked = false, need = false;

	begun == x && (AFTER);

	/* The last time that the session reads its configuration. */
	atomic {
		my_server = server; begun++;
		if
		:: value = replicate
		:: CAN(SET_OFF) -> value = false; printf("T%d: SET pinpoint.replicate = off\n", x)
		:: CAN(ROLE_OFF) -> value = false; printf("T%d: its role has pinpoint.replicate = off\n", x)
		fi;
		printf("T%d: begins, replicate %d, library %d\n", x, value, library)
	}
	{
#ifdef COMMIT_AFTER
		COMMIT_AFTER;
#endif
		if
		:: library && value ->
			/* pinpoint_wal_messages_write() */
			atomic { write_wal(MESSAGE + x); marked = true; printf("T%d: writes its message\n", x) }
		:: library && !value ->
#ifdef FLAG_READ_FIRST
			need = flag;
			marks = marks | BIT(x);
#else
			/* pinpoint_replication_status_begin_commit() */
			atomic { marks = marks | BIT(x); printf("T%d: sets its mark\n", x) }
			atomic { need = flag; printf("T%d: reads the flag: %d\n", x, need) }
#endif
#ifndef NOT_TOLD
			if
			:: need -> atomic {
				write_wal(LEFT_OUT + x);
#ifndef LEFT_OUT_NOT_MARKED
				marked = true;
#endif
				printf("T%d: writes that it is left out\n", x) }
			:: !need
			fi
#endif
		:: !library
		fi;
		/* XactLogCommitRecord() with mark_commit_record(), ..._end_commit() */
		atomic {
			write_wal((marked -> MARKED_COMMIT : COMMIT) + x);
			marks = marks & ~BIT(x);
			printf("T%d: commit record\n", x)
		}
	} unless { server != my_server }
}

/* The background worker of the primary. */
active proctype waker()
{
	byte my_server, my_life, redo;

	do
	:: atomic { my_server = server; my_life = waker_life; has_marks = false; waits_for = 0; busy = false; redo = 0 }
		{
			do
			/* pinpoint_replication_status_write() */
			:: atomic {
				TO_WRITE && !WAITS ->
				busy = true;
				redo = checkpoints;
				if
				:: replicate && written == STATUS_ON ->
#ifdef NO_REPEAT
					seen = redo; goto looked
#else
					goto write_on
#endif
				:: replicate && written != STATUS_ON && flag && has_marks -> goto write_on
				:: replicate && written != STATUS_ON && !(flag && has_marks)
				:: !replicate && (written != STATUS_OFF || seen != checkpoints) -> goto write_off
				:: !replicate && written == STATUS_OFF && seen == checkpoints -> goto clear_flag
				fi
				}
				/* set_flag() */
#ifdef STATUS_BEFORE_FLAG
				goto write_on;
#endif
#ifdef MARKS_READ_FIRST
				waits_for = marks;
#endif
				atomic { flag = true; printf("waker: sets the flag\n") }
				atomic {
#if !defined(NO_WAIT_FOR_COMMITS) && !defined(MARKS_READ_FIRST)
					waits_for = marks;
#endif
					has_marks = true; printf("waker: waits for the marks %d\n", waits_for) }
				goto looked;
write_on:		atomic {
					write_wal(STATUS_ON);
					written = STATUS_ON; seen = redo; printf("waker: writes on\n") }
#ifdef CHECKPOINT_SEEN_AFTER_WRITE
				seen = checkpoints;
#endif
#ifdef STATUS_BEFORE_FLAG
				flag = true;
#endif
				goto looked;
write_off:
#ifdef FLAG_CLEARED_FIRST
				flag = false;
#endif
				atomic { write_wal(STATUS_OFF); written = STATUS_OFF; seen = redo; printf("waker: writes off\n") }
clear_flag:		flag = false;
looked:			atomic { busy = false; redo = 0 }
			od
		} unless { server != my_server || waker_life != my_life }
	od
}

/* Administrators, checkpoints and crashes.  A new primary has its own settings. */
active proctype primary_events()
{
	byte reloads = 0;

	do
	:: atomic { HAPPENS(RELOAD_PRIMARY) && reloads < 2 && (RELOAD_AFTER) ->
		PAID; reloads++; replicate = !replicate; printf("primary: reload, replicate %d\n", replicate) }
	:: atomic { HAPPENS(CHECKPOINT) && checkpoints == 0 && CAN_WRITE ->
		PAID; write_wal(REDO); checkpoints++; printf("primary: checkpoint\n") }
	:: atomic { HAPPENS(WAKER_ENDS) && waker_life == 1 ->
		PAID; waker_life++; printf("primary: the waker is restarted\n") }
	:: atomic { (HAPPENS(RESTART_PRIMARY) || HAPPENS(FAILOVER)) && server == 1 && CAN_WRITE ->
		PAID;
		if
		:: CAN(RESTART_PRIMARY) -> write_wal(SHUTDOWN); printf("primary: restart")
		:: CAN(FAILOVER) -> write_wal(END_OF_RECOVERY); printf("failover to another server")
		fi;
		server++;
		flag = false; marks = 0; written = 0; seen = 0;
		if
		:: library = true
		:: library = false
		fi;
		if
		:: replicate = true
		:: replicate = false
		fi;
		printf(", library %d, replicate %d\n", library, replicate) }
	od
}

/* ---- The standby ---- */

#define UNKNOWN			0
#define ON				1
#define OFF				2

byte consistent_at = 0;			/* sessions are admitted from here on */
byte status = UNKNOWN;			/* "reported" if "is_current" */
bool missed = true;				/* a commit may have been replayed without counting */
bool replicates = false;		/* pinpoint_positions_replicates() */
byte counter = 0;
byte floor = 0;
byte place = 0;					/* of the channel */
byte visible = 0;				/* transactions, as bits */
byte done = 0;					/* ... whose commit record is replayed completely */

/* The session of the client, and what the client knows. */
bool listening = false;
bool evicted = false;
bool looking = false;
bool valid = false;				/* the position is of this life of the server */
byte position = 0;
byte known = 0;					/* transactions that the client has seen, or was notified of */

inline raise_floor()
{
#ifndef FLOOR_NOT_RAISED
	counter++;
	floor = counter
#else
	skip
#endif
}

/* pinpoint_positions_count(), and the delivery to a listener. */
inline count_and_publish(x)
{
	counter++;
	place = counter;
	if
	:: listening && !evicted -> known = known | BIT(x)
	:: else
	fi
}

#ifdef OPTIMISTIC
#define MAY_BE_EXACT	(setting && status != OFF)
#else
#define MAY_BE_EXACT	(setting && status == ON)
#endif

inline decide_counting(is_commit)
{
	if
	:: MAY_BE_EXACT && !replicates ->
#ifdef SET_BEFORE_FLOOR
		replicates = true;
		atomic { raise_floor(); evicted = listening }
#else
#ifdef NO_EVICTION
		raise_floor();
#else
		/* disconnect_heartbeat_listeners(): one hold of the lock. */
		atomic { raise_floor(); evicted = listening; printf("standby: raises the floor\n") }
#endif
		atomic { replicates = true; printf("standby: exact from here on\n") }
#endif
	:: !MAY_BE_EXACT && replicates ->
		atomic { replicates = false; printf("standby: all changed from here on\n") }
	:: else
	fi;
	atomic {
		if
		:: MAY_BE_EXACT -> missed = false
		:: !MAY_BE_EXACT && (is_commit) -> missed = true
		:: else
		fi
	}
}

/* The startup process: replays one record after the other. */
active proctype standby()
{
	byte record, x;
	byte got[NX];				/* the list "unfinished" */

	do
	:: atomic { replayed < nwal && in_recovery ->
		replaying = true; record = wal[replayed]; x = record % 10;
		if
		:: record == STATUS_ON -> status = ON; printf("standby: replays on\n")	/* set_status() */
		:: record == STATUS_OFF -> status = OFF; missed = true; printf("standby: replays off\n")
		:: record == SHUTDOWN || record == END_OF_RECOVERY ->
#ifndef STATUS_KEPT_AT_SHUTDOWN
			status = UNKNOWN; printf("standby: replays the end of a primary\n")
#endif
		:: record == REDO
		:: record >= MESSAGE && record < COMMIT -> got[x] = record - x		/* add_message() */
		:: record >= COMMIT ->			/* xact_redo(), of PostgreSQL */
			visible = visible | BIT(x); printf("standby: T%d is visible\n", x)
		fi }
		decide_counting(record >= COMMIT);
		atomic {
			if
			:: record >= COMMIT ->		/* end_by_commit() */
				if
				:: got[x] == MESSAGE -> count_and_publish(x); printf("standby: counts T%d\n", x)
				:: got[x] == LEFT_OUT && replicates ->
					/* pinpoint_primary_status_left_out() */
					counter++; place = counter; evicted = listening;
					printf("standby: counts all channels for T%d\n", x)
				:: got[x] == 0 && record - x == MARKED_COMMIT ->
					/* disconnect_listeners() */
					raise_floor(); evicted = listening;
					printf("standby: raises the floor for T%d\n", x)
				:: else
				fi;
				done = done | BIT(x)
			:: else
			fi;
			replayed++;
			if
			:: replayed == nwal && (record == REDO || life > 1) ->
				/* What was before is never replayed again. */
				do
				:: nwal > 0 -> nwal--; wal[nwal] = 0
				:: else -> break
				od;
				replayed = 0; consistent_at = 0
			:: else
			fi;
			record = 0; x = 0; replaying = false
		}
	:: replayed == nwal && in_recovery && MAY_BE_EXACT != replicates ->
		decide_counting(false)			/* standby_redo_running(): a record without effect here */
	:: atomic { HAPPENS(RELOAD_STANDBY) && in_recovery ->
		PAID; setting = !setting; printf("standby: reload, replicate %d\n", setting) }
	:: atomic { (HAPPENS(RESTART_STANDBY) || HAPPENS(BACKUP)) && in_recovery && life == 1 ->
		/* message_startup(), pinpoint_positions_shmem_init() */
		PAID;
		if
		:: CAN(RESTART_STANDBY) -> printf("standby: restart\n")
		:: CAN(BACKUP) -> printf("standby: made anew from a backup\n")
		fi;
		life++;
		consistent_at = replayed; replayed = 0;
		status = UNKNOWN; missed = true; counter = 0; floor = 0; place = 0;
#ifdef OPTIMISTIC
		replicates = setting;
#else
		replicates = false;
#endif
		got[0] = 0;
#if NX > 1
		got[1] = 0;
#endif
		listening = false; evicted = false; looking = false;
#ifndef INCARNATION_KEPT
		valid = false
#endif
		}
	:: atomic { HAPPENS(PROMOTE) && in_recovery && replayed == nwal ->
		PAID; server = 9; library = false; printf("standby: promotion\n") }
		/* message_cleanup(), before RecoveryInProgress() returns false. */
#ifndef NO_FLOOR_AT_PROMOTION
		atomic {
			raise_floor();
			if
#ifndef MISSED_IGNORED
			:: missed -> evicted = listening
#endif
			:: else
			fi
		}
#endif
		in_recovery = false
	od
}

/* The waker of the standby: pinpoint_heartbeat_send(). */
active proctype standby_waker()
{
	do
	:: CAN(HEARTBEATS) && listening && (replicates || !in_recovery) ->
		atomic {
			if
			:: listening && !evicted && !looking ->
				position = counter; valid = true; printf("client: heartbeat %d\n", counter)
			:: else
			fi
		}
	od
}

active proctype client()
{
	byte my_life, next;
	bool all, changed, must_change, never_omitted;

	do
	:: atomic { (replayed >= consistent_at || !in_recovery) ->
		my_life = life;
		if
		:: evicted -> listening = false; evicted = false; goto next_round
		:: !evicted && !listening && CAN(HEARTBEATS) -> listening = true
		:: !evicted
		fi;
		looking = true;
		/* pinpoint_positions_begin_look() */
		must_change = (done & ~known) != 0;
		all = in_recovery && !replicates
		}
		{
#ifdef PLACE_BEFORE_COUNTER
			changed = position < floor || position < place;
			atomic {
				next = counter;
#else
			next = counter;
			atomic {
				changed = position < floor || position < place;
#endif
				changed = changed || !valid || all;
				never_omitted = changed || !must_change;
				printf("client: asks since %d: changed %d, next position %d\n", position, changed, next);
				assert(never_omitted);
				position = next; valid = true;
				next = 0; must_change = false; all = false; never_omitted = false
			}
			if
			:: changed -> known = known | visible	/* the client reads its tables */
			:: else
			fi;
			atomic { looking = false; changed = false }
		} unless { life != my_life };
next_round:
		skip
	od
}

/* When everything is replayed, and nothing is left to write. */
active proctype end()
{
	bool exact_again;

	atomic {
		library && replicate && !busy && !TO_WRITE && marks == 0 &&
		in_recovery && setting && replayed == nwal && MAY_BE_EXACT == replicates ->
		exact_again = replicates;
		assert(exact_again)
	}
}

init
{
	atomic {
		if
		:: replicate = true
		:: replicate = false
		fi;
		if
		:: setting = true
		:: setting = false
		fi;
		run session(0)
#if NX > 1
		; run session(1)
#endif
	}
}
