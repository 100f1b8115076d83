/*-------------------------------------------------------------------------
 *
 * commit_work.h
 *		What PostgreSQL does in a commit before the commit record.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_COMMIT_WORK_H
#define PINPOINT_COMMIT_WORK_H

extern void pinpoint_commit_work_ahead(void);

#endif							/* PINPOINT_COMMIT_WORK_H */
