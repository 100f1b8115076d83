/*-------------------------------------------------------------------------
 *
 * settings.h
 *		The settings pinpoint.*
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_SETTINGS_H
#define PINPOINT_SETTINGS_H

/* Faults that can be planted to see the tests catch them (developers only). */
typedef enum PinpointFault
{
	PINPOINT_FAULT_NONE,
	PINPOINT_FAULT_ARRIVAL_ORDER,	/* publish in order of arrival */
	PINPOINT_FAULT_DROP_SIGNALS,	/* what is handed over to the waker, and every
								 * reminder, is dropped */
	PINPOINT_FAULT_COUNTER_FIRST,	/* of positions: the counter is advanced
									 * before the places are set, */
	PINPOINT_FAULT_MISSING_PLACE,	/* they are not set, */
	PINPOINT_FAULT_COUNT_LATE	/* or at publication only */
} PinpointFault;

/* Most that pinpoint.share_limit can be. */
#define PINPOINT_MAX_SHARE_LIMIT	64

/* Bytes of the longest payload that PostgreSQL allows; private to its async.c. */
#define PINPOINT_OWN_MAX_PAYLOAD	(BLCKSZ - NAMEDATALEN - 128 - 1)

/*
 * Most that pinpoint.max_payload_size can be: four times as much, as conversion to
 * a client's encoding may need, has to fit into one message, and it has to fit into
 * one WAL record.
 */
#define PINPOINT_LARGEST_PAYLOAD	(16 * 1024 * 1024)

/* What is done about a listener that is too far behind; see slow_listener.c. */
typedef enum PinpointOnLag
{
	PINPOINT_ON_LAG_WARN,
	PINPOINT_ON_LAG_DISCONNECT
} PinpointOnLag;

extern bool pinpoint_enabled;
extern int	pinpoint_queue_size;	/* kB */
extern int	pinpoint_queue_memory;	/* kB */
extern int	pinpoint_channel_memory;	/* kB; chosen by us if negative */
extern int	pinpoint_max_listener_lag;	/* kB; no limit if negative */
extern int	pinpoint_on_lag;	/* a PinpointOnLag */
extern int	pinpoint_latency_target;	/* ms */
extern bool pinpoint_waker;
extern int	pinpoint_max_payload_size;	/* bytes */
extern char *pinpoint_shared_channels;
extern int	pinpoint_share_limit;
extern bool pinpoint_fold;
extern bool pinpoint_replicate_notifications;
extern int	pinpoint_heartbeat_interval;	/* ms; 0 for none */
extern int	pinpoint_fault;		/* a PinpointFault */

extern void pinpoint_settings_define(void);
extern void pinpoint_settings_check(void);
extern bool pinpoint_shares_channel(const char *channel);

#endif							/* PINPOINT_SETTINGS_H */
