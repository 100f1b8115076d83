/*-------------------------------------------------------------------------
 *
 * changes.h
 *		Notifies the channels of the watched tables that a transaction has
 *		changed.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_CHANGES_H
#define PINPOINT_CHANGES_H

#include "nodes/pg_list.h"

extern void pinpoint_changes_at_statement(bool may_write);
extern void pinpoint_changes_report_table(Oid relid);
extern void pinpoint_changes_report_channel(const char *channel);
extern void pinpoint_changes_at_subabort(SubTransactionId subid);
extern bool pinpoint_changes_can_exist(void);
extern void pinpoint_changes_at_pre_commit(void);
extern void pinpoint_changes_end_transaction(void);
extern void pinpoint_changes_for_each_channel(void (*action) (const char *channel));
extern void pinpoint_changes_notify(List *channels);

#endif							/* PINPOINT_CHANGES_H */
