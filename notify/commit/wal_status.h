/*-------------------------------------------------------------------------
 *
 * wal_status.h
 *		Tells standbys whether this server replicates notifications.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAL_STATUS_H
#define PINPOINT_WAL_STATUS_H

extern void pinpoint_wal_status_write(void);

#endif							/* PINPOINT_WAL_STATUS_H */
