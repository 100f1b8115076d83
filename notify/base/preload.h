/*-------------------------------------------------------------------------
 *
 * preload.h
 *		The library must be in shared_preload_libraries.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_PRELOAD_H
#define PINPOINT_PRELOAD_H

extern bool pinpoint_preload_is_done(void);
extern void pinpoint_preload_check(void);

#endif							/* PINPOINT_PRELOAD_H */
