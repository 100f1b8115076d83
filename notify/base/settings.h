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

/*
 * The faults that pinpoint.debug_fault can introduce.  They show that tests
 * find them.  A build without assertions has neither the setting nor a fault.
 */
#ifdef USE_ASSERT_CHECKING
typedef enum PinpointFault
{
	PINPOINT_FAULT_NONE,
	PINPOINT_FAULT_ARRIVAL_ORDER,	/* publish in order of arrival */
	PINPOINT_FAULT_DROP_SIGNALS,	/* discard the list of the waker, and send
									 * no reminders */
	PINPOINT_FAULT_COUNTER_FIRST,	/* advance the counter of positions before
									 * the places are set */
	PINPOINT_FAULT_MISSING_PLACE,	/* do not set the places */
	PINPOINT_FAULT_COUNT_LATE,	/* count transactions at their publication */
	PINPOINT_FAULT_BUSY_WAKER,	/* the list of the waker is never empty */
	PINPOINT_FAULT_NO_RESERVE	/* do not do the work of a waker that makes no
								 * progress */
} PinpointFault;

/* Is a fault introduced?  NAME is without its prefix. */
#define PINPOINT_FAULT(NAME) \
	unlikely(pinpoint_fault == PINPOINT_FAULT_##NAME)

extern int	pinpoint_fault;		/* a PinpointFault */
#else
#define PINPOINT_FAULT(NAME)	false
#endif

/*
 * Maximum length of a payload in PostgreSQL, in bytes.  The definition in
 * async.c is private.
 */
#define PINPOINT_OWN_MAX_PAYLOAD	(BLCKSZ - NAMEDATALEN - 128 - 1)

/* The action for a slow listener; see slow_listener.c. */
typedef enum PinpointOnLag
{
	PINPOINT_ON_LAG_WARN,
	PINPOINT_ON_LAG_DISCONNECT
} PinpointOnLag;

extern bool pinpoint_enabled;
extern int	pinpoint_queue_size;	/* kB */
extern int	pinpoint_queue_memory;	/* kB */
extern int	pinpoint_channel_memory;	/* kB; if negative, see channel_map.c */
extern int	pinpoint_max_listener_lag;	/* kB; no limit if negative */
extern int	pinpoint_on_lag;	/* a PinpointOnLag */
extern int	pinpoint_latency_target;	/* ms */
extern bool pinpoint_waker;
extern int	pinpoint_max_payload_size;	/* bytes */
extern int	pinpoint_share_limit;
extern bool pinpoint_fold;
extern bool pinpoint_replicate_notifications;
extern int	pinpoint_heartbeat_interval;	/* ms; 0 for none */
extern int	pinpoint_max_waiting;	/* no limit if negative */

extern void pinpoint_settings_define(void);
extern void pinpoint_settings_check(void);
extern bool pinpoint_settings_share_channel(const char *channel);
extern bool pinpoint_settings_notify_on_listen(const char *channel);

#endif							/* PINPOINT_SETTINGS_H */
