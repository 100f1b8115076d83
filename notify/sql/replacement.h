/*-------------------------------------------------------------------------
 *
 * replacement.h
 *		Replaces calls of pg_notify() and pg_notification_queue_usage().
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_REPLACEMENT_H
#define PINPOINT_REPLACEMENT_H

#include "access/htup.h"
#include "catalog/objectaccess.h"
#include "nodes/nodes.h"
#include "nodes/pg_list.h"

extern void pinpoint_replacement_at_access(ObjectAccessType access,
										   Oid class_id, Oid object_id);
extern bool pinpoint_replacement_may_exist(void);
extern bool pinpoint_replacement_exists(void);
extern bool pinpoint_replacement_extension_exists(void);
extern bool pinpoint_replacement_is_extension(Oid extension);
extern bool pinpoint_replacement_extension_created(void);
extern void pinpoint_replacement_end_transaction(void);
extern bool pinpoint_replacement_by_name(Oid original, char **schema,
										 char **name);
extern List *pinpoint_replacement_functions(void);
extern bool pinpoint_replacement_concerns(Oid funcid);
extern bool pinpoint_replacement_is_needed(Node *node);
extern void pinpoint_replacement_apply(Node *node);
extern bool pinpoint_replacement_is_needed_in_body(HeapTuple proc);

#endif							/* PINPOINT_REPLACEMENT_H */
