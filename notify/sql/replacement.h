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
extern bool pinpoint_replacement_exists(void);
extern bool pinpoint_extension_exists(void);
extern bool pinpoint_is_extension(Oid extension);
extern bool pinpoint_extension_created(void);
extern void pinpoint_extension_end_transaction(void);
extern bool pinpoint_replacement_by_name(Oid original, char **schema,
										 char **name);
extern List *pinpoint_replacements(void);
extern bool pinpoint_is_replaced(Oid funcid);
extern bool pinpoint_calls_replaced(Node *node);
extern void pinpoint_replace_calls(Node *node);
extern bool pinpoint_body_calls_replaced(HeapTuple proc);

#endif							/* PINPOINT_REPLACEMENT_H */
