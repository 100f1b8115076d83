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
extern TransactionId pinpoint_applied_prepared_find(const char *gid);
extern void pinpoint_applied_prepared_forget(TransactionId xid);
extern void pinpoint_applied_prepared_take_over(void);

#endif							/* PINPOINT_APPLIED_PREPARED_H */
