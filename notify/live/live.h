/*-------------------------------------------------------------------------
 *
 * live.h
 *		Hooks for watched tables.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_LIVE_H
#define PINPOINT_LIVE_H

extern void pinpoint_live_init(void);

#endif							/* PINPOINT_LIVE_H */
