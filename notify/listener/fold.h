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

/* Sends a notification to the client. */
typedef void (*PinpointSend) (const char *channel, const char *payload,
							  int32 sender_pid);

extern void pinpoint_fold_add(const char *channel, const char *payload,
							  int32 sender_pid, PinpointSend send);
extern void pinpoint_fold_send(PinpointSend send);

#endif							/* PINPOINT_FOLD_H */
