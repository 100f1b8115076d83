/*-------------------------------------------------------------------------
 *
 * evict.h
 *		Ends sessions of listeners that block others.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_EVICT_H
#define PINPOINT_EVICT_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "portability/instr_time.h"
#include "storage/proc.h"

#include "wakeup/slots.h"

/*
 * Does replay wait for this process, which has been sending notifications since
 * a time?  The time is 0 if the process has been evicted already.
 */
typedef bool (*PinpointBlocksReplay) (PGPROC *proc, TimestampTz since);

extern Size pinpoint_evict_shmem_size(void);
extern void pinpoint_evict_shmem_init(void *memory);
extern void pinpoint_evict_again(void);
extern void pinpoint_evict_lagging(Size limit);
extern int	pinpoint_evict_oldest(int divisor);
extern bool pinpoint_evict_wait(const instr_time *began);
extern int	pinpoint_evict_database(Oid dboid, PinpointEviction reason,
									void (*with_lock) (void));
extern void pinpoint_evict_listeners(List *channels, PinpointEviction reason,
									 void (*with_lock) (void));
extern int	pinpoint_evict_heartbeat_listeners(Oid dboid,
											   void (*with_lock) (void));
extern int	pinpoint_evict_senders(PinpointBlocksReplay blocks, bool *any);

#endif							/* PINPOINT_EVICT_H */
