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
#include "wakeup/wake_state.h"

/* A session as in the view pinpoint.stat_listeners. */
typedef struct PinpointListenerStats
{
	int			pid;
	Oid			dboid;
	Oid			roleid;			/* role that has connected */
	PinpointWakeState state;
	uint32		nchannels;
	uint64		wakeups;
	uint64		delivered;
	bool		wakes_for_all;
	uint64		backlog_bytes;	/* bytes published from the first unread batch
								 * on */
	uint64		backlog_batches;	/* number of publications from that batch
									 * on */
	TimestampTz oldest_unread;	/* time of publication of the first unread
								 * batch; 0 if there is none */
} PinpointListenerStats;

/* A session that may have to be evicted. */
typedef struct PinpointSlotOwner
{
	int			pid;
	Oid			dboid;
	struct PGPROC *proc;
	PinpointEviction evicted;
	TimestampTz evicted_at;
	bool		ending;			/* it reports why its session ends */
	bool		heartbeats;
	bool		wakes_for_all;
	TimestampTz sending_since;	/* 0 if it does not send */
	uint64		first_sequence; /* number of the first publication that it
								 * pins; 0 if there is none */
	uint64		lag;			/* its backlog in bytes */
} PinpointSlotOwner;

extern bool pinpoint_slots_read_any_evicted(void);
extern bool pinpoint_slots_read_owner(int slotno, PinpointSlotOwner *owner);
extern int	pinpoint_slots_read_listener_pid(const PinpointSlot *slot);
extern int	pinpoint_slots_read_pid(int slotno);
extern int	pinpoint_slots_read_listeners(Oid dboid, bool *listens);
extern int	pinpoint_slots_read_heartbeat_databases(Oid *dboids);
extern int	pinpoint_slots_read_all(PinpointListenerStats *copy);

#endif							/* PINPOINT_SLOTS_READ_H */
