/*-------------------------------------------------------------------------
 *
 * wakeup.h
 *		Whom to wake, and how often.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAKEUP_H
#define PINPOINT_WAKEUP_H

#include "batch.h"
#include "datatype/timestamp.h"

/* What a session's slot says about its next wakeup; see wakeup.c. */
typedef enum PinpointWakeState
{
	PINPOINT_IDLE,				/* nothing unread */
	PINPOINT_SIGNALLED,			/* unread batches, signal under way */
	PINPOINT_READING,			/* reads what there was when it began */
	PINPOINT_READING_AGAIN		/* as before, and there is more by now */
} PinpointWakeState;

/*
 * One per possible session, indexed by PINPOINT_MY_SLOT_NUMBER.  All fields
 * are protected by PinpointOrderLock; the owner may look at state, reminders
 * and given_up without it.
 */
typedef struct PinpointSlot
{
	int			pid;			/* owner, 0 if it does not listen */
	Oid			dboid;			/* the owner's database */
	PinpointWakeState state;
	PinpointBatch *unread;		/* pinned batch to read first, NULL if IDLE */
	uint64		unread_sequence;	/* its number of publication */
	uint64		unread_position;	/* bytes published before it */
	uint64		marked;			/* publication that last found this listener */
	uint64		joined;			/* number of its last LISTEN; see wakeup.c */
	TimestampTz signalled_at;	/* when it was signalled last; 0 if not known */
	uint32		reminders;		/* signals since it is SIGNALLED, less one */
	uint32		nchannels;		/* channels it is listening on */
	uint64		wakeups;		/* signals sent to it */
	uint64		delivered;		/* notifications handed to its client */
	bool		given_up;		/* it was told to end, being too far behind */
} PinpointSlot;

extern Size pinpoint_wakeup_shmem_size(void);
extern void pinpoint_wakeup_shmem_init(void);
extern void pinpoint_wakeup_prepare(void);
extern void pinpoint_wakeup_register(void);
extern void pinpoint_wakeup_unregister(void);
extern bool pinpoint_wakeup_registered(void);
extern void pinpoint_wakeup_join(void);
extern void pinpoint_wakeup_set_channels(uint32 nchannels);
extern void pinpoint_wakeup_find_early(PinpointBatchLayout *layout);
extern int	pinpoint_wakeup_find(PinpointBatch *batch, uint64 mark);
extern void pinpoint_wakeup_collect(PinpointBatch *batch, int nfound);
extern void pinpoint_wakeup_send(void);
extern void pinpoint_wakeup_remind(void);
extern int	pinpoint_wakeup_furthest_behind(void);
extern int	pinpoint_wakeup_give_up(Size limit, int *pids);
extern bool pinpoint_wakeup_given_up(void);
extern bool pinpoint_wakeup_pending(void);
extern bool pinpoint_wakeup_reminded(void);
extern bool pinpoint_wakeup_begin_reading(PinpointBatch **first,
										  PinpointBatch **last);
extern void pinpoint_wakeup_advance(PinpointBatch *next);
extern bool pinpoint_wakeup_end_reading(PinpointBatch *last,
										uint64 delivered);
extern int	pinpoint_wakeup_slots(PinpointSlot *copy, uint64 *backlog);
extern uint64 pinpoint_wakeup_total(void);

#endif							/* PINPOINT_WAKEUP_H */
