/*-------------------------------------------------------------------------
 *
 * uncounted.h
 *		Tables whose changes PostgreSQL does not count.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_UNCOUNTED_H
#define PINPOINT_UNCOUNTED_H

#include "catalog/pg_class.h"

extern bool pinpoint_uncounted_known_none(void);
extern bool pinpoint_uncounted_exist(void);
extern bool pinpoint_uncounted_any_hypertable(void);
extern void pinpoint_uncounted_at_drop_extension(Oid extension);
extern void pinpoint_uncounted_end_transaction(void);
extern bool pinpoint_uncounted_relation(const FormData_pg_class *relation);
extern bool pinpoint_uncounted_may_be_hypertable(const FormData_pg_class *relation);
extern bool pinpoint_uncounted_is_distributed(Oid relid);

#endif							/* PINPOINT_UNCOUNTED_H */
