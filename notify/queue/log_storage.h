/*-------------------------------------------------------------------------
 *
 * log_storage.h
 *		The storage of the message log.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_LOG_STORAGE_H
#define PINPOINT_LOG_STORAGE_H

#define PINPOINT_LOG_FILE_NAME	"pg_notify/pg_pinpoint"

extern char *pinpoint_log_storage_create(Size unit);
extern Size pinpoint_log_storage_requested_size(void);
extern Size pinpoint_log_storage_size(void);
extern Size pinpoint_log_storage_memory_size(void);
extern int	pinpoint_log_storage_grow(Size *usable, Size wanted);
extern void pinpoint_log_storage_shrink(Size usable);
#ifdef USE_ASSERT_CHECKING
extern void pinpoint_log_storage_overwrite(Size offset, Size size);
extern bool pinpoint_log_storage_is_overwritten(Size offset, Size size);
#endif

#endif							/* PINPOINT_LOG_STORAGE_H */
