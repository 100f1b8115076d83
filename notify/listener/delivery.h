/*-------------------------------------------------------------------------
 *
 * delivery.h
 *		Reads published notifications in a listening session, and sends them to
 *		its client.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_DELIVERY_H
#define PINPOINT_DELIVERY_H

extern void pinpoint_delivery_at_statement(void);
extern void pinpoint_delivery_at_pre_commit(void);
extern void pinpoint_delivery_look_afterwards(void);
extern void pinpoint_delivery_after_publication(void);
extern void pinpoint_delivery_at_abort(void);

#endif							/* PINPOINT_DELIVERY_H */
