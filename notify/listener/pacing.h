/*-------------------------------------------------------------------------
 *
 * pacing.h
 *		When a listening session delivers: pinpoint.latency_target.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_PACING_H
#define PINPOINT_PACING_H

extern bool pinpoint_pacing_timeout_is_active(void);
extern void pinpoint_pacing_stop_resting(void);
extern bool pinpoint_pacing_delays(void);
extern bool pinpoint_pacing_end_reading(uint64 delivered);

#endif							/* PINPOINT_PACING_H */
