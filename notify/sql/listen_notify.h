/*-------------------------------------------------------------------------
 *
 * listen_notify.h
 *		The statements NOTIFY, LISTEN, UNLISTEN and DISCARD ALL.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_LISTEN_NOTIFY_H
#define PINPOINT_LISTEN_NOTIFY_H

#include "nodes/parsenodes.h"

#include "base/request.h"

extern bool pinpoint_statement_execute_notify(NotifyStmt *notify);
extern bool pinpoint_statement_begin_action(Node *stmt,
											PinpointActionKind *kind,
											const char **channel);
extern bool pinpoint_statement_listen_in_recovery(PinpointActionKind kind,
												  const char *channel);
extern void pinpoint_statement_record_action(PinpointActionKind kind,
											 const char *channel);
extern void pinpoint_statement_check_action(PinpointActionKind kind);
extern void pinpoint_statement_execute_action(PinpointActionKind kind,
											  const char *channel);
extern void pinpoint_statement_check_channel_length(size_t length);
extern void pinpoint_statement_report_reserved_channel(const char *channel);
extern void pinpoint_statement_notify(const char *channel, const char *payload);

#endif							/* PINPOINT_LISTEN_NOTIFY_H */
