/*-------------------------------------------------------------------------
 *
 * replay_wait.h
 *		Ends sessions that replay waits for while their clients do not read.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_REPLAY_WAIT_H
#define PINPOINT_REPLAY_WAIT_H

extern Size pinpoint_replay_wait_shmem_size(void);
extern void pinpoint_replay_wait_shmem_init(void);
extern void pinpoint_replay_wait_begin(void);
extern void pinpoint_replay_wait_end(void);
extern void pinpoint_replay_wait_check(void);

#endif							/* PINPOINT_REPLAY_WAIT_H */
