/*-------------------------------------------------------------------------
 *
 * early_commit_work.h
 *		Does long work of a commit before the commit is announced.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_EARLY_COMMIT_WORK_H
#define PINPOINT_EARLY_COMMIT_WORK_H

extern void pinpoint_early_commit_work(void);

#endif							/* PINPOINT_EARLY_COMMIT_WORK_H */
