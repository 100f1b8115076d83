/*-------------------------------------------------------------------------
 *
 * prepared.h
 *		Notifies the channels of watched tables at COMMIT PREPARED.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_PREPARED_H
#define PINPOINT_PREPARED_H

#include "nodes/pg_list.h"

extern bool pinpoint_before_commit_prepared(const char *gid,
											List **relations);
extern void pinpoint_after_commit_prepared(List *relations);
extern void pinpoint_prepared_at_pre_prepare(void);
extern void pinpoint_prepared_at_pre_commit(void);
extern void pinpoint_prepared_at_commit(void);
extern void pinpoint_prepared_at_abort(void);

#endif							/* PINPOINT_PREPARED_H */
