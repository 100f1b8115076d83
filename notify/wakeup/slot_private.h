/*-------------------------------------------------------------------------
 *
 * slot_private.h
 *		The fields of the slots, for the files of this folder only.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_SLOT_PRIVATE_H
#define PINPOINT_SLOT_PRIVATE_H

#include "lib/ilist.h"
#include "port/atomics.h"
#include "storage/proc.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/locks.h"
#include "queue/message_log.h"
#include "wakeup/wake_state.h"

/*
 * Written by the owner, under PinpointOrderLock in shared mode, and by other
 * sessions under the exclusive lock.  Read under the lock in any mode.  The
 * owner reads state, reminders and evicted without the lock, and also the
 * fields that no other session changes.
 *
 * pinpoint_slot_register() clears the fields from roleid on.
 */
typedef struct PinpointSlotState
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
	PinpointBatchRef reassigned;	/* first batch with a notification that
									 * was reassigned to it; its epoch is
									 * pinned; its bytes are those published
									 * before the reassignment */
	PinpointBatchRef reassigned_again;	/* while READING_AGAIN: the same for
										 * notifications that were reassigned
										 * to it since it began to read */
	TimestampTz signalled_at;	/* time of the last reminder, or when senders
								 * first saw it SIGNALLED; 0 if not known */
	uint32		reminders;		/* number of reminders since it became
								 * SIGNALLED */
	uint64		delivered;		/* number of notifications delivered to it */
	bool		shares;			/* a notification may be assigned to it, or it
								 * still has to reassign one */
	bool		heartbeats;		/* it listens on the channel of heartbeats */
	bool		missed;			/* it may have missed notifications, so it
								 * must not begin to listen there, except in
								 * the transaction in which it registered */
	PinpointEviction evicted;	/* reason why it was told to end */
	TimestampTz evicted_at;		/* time of that */
	TimestampTz rests_from;		/* while RESTING: time of its last delivery */
	TimestampTz rests_until;	/* while RESTING: time at which it will check */
} PinpointSlotState;

/*
 * Written under PinpointOrderLock in exclusive mode, and read under it in any
 * mode.  But when the owner begins to listen, it initializes them in shared
 * mode: no other session uses them while pid is 0.  The owner also reads
 * wakes_for_all without the lock: only the owner changes it.
 */
typedef struct PinpointSlotPublication
{
	uint64		marked;			/* number of the publication that found this
								 * listener last */
	uint64		wakeups;		/* number of signals to it */
	bool		wakes_for_all;	/* all publications in its database find it,
								 * because its channels do not fit into the
								 * channel map, or are not known yet */
	dlist_node	wakes_for_all_link; /* link of a list in PinpointSlots, if
									 * wakes_for_all is set */
} PinpointSlotPublication;

/*
 * A slot of a session.  The index is PINPOINT_MY_SLOT_NUMBER.  It begins on a
 * cache line.  Its owner writes nothing of it in a transaction in which it
 * neither reads notifications nor changes its channels.  Publishers read and
 * write most of it.
 *
 * The first two fields have a lock: the functions below check it.  The others
 * are written by the owner, and read by all sessions, without a lock.
 */
struct PinpointSlot
{
	PinpointSlotState locked_state;
	PinpointSlotPublication locked_publication;

	uint32		nchannels;		/* number of channels of the owner, for the
								 * views */
	bool		ending;			/* the owner reports why its session ends */
	pg_atomic_uint64 last_listen;	/* number of the last LISTEN of the owner;
									 * see wakeup.c */
	pg_atomic_uint64 sending_since; /* time since when the owner has been
									 * sending notifications; 0 if it does not */
}			pg_attribute_aligned(PG_CACHE_LINE_SIZE);

StaticAssertDecl(sizeof(PinpointSlot) % PG_CACHE_LINE_SIZE == 0,
				 "a slot begins on a cache line");

/* Number of lists of slots with wakes_for_all. */
#define PINPOINT_NWAKES_FOR_ALL	64

/*
 * Protected by PinpointOrderLock, with exceptions; for slots, see
 * PinpointSlot.
 */
typedef struct PinpointSlots
{
	pg_atomic_uint64 last_listen;	/* number of the last LISTEN; no lock */
	dlist_head	wakes_for_all[PINPOINT_NWAKES_FOR_ALL]; /* lists of the slots
														 * with wakes_for_all,
														 * by database */
	pg_atomic_uint64 fold_time; /* processor time of all deliveries with
								 * pinpoint.fold, in us; no lock */
	TimestampTz last_reminders; /* time of the last check for slots that need
								 * a reminder; also read without the lock */
	pg_atomic_uint32 nevicted;	/* number of slots whose owner was told to
								 * end; no lock */
	PinpointSlot slots[FLEXIBLE_ARRAY_MEMBER];	/* array of MaxBackends
												 * elements */
} PinpointSlots;

extern PinpointSlots *PinpointSlotsShared;

/*
 * Is this the slot of this session?
 */
static inline bool
is_mine(const PinpointSlot *slot)
{
	return slot - PinpointSlotsShared->slots == PINPOINT_MY_SLOT_NUMBER;
}

/*
 * The list of the slots with wakes_for_all that contains those of a database,
 * and possibly of a few others.
 */
static inline dlist_head *
wakes_for_all_in(Oid dboid)
{
	return &PinpointSlotsShared->wakes_for_all[dboid % PINPOINT_NWAKES_FOR_ALL];
}

/*
 * The fields of a slot, by the rule of their lock.  The caller may read what
 * readable() and read_publication() return, and also write what the other two
 * return.
 */
static inline const PinpointSlotState *
readable(const PinpointSlot *slot)
{
	Assert(is_mine(slot) || !IsUnderPostmaster ||
		   LWLockHeldByMe(PinpointOrderLock));
	return &slot->locked_state;
}

/*
 * Without the lock: the values may be outdated, and do not belong together.
 * For pid and dboid, see slots_read.c.  How ready the members of a group are
 * is only a hint, and proc of a member is valid, because it is never cleared.
 */
static inline const volatile PinpointSlotState *
read_unlocked(const PinpointSlot *slot)
{
	return &slot->locked_state;
}

static inline PinpointSlotState *
writable(PinpointSlot *slot)
{
	Assert(!IsUnderPostmaster ||
		   LWLockHeldByMeInMode(PinpointOrderLock, LW_EXCLUSIVE) ||
		   (is_mine(slot) && LWLockHeldByMe(PinpointOrderLock)));
	return &slot->locked_state;
}

static inline const PinpointSlotPublication *
read_publication(const PinpointSlot *slot)
{
	Assert(is_mine(slot) || !IsUnderPostmaster ||
		   LWLockHeldByMe(PinpointOrderLock));
	return &slot->locked_publication;
}

static inline PinpointSlotPublication *
write_publication(PinpointSlot *slot)
{
	AssertHeldExclusive(PinpointOrderLock);
	return &slot->locked_publication;
}

#endif							/* PINPOINT_SLOT_PRIVATE_H */
