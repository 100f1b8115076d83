/*-------------------------------------------------------------------------
 *
 * delivery.c
 *		The listener: reads what was published for it, and tells its client.
 *
 * PostgreSQL decides when.  After PROCSIG_NOTIFY_INTERRUPT it calls
 * ProcessNotifyInterrupt() when the session is idle, or just before
 * ReadyForQuery; that runs a small transaction to look at PostgreSQL's own
 * queue, and flushes.  The transaction is recognised here, before its commit:
 *
 *	- no statement of the client has run in it, and none is being executed,
 *	- no portal is active: a procedure that commits starts new transactions, but
 *	  within the command that called it, and nothing may be sent in its midst,
 *	- there is something unread, and the interrupt for it has been consumed.
 *
 * A transaction of the client with something unread raises the interrupt
 * again, so that no mistake about it could ever leave a session asleep.
 *
 * What is left to be taken for it is a Parse message or a fast-path call that is
 * just over while our signal is still under way.  The client gets its
 * notifications right before ReadyForQuery then, as it would with the signal.
 *
 * An error while sending, for instance a payload that the client's encoding
 * cannot represent, ends the session, as in PostgreSQL: it cannot be told
 * which notification it missed in any other way.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/async.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "pinpoint.h"

/*
 * After so many bytes of the log a reader lets go of what it has read.
 */
#define ADVANCE_INTERVAL	(256 * 1024)

/* When this session was delivered to last. */
static TimestampTz last_delivery = 0;

static void collect(void);
static uint64 deliver_range(PinpointBatch *first, PinpointBatch *last);
static uint64 deliver_batch(PinpointBatch *batch);

/*
 * Before the commit of a transaction that neither listens nor notifies: if it
 * is the one that PostgreSQL runs for an interrupt, deliver.
 */
void
pinpoint_deliver_if_woken(void)
{
	PinpointBatch *first;
	PinpointBatch *last;
	uint64		delivered;
	bool		save_exit_on_any_error = ExitOnAnyError;

	if (!pinpoint_wakeup_pending() || notifyInterruptPending)
		return;

	if (pinpoint_client_statement_ran() || ActivePortal != NULL ||
		debug_query_string != NULL)
	{
		/*
		 * A transaction of the client, and our signal is still under way.
		 * There is no need to wait for it.
		 */
		notifyInterruptPending = true;
		return;
	}

	if (pinpoint_latency_target > 0)
		collect();

	ExitOnAnyError = true;

	if (pinpoint_wakeup_begin_reading(&first, &last))
	{
		delivered = deliver_range(first, last);

		/*
		 * Under a storm there is always more.  Let PostgreSQL flush first, and
		 * then begin anew.
		 */
		if (pinpoint_wakeup_end_reading(last, delivered))
			notifyInterruptPending = true;
		pinpoint_message_log_give_back();
		if (pinpoint_latency_target > 0)
			last_delivery = GetCurrentTimestamp();
	}

	ExitOnAnyError = save_exit_on_any_error;
}

/*
 * Let notifications come in until pinpoint.latency_target has passed since the
 * last delivery, or the client wants something.
 *
 * Meanwhile the slot is SIGNALLED, so nobody signals this session again.  The
 * transaction that is open has neither a snapshot nor locks, and no statement
 * waits for it: between a command and its ReadyForQuery, when the client does
 * wait, there is no time to lose, and the session is not reported as idle yet.
 */
static void
collect(void)
{
	bool		latch_was_reset = false;

	if (MyBEEntry->st_state != STATE_IDLE || FeBeWaitSet == NULL)
		return;

	/*
	 * PostgreSQL comes here from waiting for the client, having reset the
	 * latch, or from having just read something, which nobody would tell us of
	 * again.  The interrupt has set the latch in either case.
	 */
	if (MyLatch->is_set)
		return;

	ModifyWaitEvent(FeBeWaitSet, PINPOINT_CLIENT_SOCKET_POS,
					WL_SOCKET_READABLE, NULL);

	for (;;)
	{
		TimestampTz now = GetCurrentTimestamp();
		TimestampTz due = TimestampTzPlusMilliseconds(last_delivery,
													  pinpoint_latency_target);
		WaitEvent	event;

		/* A clock that was set back must not keep anything. */
		if (now >= due || now < last_delivery)
			break;

		if (WaitEventSetWait(FeBeWaitSet,
							 TimestampDifferenceMilliseconds(now, due),
							 &event, 1, WAIT_EVENT_CLIENT_READ) == 0)
			continue;
		if ((event.events & WL_LATCH_SET) == 0)
			break;
		ResetLatch(MyLatch);
		latch_was_reset = true;
		CHECK_FOR_INTERRUPTS();
	}

	/* What else the latch was set for is for PostgreSQL to find out. */
	if (latch_was_reset)
		SetLatch(MyLatch);
}

/*
 * Deliver the batches from first to last.  Returns the number of notifications
 * that were for this session.
 */
static uint64
deliver_range(PinpointBatch *first, PinpointBatch *last)
{
	PinpointBatch *batch = first;
	uint64		delivered = 0;
	Size		since_advance = 0;

	for (;;)
	{
		since_advance += batch->size;
		delivered += deliver_batch(batch);
		if (batch == last)
			break;

		batch = pinpoint_message_log_after(batch);
		if (since_advance >= ADVANCE_INTERVAL)
		{
			pinpoint_wakeup_advance(batch);
			since_advance = 0;
		}

		/*
		 * A backlog can be long.  Obey an order to terminate, but no request
		 * to cancel a query: there is none, and an error would end the
		 * session.
		 */
		if (ProcDiePending)
			CHECK_FOR_INTERRUPTS();
	}
	return delivered;
}

/*
 * Send those notifications of a batch that are for this session.
 */
static uint64
deliver_batch(PinpointBatch *batch)
{
	const char *channel;
	const char *payload;
	const char *only;			/* the channel, if there is just one */
	const char **channels = &only;	/* NULL where not listening */
	bool		any = false;
	PinpointBatchReader reader;
	uint32		number;
	uint64		delivered = 0;

	if (batch->dboid != MyDatabaseId)
		return 0;

	if (batch->nchannels > 1)
		channels = palloc_extended(batch->nchannels * sizeof(char *),
								   MCXT_ALLOC_HUGE);

	channel = pinpoint_batch_first_channel(batch);
	for (uint32 i = 0; i < batch->nchannels; i++)
	{
		channels[i] = NULL;
		if (pinpoint_is_listening(channel,
								  pinpoint_batch_channel_hash(channel),
								  batch->sequence))
		{
			channels[i] = channel;
			any = true;
		}
		channel = pinpoint_batch_next_channel(channel);
	}

	if (any)
	{
		pinpoint_batch_read(batch, channel, &reader);
		while ((payload = pinpoint_batch_read_next(&reader, &number)) != NULL)
		{
			if (channels[number] == NULL)
				continue;
			NotifyMyFrontEnd(channels[number], payload, batch->sender_pid);
			delivered++;
		}
	}

	if (channels != &only)
		pfree(channels);
	return delivered;
}
