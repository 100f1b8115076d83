/*-------------------------------------------------------------------------
 *
 * waker_progress.h
 *		Has the waker work, and does it make progress?
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAKER_PROGRESS_H
#define PINPOINT_WAKER_PROGRESS_H

/*
 * Milliseconds without progress after which other processes do the work of the
 * waker.
 */
#define PINPOINT_STALL_INTERVAL		100

extern Size pinpoint_waker_progress_shmem_size(void);
extern void pinpoint_waker_progress_shmem_init(void *memory);
extern void pinpoint_waker_progress_want(void);
extern bool pinpoint_waker_progress_has_work(void);
extern bool pinpoint_waker_progress_has_my_work(void);
extern bool pinpoint_waker_progress_is_made(void);
extern bool pinpoint_waker_progress_is_stalled(void);
extern struct Latch *pinpoint_waker_progress_latch(void);
extern uint64 pinpoint_waker_progress_rounds(void);
extern uint64 pinpoint_waker_progress_begin_round(void);
extern void pinpoint_waker_progress_end_round(uint64 wanted);
extern uint64 pinpoint_waker_progress_wanted(void);
extern void pinpoint_waker_progress_finish(uint64 wanted);

#endif							/* PINPOINT_WAKER_PROGRESS_H */
