/*-------------------------------------------------------------------------
 *
 * waker.h
 *		The background worker that signals listeners.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAKER_H
#define PINPOINT_WAKER_H

extern void pinpoint_waker_register(void);

/* Called by name in the background worker. */
extern PGDLLEXPORT void pinpoint_waker_main(Datum arg);

#endif							/* PINPOINT_WAKER_H */
