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

#include "optimizer/planner.h"

#include "base/compat.h"

extern PlannedStmt *pinpoint_planner_rewrite_plan(planner_hook_type planner,
												  PINPOINT_PLANNER_PARAMETERS);
extern bool pinpoint_planner_rewrite_prevents_inlining(Oid funcid);

#endif							/* PINPOINT_PLANNER_REWRITE_H */
