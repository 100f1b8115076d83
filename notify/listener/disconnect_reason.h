/*-------------------------------------------------------------------------
 *
 * disconnect_reason.h
 *		Tells a client why the session of a listener was ended.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_DISCONNECT_REASON_H
#define PINPOINT_DISCONNECT_REASON_H

extern void pinpoint_disconnect_reason_register(void);
extern void pinpoint_disconnect_reason_end_evicted(void);
extern void pinpoint_disconnect_reason_unread(void);

#endif							/* PINPOINT_DISCONNECT_REASON_H */
