/*-------------------------------------------------------------------------
 *
 * waker_reserve.h
 *		Does the work of a waker that makes no progress.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAKER_RESERVE_H
#define PINPOINT_WAKER_RESERVE_H

extern void pinpoint_waker_reserve_register_timeout(void);
extern void pinpoint_waker_reserve_at_pre_commit(void);
extern void pinpoint_waker_reserve_watch(void);
extern void pinpoint_waker_reserve_reassign(void);
extern void pinpoint_waker_reserve_at_exit(void);

#endif							/* PINPOINT_WAKER_RESERVE_H */
