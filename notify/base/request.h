/*-------------------------------------------------------------------------
 *
 * request.h
 *		The requests of a statement: LISTEN, UNLISTEN, notifications.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_REQUEST_H
#define PINPOINT_REQUEST_H

/* Only the server notifies on this channel; see commit/heartbeat.c. */
#define PINPOINT_HEARTBEAT_CHANNEL	"pinpoint_heartbeat"

typedef enum PinpointActionKind
{
	PINPOINT_LISTEN,
	PINPOINT_UNLISTEN,
	PINPOINT_UNLISTEN_ALL
} PinpointActionKind;

typedef struct PinpointAction
{
	PinpointActionKind kind;
	int			share_limit;	/* of LISTEN: 0 if the channel is not shared */
	bool		notifies;		/* of LISTEN: pinpoint.notify_on_listen
								 * contains the channel */
	uint32		channel_hash;	/* pinpoint_hash_channel() of the channel */
	struct LocalChannel *local; /* for listener/listening.c */
	char		channel[FLEXIBLE_ARRAY_MEMBER]; /* "" for UNLISTEN_ALL */
} PinpointAction;

typedef struct PinpointNotification
{
	struct PinpointNotification *next_in_bucket;	/* for sql/pending.c */
	uint32		channel_hash;	/* pinpoint_hash_channel() of the channel */
	uint32		hash;			/* of channel and payload */
	uint32		payload_len;	/* bytes, without the terminating zero */
	uint16		channel_len;	/* likewise */
	char		data[FLEXIBLE_ARRAY_MEMBER];	/* channel, 0, payload, 0 */
} PinpointNotification;

static inline bool
pinpoint_is_heartbeat_channel(const char *channel)
{
	return strcmp(channel, PINPOINT_HEARTBEAT_CHANNEL) == 0;
}

#endif							/* PINPOINT_REQUEST_H */
