/*-------------------------------------------------------------------------
 *
 * eviction.h
 *		Ends sessions of listeners that block others.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_EVICTION_H
#define PINPOINT_EVICTION_H

#include "datatype/timestamp.h"
#include "wakeup/slots.h"

extern void pinpoint_eviction_init(void);
extern int	pinpoint_furthest_behind(Oid *dboid, uint64 *lag);
extern int	pinpoint_evict_lagging(Size limit);
extern int	pinpoint_evict_oldest(int divisor);
extern bool pinpoint_eviction_wait(int *waited);
extern int	pinpoint_evict_database(Oid dboid, PinpointEviction reason,
									void (*with_lock) (void));
extern int	pinpoint_evict_heartbeat_listeners(PinpointEviction reason,
											   void (*with_lock) (void));
extern int	pinpoint_evict_senders(Oid dboid, TimestampTz before);

#endif							/* PINPOINT_EVICTION_H */
