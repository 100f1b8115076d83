/*-------------------------------------------------------------------------
 *
 * transaction_events.h
 *		The steps of a commit, an abort and a PREPARE TRANSACTION.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_TRANSACTION_EVENTS_H
#define PINPOINT_TRANSACTION_EVENTS_H

extern void pinpoint_transaction_events_register(void);

#endif							/* PINPOINT_TRANSACTION_EVENTS_H */
