/*-------------------------------------------------------------------------
 *
 * replay_blockers.h
 *		Ends sessions that block replay because their clients do not read.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_REPLAY_BLOCKERS_H
#define PINPOINT_REPLAY_BLOCKERS_H

extern Size pinpoint_replay_blockers_shmem_size(void);
extern void pinpoint_replay_blockers_shmem_init(void *memory);
extern void pinpoint_replay_blockers_begin(void);
extern long pinpoint_replay_blockers_check(void);

#endif							/* PINPOINT_REPLAY_BLOCKERS_H */
