/*-------------------------------------------------------------------------
 *
 * listening.h
 *		The channels that this session listens on.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_LISTENING_H
#define PINPOINT_LISTENING_H

#include "nodes/pg_list.h"

extern void pinpoint_listening_at_pre_commit(void);
extern void pinpoint_listening_reconcile(void);
extern void pinpoint_listening_begin(List *actions);
extern void pinpoint_listening_begin_others(void);
extern void pinpoint_listening_commit_others(void);
extern void pinpoint_listening_commit(List *actions);
extern void pinpoint_listening_abort(List *actions);
extern void pinpoint_listening_stop(void);
extern bool pinpoint_listening_used(void);
extern bool pinpoint_listening_in_doubt(void);
extern bool pinpoint_listening_any_to_notify(void);
extern const char *pinpoint_listening_next_to_notify(void);
extern bool pinpoint_listening_on(const char *channel, uint32 hash,
								  uint64 *begins_after, bool *shared);

#endif							/* PINPOINT_LISTENING_H */
