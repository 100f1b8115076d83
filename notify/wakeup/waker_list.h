/*-------------------------------------------------------------------------
 *
 * waker_list.h
 *		The list of sessions that the waker has to signal.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAKER_LIST_H
#define PINPOINT_WAKER_LIST_H

/* Number of slots that are taken from the list at a time. */
#define PINPOINT_SIGNALS_PER_ROUND	16

extern Size pinpoint_waker_list_shmem_size(void);
extern void pinpoint_waker_list_shmem_init(void *memory);
extern void pinpoint_waker_list_set_latch(struct Latch *waker);
extern struct Latch *pinpoint_waker_list_get_latch(void);
extern void pinpoint_waker_list_add(int slotno);
extern bool pinpoint_waker_list_any(void);
extern bool pinpoint_waker_list_contains(int slotno);
extern int	pinpoint_waker_list_take(int *slots, int max);
extern int	pinpoint_waker_list_in_hand(int *slots);
#ifdef USE_ASSERT_CHECKING
extern void pinpoint_waker_list_check(void);
#else
#define pinpoint_waker_list_check()	((void) 0)
#endif

#endif							/* PINPOINT_WAKER_LIST_H */
