/*-------------------------------------------------------------------------
 *
 * planner_rewrite.h
 *		Replaces calls of pg_notify() in queries.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_PLANNER_REWRITE_H
#define PINPOINT_PLANNER_REWRITE_H

extern void pinpoint_planner_rewrite_init(void);

#endif							/* PINPOINT_PLANNER_REWRITE_H */
