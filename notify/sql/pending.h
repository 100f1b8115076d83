/*-------------------------------------------------------------------------
 *
 * pending.h
 *		Actions and notifications of the current transaction, until it commits.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_PENDING_H
#define PINPOINT_PENDING_H

#include "nodes/pg_list.h"

#include "base/request.h"

extern void pinpoint_pending_notify(const char *channel, const char *payload);
extern void pinpoint_pending_action(PinpointActionKind kind,
									const char *channel,
									int share_limit,
									bool notifies);
extern bool pinpoint_pending_exists(void);
extern bool pinpoint_pending_listens(const char *channel, uint32 hash);
extern List *pinpoint_pending_actions(void);
extern List *pinpoint_pending_notifications(void);
extern void pinpoint_pending_at_subcommit(void);
extern void pinpoint_pending_at_subabort(void);
extern void pinpoint_pending_reset(void);

/* In a build with assertions: checks the lists of this session. */
#ifdef USE_ASSERT_CHECKING
extern void pinpoint_pending_check(void);
#else
#define pinpoint_pending_check()	((void) 0)
#endif

#endif							/* PINPOINT_PENDING_H */
