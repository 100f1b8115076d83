/*-------------------------------------------------------------------------
 *
 * utility_rewrite.h
 *		Replaces calls of pg_notify() in utility statements.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_UTILITY_REWRITE_H
#define PINPOINT_UTILITY_REWRITE_H

#include "nodes/plannodes.h"

extern PlannedStmt *pinpoint_utility_rewrite(PlannedStmt *pstmt,
											 const char *query_string);

#endif							/* PINPOINT_UTILITY_REWRITE_H */
