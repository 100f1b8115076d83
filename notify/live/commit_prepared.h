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

extern void pinpoint_commit_prepared_at_prepare(void);
extern bool pinpoint_commit_prepared_before(const char *gid);
extern void pinpoint_commit_prepared_after(void);
extern void pinpoint_commit_prepared_failed(void);

#endif							/* PINPOINT_COMMIT_PREPARED_H */
