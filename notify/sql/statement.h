/*-------------------------------------------------------------------------
 *
 * statement.h
 *		The statements NOTIFY, LISTEN, UNLISTEN and DISCARD ALL.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_STATEMENT_H
#define PINPOINT_STATEMENT_H

extern void pinpoint_statement_init(void);

#endif							/* PINPOINT_STATEMENT_H */
