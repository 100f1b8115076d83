/*-------------------------------------------------------------------------
 *
 * replication_status.h
 *		Tells standbys whether this server replicates notifications.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_REPLICATION_STATUS_H
#define PINPOINT_REPLICATION_STATUS_H

extern Size pinpoint_replication_status_shmem_size(void);
extern void pinpoint_replication_status_shmem_init(void *memory);
extern bool pinpoint_replication_status_begin_commit(void);
extern void pinpoint_replication_status_end_commit(void);
extern long pinpoint_replication_status_write(void);

#endif							/* PINPOINT_REPLICATION_STATUS_H */
