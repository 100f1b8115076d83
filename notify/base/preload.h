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

extern bool pinpoint_is_preloaded(void);
extern void pinpoint_check_preloaded(void);

#endif							/* PINPOINT_PRELOAD_H */
