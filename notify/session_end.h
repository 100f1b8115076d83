/*-------------------------------------------------------------------------
 *
 * session_end.h
 *		Why a session that listens is ended.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_SESSION_END_H
#define PINPOINT_SESSION_END_H

extern void pinpoint_session_end_prepare(void);
extern void pinpoint_session_end_unread(void);

#endif							/* PINPOINT_SESSION_END_H */
