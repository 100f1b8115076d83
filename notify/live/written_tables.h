/*-------------------------------------------------------------------------
 *
 * written_tables.h
 *		The tables that this transaction has locked for writing.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WRITTEN_TABLES_H
#define PINPOINT_WRITTEN_TABLES_H

extern int	pinpoint_written_tables(const Oid **relids);

#endif							/* PINPOINT_WRITTEN_TABLES_H */
