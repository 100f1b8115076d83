/*-------------------------------------------------------------------------
 *
 * wake_state.h
 *		The state of a slot, and why its session was told to end.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAKE_STATE_H
#define PINPOINT_WAKE_STATE_H

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

/* The reason why a session was told to end.  See listener/evict.c. */
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

/* Of a session; see slot_private.h. */
typedef struct PinpointSlot PinpointSlot;

#endif							/* PINPOINT_WAKE_STATE_H */
