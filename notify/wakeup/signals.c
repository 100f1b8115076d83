/*-------------------------------------------------------------------------
 *
 * signals.c
 *		Sends signals to sessions that have something to read.
 *
 * The signal is PostgreSQL's own PROCSIG_NOTIFY_INTERRUPT.  PostgreSQL then
 * runs a small transaction as soon as the session is idle, and delivery.c
 * delivers in this transaction.
 *
 * A session can have ended when it is signalled.  Its slot is free then, or
 * has a new owner.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/async.h"
#include "miscadmin.h"
#include "storage/procsignal.h"

#include "base/check.h"
#include "base/compat.h"
#include "wakeup/signals.h"

/*
 * Signal sessions.  The caller does not hold PinpointOrderLock.
 */
void
pinpoint_signal(const PinpointWakeup *wakeups, int n)
{
	AssertLocksBelow(PINPOINT_RANK_ORDER);
	Assert(n <= MaxBackends);

	for (int i = 0; i < n; i++)
	{
		if (wakeups[i].pid == MyProcPid)
			notifyInterruptPending = true;
		else if (SendProcSignal(wakeups[i].pid, PROCSIG_NOTIFY_INTERRUPT,
								PINPOINT_PROCSIGNAL_ID(wakeups[i].slotno)) < 0)
		{
			/*
			 * The session has ended, and its slot is free or has a new owner.
			 */
			elog(DEBUG3, "could not signal backend with PID %d: %m",
				 wakeups[i].pid);
		}
	}
}

/*
 * Signal sessions that were signalled long ago and have not begun to read.
 * PROCSIG_CATCHUP_INTERRUPT also makes a session run a small transaction.  It
 * is the second one: PostgreSQL does not flush after that transaction.
 */
void
pinpoint_signal_again(const PinpointWakeup *wakeups, int n)
{
	AssertLocksBelow(PINPOINT_RANK_ORDER);

	for (int i = 0; i < n; i++)
	{
		(void) SendProcSignal(wakeups[i].pid, PROCSIG_NOTIFY_INTERRUPT,
							  PINPOINT_PROCSIGNAL_ID(wakeups[i].slotno));
		(void) SendProcSignal(wakeups[i].pid, PROCSIG_CATCHUP_INTERRUPT,
							  PINPOINT_PROCSIGNAL_ID(wakeups[i].slotno));
	}
}
