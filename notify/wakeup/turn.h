/*-------------------------------------------------------------------------
 *
 * turn.h
 *		Sessions that end reassign their notifications one after the other.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_TURN_H
#define PINPOINT_TURN_H

extern Size pinpoint_turn_shmem_size(void);
extern void pinpoint_turn_shmem_init(void *memory);
extern void pinpoint_turn_begin(void);
extern void pinpoint_turn_step(void);
extern void pinpoint_turn_end(void);

#endif							/* PINPOINT_TURN_H */
