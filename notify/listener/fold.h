/*-------------------------------------------------------------------------
 *
 * fold.h
 *		Removes duplicates among the notifications of one delivery.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_FOLD_H
#define PINPOINT_FOLD_H

extern void pinpoint_fold_add(const char *channel, const char *payload,
							  int32 sender_pid);
extern void pinpoint_fold_tell(void);

#endif							/* PINPOINT_FOLD_H */
