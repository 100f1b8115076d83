/*-------------------------------------------------------------------------
 *
 * slow_listener.h
 *		Warns about a listener that is far behind, or ends its session.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_SLOW_LISTENER_H
#define PINPOINT_SLOW_LISTENER_H

#include "base/compat.h"

extern Size pinpoint_slow_listener_shmem_size(void);
extern void pinpoint_slow_listener_shmem_init(void *memory);
extern void pinpoint_slow_listener_check(void);
pg_noreturn extern void pinpoint_slow_listener_report_queue_full(Size size,
																 int sender);
pg_noreturn extern void pinpoint_slow_listener_report_no_disk_space(int error);
extern const char *pinpoint_slow_listener_no_disk_space_hint(int error);

#endif							/* PINPOINT_SLOW_LISTENER_H */
