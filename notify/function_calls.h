/*-------------------------------------------------------------------------
 *
 * function_calls.h
 *		Calls of pg_notify() in queries.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_FUNCTION_CALLS_H
#define PINPOINT_FUNCTION_CALLS_H

extern void pinpoint_function_calls_init(void);

#endif							/* PINPOINT_FUNCTION_CALLS_H */
