/*-------------------------------------------------------------------------
 *
 * heartbeat.h
 *		Heartbeats: notifications that show that a connection works, and a
 *		position.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_HEARTBEAT_H
#define PINPOINT_HEARTBEAT_H

extern long pinpoint_heartbeat_send(void);

#endif							/* PINPOINT_HEARTBEAT_H */
