/*-------------------------------------------------------------------------
 *
 * pacing.h
 *		When a listening session delivers: pinpoint.latency_target, and the
 *		pause of pinpoint.fold.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_PACING_H
#define PINPOINT_PACING_H

#include "datatype/timestamp.h"

/* What a delivery contained. */
typedef struct PinpointDelivered
{
	uint64		notifications;
	uint64		bytes;			/* of the log, read for the first time */
} PinpointDelivered;

extern bool pinpoint_pacing_timeout_is_active(void);
extern void pinpoint_pacing_stop_resting(void);
extern bool pinpoint_pacing_delays(void);
extern void pinpoint_pacing_begin_reading(bool after_statement);
extern bool pinpoint_pacing_end_reading(const PinpointDelivered *delivered);

#endif							/* PINPOINT_PACING_H */
