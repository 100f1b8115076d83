/*-------------------------------------------------------------------------
 *
 * watched_tables.h
 *		The watched tables of this database, and the channels of changed tables.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WATCHED_TABLES_H
#define PINPOINT_WATCHED_TABLES_H

#include "access/genam.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

/* The provider of the security labels that mark watched tables. */
#define PINPOINT_LABEL_PROVIDER		"pinpoint"

extern bool pinpoint_watched_tables_known_none(void);
extern bool pinpoint_watched_tables_exist(void);
extern const char *pinpoint_watched_table_channel(Oid relid);
extern List *pinpoint_watched_tables_channels(void);
extern List *pinpoint_watched_tables_locked_channels(LOCKMODE lockmode);
extern List *pinpoint_watched_tables_to_notify(Oid relid);
extern List *pinpoint_watched_tables_if_uncounted(Oid relid);
extern List *pinpoint_watched_table_with_ancestors(Oid relid);
extern List *pinpoint_watched_table_with_descendants(Oid relid);
extern bool pinpoint_watched_table_is_partly_uncounted(Oid relid);
extern SysScanDesc pinpoint_watched_tables_begin_scan(Relation labels);

/* In a build with assertions: checks what this session knows of the tables. */
#ifdef USE_ASSERT_CHECKING
extern void pinpoint_watched_tables_check(void);
#else
#define pinpoint_watched_tables_check()	((void) 0)
#endif

#endif							/* PINPOINT_WATCHED_TABLES_H */
