/*-------------------------------------------------------------------------
 *
 * own_queue.h
 *		Detects transactions that use PostgreSQL's own queue.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_OWN_QUEUE_H
#define PINPOINT_OWN_QUEUE_H

extern bool pinpoint_own_queue_will_be_used(bool has_actions);
extern bool pinpoint_own_queue_has_actions(void);
extern bool pinpoint_own_queue_was_used(void);

#endif							/* PINPOINT_OWN_QUEUE_H */
