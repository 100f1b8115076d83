/*-------------------------------------------------------------------------
 *
 * held_heartbeat.h
 *		Holds a heartbeat until PostgreSQL's own queue has been read.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_HELD_HEARTBEAT_H
#define PINPOINT_HELD_HEARTBEAT_H

#include "listener/fold.h"

extern bool pinpoint_held_heartbeat_any(void);
extern void pinpoint_held_heartbeat_hold(const char *payload, int32 sender_pid,
										 uint64 sequence);
extern void pinpoint_held_heartbeat_send(PinpointSend send);

#endif							/* PINPOINT_HELD_HEARTBEAT_H */
