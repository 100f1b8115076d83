/*-------------------------------------------------------------------------
 *
 * commit_prepared.h
 *		PREPARE TRANSACTION and COMMIT PREPARED of changes of watched tables.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_COMMIT_PREPARED_H
#define PINPOINT_COMMIT_PREPARED_H

extern void pinpoint_replicate_prepared(void);
extern bool pinpoint_before_commit_prepared(const char *gid);
extern void pinpoint_after_commit_prepared(void);
extern void pinpoint_commit_prepared_failed(void);

#endif							/* PINPOINT_COMMIT_PREPARED_H */
