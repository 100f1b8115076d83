/*-------------------------------------------------------------------------
 *
 * replay.h
 *		Reads notifications from the WAL on a standby.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_REPLAY_H
#define PINPOINT_REPLAY_H

extern void pinpoint_replay_init(void);

#endif							/* PINPOINT_REPLAY_H */
