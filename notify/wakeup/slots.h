/*-------------------------------------------------------------------------
 *
 * slots.h
 *		One slot per listening session: its state, and its position in the log.
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

/* What a slot says about the next wakeup of its session; see slots.c. */
typedef enum PinpointWakeState
{
	PINPOINT_IDLE,				/* nothing unread */
	PINPOINT_RESTING,			/* likewise, and will look by itself */
	PINPOINT_SIGNALLED,			/* unread batches, signal under way */
	PINPOINT_READING,			/* reads what there was when it began */
	PINPOINT_READING_AGAIN		/* as before, and there is more by now */
} PinpointWakeState;

/* Was a session told to end, and why?  See listener/eviction.c. */
typedef enum PinpointEviction
{
	PINPOINT_NOT_EVICTED = 0,
	PINPOINT_EVICTED_LAGGING,	/* behind by more than
								 * pinpoint.max_listener_lag */
	PINPOINT_EVICTED_QUEUE_FULL,	/* replay needs the room that it keeps */
	PINPOINT_EVICTED_NO_ROOM,	/* a transaction does not fit into the queue */
	PINPOINT_EVICTED_INCOMPLETE,	/* the WAL has but a part of them */
	PINPOINT_EVICTED_NEWER_FORM,	/* the primary has a newer version */
	PINPOINT_EVICTED_BEFORE_REDO,	/* they may be in the WAL before the place
									 * where replay began */
	PINPOINT_EVICTED_REPLICATE_OFF, /* the primary does not replicate */
	PINPOINT_EVICTED_UNREPLICATED,	/* replicate was off, and heartbeats go on */
	PINPOINT_EVICTED_REPLAY_WAITS	/* replay waits for it */
} PinpointEviction;

/*
 * Indexed by PINPOINT_MY_SLOT_NUMBER.
 *
 * The fields of the first group are written by the owner, who holds
 * PinpointOrderLock at least in shared mode, and by others, who hold it
 * exclusively.  The owner may look at state, reminders and evicted without it, and
 * pinpoint_slots_mark_listeners() at pid and dboid.
 * Those of the second group are written by whoever holds it exclusively, and by the
 * owner in shared mode when it begins to listen: nobody uses them while pid is 0.
 * Those of the third group are written by the owner, and read by anybody, without a
 * lock.
 */
typedef struct PinpointSlot
{
	int			pid;			/* owner, 0 if it does not listen */
	Oid			dboid;			/* the owner's database */
	struct PGPROC *proc;		/* the owner */
	Oid			roleid;			/* its session user when it began to listen: the
								 * group with which it shares channels */
	PinpointWakeState state;
	PinpointPosition unread;	/* to read first; its epoch is pinned; none if
								 * IDLE or evicted */
	PinpointPosition again;		/* while READING_AGAIN: the first that was
								 * published for it since it began */
	PinpointPosition reassigned;	/* the first with something that was
									 * reassigned to it; its epoch is pinned;
									 * its bytes are those published before
									 * the reassignment */
	bool		reassigned_again;	/* something was reassigned to it since it
									 * began to read */
	TimestampTz signalled_at;	/* when it was signalled last; 0 if not known */
	uint32		reminders;		/* signals since it is SIGNALLED, less one */
	uint64		delivered;		/* notifications handed to its client */
	bool		shares;			/* something may be given to it, or is to be
								 * handed on by it */
	bool		heartbeats;		/* listens on the channel of the heartbeat */
	PinpointEviction evicted;	/* it was told to end */
	TimestampTz rests_from;		/* while RESTING: since when, */
	TimestampTz rests_until;	/* and when it is going to look */

	uint64		marked;			/* publication that last found this listener */
	uint64		wakeups;		/* signals sent to it */
	bool		wakes_for_all;	/* everything in its database is for it, as its
								 * channels do not fit into the channel map */
	dlist_node	wakes_for_all_link; /* in PinpointSlots, if so */

	/*
	 * These outlive the owner, as the list of slots that the waker is to
	 * signal may contain a slot whose owner has gone.
	 */
	bool		queued_for_waker;	/* in that list */
	int			next;			/* the one behind it there, -1 for none */

	uint32		nchannels;		/* channels its owner is listening on, for the
								 * views */
	pg_atomic_uint64 joined;	/* number of its owner's last LISTEN; see
								 * wakeup.c */
	pg_atomic_uint64 sending_since; /* when its owner began to send
									 * notifications, 0 if it does something
									 * else */
} PinpointSlot;

/* What a session is to read; see delivery.c. */
typedef struct PinpointReading
{
	PinpointBatch *reassigned;	/* the first with something reassigned; NULL
								 * if there is none */
	PinpointBatch *first;		/* the first unread one; NULL if there is none */
	PinpointBatch *last;		/* up to here */
	bool		queued_for_waker;	/* the signal for it is left to the waker,
									 * which does not send it to a session
									 * that reads first */
} PinpointReading;

/* What the view pinpoint.stat_listeners shows of a session. */
typedef struct PinpointListenerStats
{
	int			slotno;
	PinpointSlot slot;
	Oid			roleid;			/* who is connected */
	uint64		backlog_bytes;	/* published since the first unread batch, */
	uint64		backlog_batches;	/* including that */
	TimestampTz oldest_unread;	/* when that was published; 0 if all is read */
} PinpointListenerStats;

/* What the waker is to do next, and who it is; see wakeup.c. */
typedef struct PinpointWakerQueue
{
	struct Latch *waker;		/* NULL if there is none */
	int			first;			/* list of slots, -1 if empty */
	int			last;
} PinpointWakerQueue;

/* Protected by PinpointOrderLock, but for joined. */
typedef struct PinpointSlots
{
	pg_atomic_uint64 joined;	/* number of the last LISTEN; needs no lock */
	PinpointWakerQueue waker_queue;
	dlist_head	wakes_for_all;	/* the slots with wakes_for_all */
	TimestampTz last_reminders; /* when somebody looked last; read without the
								 * lock, too */
	PinpointSlot slots[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends of them */
} PinpointSlots;

extern PinpointSlots *PinpointSlotArray;

extern Size pinpoint_slots_shmem_size(void);
extern void pinpoint_slots_shmem_init(void);
extern void pinpoint_slot_register(void);
extern void pinpoint_slot_unregister(void);
extern bool pinpoint_slot_registered(void);
extern Oid	pinpoint_slot_role(void);
extern void pinpoint_slot_join(void);
extern void pinpoint_slot_set_wakes_for_all(bool wakes_for_all);
extern void pinpoint_slot_set_shares(bool shares);
extern void pinpoint_slot_set_heartbeats(bool heartbeats);
extern void pinpoint_slot_set_channels(uint32 nchannels);
extern bool pinpoint_slot_set_position(PinpointPosition *place,
									   const PinpointPosition *position);
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
extern uint64 pinpoint_slot_first_sequence(const PinpointSlot *slot);
extern uint64 pinpoint_slot_lag(const PinpointSlot *slot);
extern int	pinpoint_slots_mark_listeners(Oid dboid, bool *listens);
extern int	pinpoint_slots_heartbeat_databases(Oid *dboids);
extern int	pinpoint_slots_copy(PinpointListenerStats *copy);

#endif							/* PINPOINT_SLOTS_H */
