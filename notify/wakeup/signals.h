/*-------------------------------------------------------------------------
 *
 * signals.h
 *		Sends signals to sessions that have something to read.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_SIGNALS_H
#define PINPOINT_SIGNALS_H

/* A session to signal. */
typedef struct PinpointWakeup
{
	int			slotno;
	int			pid;
} PinpointWakeup;

extern void pinpoint_signal(const PinpointWakeup *wakeups, int n);
extern void pinpoint_signal_again(const PinpointWakeup *wakeups, int n);

#endif							/* PINPOINT_SIGNALS_H */
