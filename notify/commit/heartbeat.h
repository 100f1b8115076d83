/*-------------------------------------------------------------------------
 *
 * heartbeat.h
 *		Tells listeners that their connection works, and how far they are.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_HEARTBEAT_H
#define PINPOINT_HEARTBEAT_H

/* Only the server notifies on this channel. */
#define PINPOINT_HEARTBEAT_CHANNEL	"pinpoint_heartbeat"

extern bool pinpoint_is_heartbeat_channel(const char *channel);
extern long pinpoint_heartbeat_send(void);

#endif							/* PINPOINT_HEARTBEAT_H */
