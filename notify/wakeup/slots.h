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
#include "queue/message_log.h"
#include "wakeup/wake_state.h"

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
extern void pinpoint_slot_set_ending(bool ending);
extern uint64 pinpoint_slots_add_fold_time(uint64 time);
extern void pinpoint_slot_set_sending(TimestampTz since);
extern bool pinpoint_slot_begin_reading(PinpointReading *reading);
extern void pinpoint_slot_advance(PinpointBatch *next);
extern bool pinpoint_slot_end_reading(uint64 delivered, TimestampTz rests_from,
									  TimestampTz rests_until);

extern bool pinpoint_slot_evict(int slotno, PinpointEviction reason,
								bool *trim_needed);
extern void pinpoint_slot_set_missed(int slotno);

#ifdef USE_ASSERT_CHECKING
extern void pinpoint_slots_check(bool always);
#else
#define pinpoint_slots_check(always)	((void) 0)
#endif

#endif							/* PINPOINT_SLOTS_H */
