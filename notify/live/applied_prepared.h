/*-------------------------------------------------------------------------
 *
 * applied_prepared.h
 *		Notifies prepared transactions that apply workers commit.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_APPLIED_PREPARED_H
#define PINPOINT_APPLIED_PREPARED_H

extern Size pinpoint_applied_prepared_shmem_size(void);
extern void pinpoint_applied_prepared_shmem_init(void *memory);
extern void pinpoint_applied_prepared_at_prepare(void);
extern void pinpoint_applied_prepared_at_pre_commit(void);

#endif							/* PINPOINT_APPLIED_PREPARED_H */
