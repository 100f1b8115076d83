/*-------------------------------------------------------------------------
 *
 * primary_status.h
 *		What a standby knows of its primary.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_PRIMARY_STATUS_H
#define PINPOINT_PRIMARY_STATUS_H

extern void pinpoint_primary_status_init(void);
extern void pinpoint_primary_status_begin(void);
extern void pinpoint_primary_status_end(void);
extern void pinpoint_primary_status_set(const char *status, Size size);
extern void pinpoint_primary_status_decide_counting(bool is_commit);
extern void pinpoint_primary_status_left_out(Oid dboid);

#endif							/* PINPOINT_PRIMARY_STATUS_H */
