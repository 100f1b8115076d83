/*-------------------------------------------------------------------------
 *
 * live.h
 *		Statements, and changes of catalogs, that concern watched tables.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_LIVE_H
#define PINPOINT_LIVE_H

#include "catalog/objectaccess.h"
#include "nodes/nodes.h"

extern bool pinpoint_live_before_utility(Node *stmt);
extern void pinpoint_live_after_utility(void);
extern void pinpoint_live_at_access(ObjectAccessType access, Oid class_id,
									Oid object_id, int sub_id, void *arg);

#endif							/* PINPOINT_LIVE_H */
