/*-------------------------------------------------------------------------
 *
 * slots_read.h
 *		What a process reads of the slots of all sessions.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_SLOTS_READ_H
#define PINPOINT_SLOTS_READ_H

#include "datatype/timestamp.h"
#include "wakeup/slots.h"

/* A session as in the view pinpoint.stat_listeners. */
typedef struct PinpointListenerStats
{
	int			slotno;
	PinpointSlot slot;
	Oid			roleid;			/* role that has connected */
	uint64		backlog_bytes;	/* bytes published from the first unread batch
								 * on */
	uint64		backlog_batches;	/* number of publications from that batch
									 * on */
	TimestampTz oldest_unread;	/* time of publication of the first unread
								 * batch; 0 if there is none */
} PinpointListenerStats;

extern uint64 pinpoint_slot_first_sequence(const PinpointSlot *slot);
extern uint64 pinpoint_slot_lag(const PinpointSlot *slot);
extern int	pinpoint_slot_listener_pid(const PinpointSlot *slot);
extern int	pinpoint_slots_mark_listeners(Oid dboid, bool *listens);
extern int	pinpoint_slots_heartbeat_databases(Oid *dboids);
extern int	pinpoint_slots_copy(PinpointListenerStats *copy);

#endif							/* PINPOINT_SLOTS_READ_H */
