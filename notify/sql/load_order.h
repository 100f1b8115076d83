/*-------------------------------------------------------------------------
 *
 * load_order.h
 *		The place of this library in shared_preload_libraries.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_LOAD_ORDER_H
#define PINPOINT_LOAD_ORDER_H

extern void pinpoint_load_order_check(void);

#endif							/* PINPOINT_LOAD_ORDER_H */
