/*-------------------------------------------------------------------------
 *
 * unnotified.h
 *		Committed changes that the current transaction still has to notify.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_UNNOTIFIED_H
#define PINPOINT_UNNOTIFIED_H

#include "nodes/pg_list.h"

extern void pinpoint_unnotified_begin(void);
extern void pinpoint_unnotified_notify(List *channels);
extern void pinpoint_unnotified_set_unknown(bool unknown);
extern void pinpoint_unnotified_set_committed(void);
extern void pinpoint_unnotified_failed(bool committed);
extern void pinpoint_unnotified_at_commit(void);
extern void pinpoint_unnotified_at_abort(void);
extern void pinpoint_unnotified_tell_database(Oid dboid);

#endif							/* PINPOINT_UNNOTIFIED_H */
