/*-------------------------------------------------------------------------
 *
 * slots.h
 *		One slot per listening session: its state, and what it has not read.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_SLOTS_H
#define PINPOINT_SLOTS_H

#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "port/atomics.h"
#include "queue/message_log.h"

/*
 * The state of a slot, which determines whether a batch needs a signal; see
 * slots.c.
 */
typedef enum PinpointWakeState
{
	PINPOINT_IDLE,				/* no unread batch */
	PINPOINT_RESTING,			/* no unread batch; checks by itself */
	PINPOINT_SIGNALLED,			/* unread batches; a signal is pending, or it
								 * checks by itself */
	PINPOINT_READING,			/* reads the batches that existed when it
								 * began */
	PINPOINT_READING_AGAIN		/* likewise; it must read again */
} PinpointWakeState;

/*
 * Milliseconds between two checks for slots that need a reminder, and from the
 * first check that finds a slot SIGNALLED to its first reminder; see wakeup.c.
 */
#define PINPOINT_REMINDER_INTERVAL	1000

/* The reason why a session was told to end.  See listener/eviction.c. */
typedef enum PinpointEviction
{
	PINPOINT_NOT_EVICTED = 0,
	PINPOINT_EVICTED_LAGGING,	/* its backlog exceeds
								 * pinpoint.max_listener_lag */
	PINPOINT_EVICTED_QUEUE_FULL,	/* replay needs the space that it pins */
	PINPOINT_EVICTED_NO_ROOM,	/* the notifications of a transaction do not
								 * fit into the queue */
	PINPOINT_EVICTED_INCOMPLETE,	/* the notifications of a transaction are
									 * incomplete in the WAL */
	PINPOINT_EVICTED_NEWER_FORM,	/* the primary has a newer version */
	PINPOINT_EVICTED_BEFORE_REDO,	/* the notifications of a transaction may
									 * be before the LSN where replay began */
	PINPOINT_EVICTED_REPLICATE_OFF, /* the primary does not replicate */
	PINPOINT_EVICTED_UNREPLICATED,	/* notifications may not have been
									 * replicated, and heartbeats continue */
	PINPOINT_EVICTED_REPLAY_WAITS,	/* replay waits for its client */
	PINPOINT_EVICTED_PREPARED	/* the changes of a prepared transaction could
								 * not be notified */
} PinpointEviction;

/*
 * A slot of a session.  The index is PINPOINT_MY_SLOT_NUMBER.
 *
 * Fields of the first group are written by the owner, under PinpointOrderLock
 * in shared mode, and by other sessions under the exclusive lock.  The owner
 * reads state, reminders and evicted without the lock, and also the fields
 * that no other session changes.  pinpoint_slots_mark_listeners() reads pid
 * and dboid without it.
 *
 * Fields of the second and the third group are written under the exclusive
 * lock.  But when the owner begins to listen, it initializes those of the
 * second group in shared mode: no other session uses them while pid is 0.
 *
 * Fields of the last group are written by the owner, and read by all sessions,
 * without a lock.
 */
typedef struct PinpointSlot
{
	int			pid;			/* PID of the owner; 0 if it does not listen */
	Oid			dboid;			/* database of the owner */
	struct PGPROC *proc;		/* the owner */
	Oid			roleid;			/* session user of the owner when it began to
								 * listen: it shares channels with sessions of
								 * this role */
	PinpointWakeState state;	/* changed only by change_state() of slots.c */
	PinpointBatchRef unread;	/* first unread batch; its epoch is pinned;
								 * none if IDLE or RESTING, or if only
								 * reassigned notifications are unread;
								 * possibly none if evicted */
	PinpointBatchRef again;		/* while READING_AGAIN: first batch published
								 * for it since it began; none if there are
								 * only reassigned notifications */
	PinpointBatchRef reassigned;	/* first batch with a notification that was
									 * reassigned to it; its epoch is pinned;
									 * its bytes are those published before the
									 * reassignment */
	bool		reassigned_again;	/* a notification was reassigned to it
									 * since it began to read */
	TimestampTz signalled_at;	/* time of the last reminder, or when senders
								 * first saw it SIGNALLED; 0 if not known */
	uint32		reminders;		/* number of reminders since it became
								 * SIGNALLED */
	uint64		delivered;		/* number of notifications delivered to it */
	bool		shares;			/* a notification may be assigned to it, or it
								 * still has to reassign one */
	bool		heartbeats;		/* it listens on the channel of heartbeats */
	bool		missed;			/* it may have missed notifications, so it must
								 * not begin to listen there, except in the
								 * transaction in which it registered */
	PinpointEviction evicted;	/* reason why it was told to end */
	TimestampTz rests_from;		/* while RESTING: time of its last delivery */
	TimestampTz rests_until;	/* while RESTING: time at which it will
								 * check */

	uint64		marked;			/* number of the publication that found this
								 * listener last */
	uint64		wakeups;		/* number of signals to it */
	bool		wakes_for_all;	/* all publications in its database find it,
								 * because its channels do not fit into the
								 * channel map, or are not known yet */
	dlist_node	wakes_for_all_link;	/* link of the list in PinpointSlots, if
									 * wakes_for_all is set */

	/*
	 * These fields remain when the owner ends, because the list of the waker
	 * can contain the slot of a session that has ended.
	 */
	bool		queued_for_waker;	/* the slot is in that list */
	int			next;			/* next slot of that list, -1 if there is
								 * none */

	uint32		nchannels;		/* number of channels of the owner, for the
								 * views */
	pg_atomic_uint64 joined;	/* number of the last LISTEN of the owner; see
								 * wakeup.c */
	pg_atomic_uint64 sending_since;	/* time since when the owner has been
									 * sending notifications; 0 if it does
									 * not */
	pg_atomic_uint32 commit_mark;	/* also of a process that does not listen;
									 * see replication_status.c */
} PinpointSlot;

/* The batches that a session reads; see delivery.c. */
typedef struct PinpointReading
{
	PinpointBatch *reassigned;	/* first batch with a reassigned notification;
								 * NULL if there is none */
	PinpointBatch *first;		/* first unread batch; NULL if there is none */
	PinpointBatch *last;		/* last batch to read */
	bool		queued_for_waker;	/* the slot is in the list of the waker,
									 * which sends no signal to a session that
									 * has begun to read */
} PinpointReading;

/* Number of slots that are taken from the list of the waker at a time. */
#define PINPOINT_SIGNALS_PER_ROUND	16

/*
 * The waker, and its list of slots to signal; see publication.c.
 *
 * in_hand: the slots that were taken from the list last.  The process that has
 * taken them may not have signalled them yet.
 */
typedef struct PinpointWakerQueue
{
	struct Latch *waker;		/* its latch; NULL if there is no waker */
	int			first;			/* first slot of the list, -1 if it is empty */
	int			last;
	int			nin_hand;
	int			in_hand[PINPOINT_SIGNALS_PER_ROUND];
} PinpointWakerQueue;

/* See waker_progress.c.  No lock. */
typedef struct PinpointWakerProgress
{
	pg_atomic_uint64 wanted;
	pg_atomic_uint64 finished;
	pg_atomic_uint64 rounds;
	pg_atomic_uint64 seen_rounds;
	pg_atomic_uint64 seen_at;	/* a TimestampTz */
} PinpointWakerProgress;

/*
 * Protected by PinpointOrderLock, with exceptions; for slots, see
 * PinpointSlot.
 */
typedef struct PinpointSlots
{
	pg_atomic_uint64 joined;	/* number of the last LISTEN; no lock */
	PinpointWakerQueue waker_queue;
	PinpointWakerProgress waker_progress;
	dlist_head	wakes_for_all;	/* list of the slots with wakes_for_all */
	TimestampTz last_reminders; /* time of the last check for slots that need a
								 * reminder; also read without the lock */
	PinpointSlot slots[FLEXIBLE_ARRAY_MEMBER];	/* array of MaxBackends
												 * elements */
} PinpointSlots;

extern PinpointSlots *PinpointSharedSlots;

extern Size pinpoint_slots_shmem_size(void);
extern void pinpoint_slots_shmem_init(void *memory);
extern void pinpoint_slot_register(void);
extern void pinpoint_slot_unregister(void);
extern bool pinpoint_slot_registered(void);
extern Oid	pinpoint_slot_role(void);
extern void pinpoint_slot_join(void);
extern void pinpoint_slot_set_wakes_for_all(bool wakes_for_all);
extern void pinpoint_slot_set_shares(bool shares);
extern bool pinpoint_slot_set_heartbeats(bool heartbeats, bool begins);
extern void pinpoint_slot_set_channels(uint32 nchannels);
extern bool pinpoint_slot_set_ref(PinpointBatchRef *field,
								  const PinpointBatchRef *ref);
extern bool pinpoint_slot_publish(PinpointSlot *slot,
								  const PinpointBatchRef *ref);
extern bool pinpoint_slot_reassign(PinpointSlot *slot,
								   const PinpointBatchRef *ref);
extern bool pinpoint_slot_pending(void);
extern bool pinpoint_slot_resting(void);
extern bool pinpoint_slot_to_look(void);
extern void pinpoint_slot_stop_resting(void);
extern bool pinpoint_slot_reminded(void);
extern PinpointEviction pinpoint_slot_evicted(void);
extern void pinpoint_slot_set_sending(TimestampTz since);
extern bool pinpoint_slot_begin_reading(PinpointReading *reading);
extern void pinpoint_slot_advance(PinpointBatch *next);
extern bool pinpoint_slot_end_reading(uint64 delivered, TimestampTz rests_from,
									  TimestampTz rests_until);

#ifdef USE_ASSERT_CHECKING
extern void pinpoint_slots_check(bool always);
#else
#define pinpoint_slots_check(always)	((void) 0)
#endif

#endif							/* PINPOINT_SLOTS_H */
