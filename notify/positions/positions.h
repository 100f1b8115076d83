/*-------------------------------------------------------------------------
 *
 * positions.h
 *		Positions: which channels were notified since a given time.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_POSITIONS_H
#define PINPOINT_POSITIONS_H

#include "nodes/pg_list.h"
#include "queue/batch.h"

/* The start of a query; see pinpoint_positions_begin_look(). */
typedef struct PinpointLook
{
	uint64		counter;		/* the next position */
	bool		all;			/* all channels have changed */
} PinpointLook;

extern Size pinpoint_positions_shmem_size(void);
extern void pinpoint_positions_shmem_init(void *memory);
extern void pinpoint_positions_compute(PinpointBatch *batch);
extern void pinpoint_positions_compute_channels(List *channels);
extern void pinpoint_positions_count(void);
extern void pinpoint_positions_count_database(void);
extern void pinpoint_positions_count_all_of(Oid dboid);
extern uint64 pinpoint_positions_counter(void);
extern void pinpoint_positions_raise_floor(void);
extern void pinpoint_positions_raise_floor_locked(void);
extern void pinpoint_positions_wake(void);
extern bool pinpoint_positions_replicates(void);
extern void pinpoint_positions_set_replicates(bool replicates);
extern void pinpoint_positions_enter_waiter(char (*channels)[NAMEDATALEN],
											int nchannels);
extern void pinpoint_positions_begin_look(PinpointLook *look);
extern bool pinpoint_positions_all_changed(uint64 counter);
extern bool pinpoint_positions_changed(const char *channel, uint64 counter);

#endif							/* PINPOINT_POSITIONS_H */
