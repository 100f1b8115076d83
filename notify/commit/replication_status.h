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

extern void pinpoint_replication_status_write(void);

#endif							/* PINPOINT_REPLICATION_STATUS_H */
