/*-------------------------------------------------------------------------
 *
 * delivery.c
 *		Reads published notifications in a listening session, and sends them to
 *		its client.
 *
 * PostgreSQL determines the time.  After PROCSIG_NOTIFY_INTERRUPT it calls
 * ProcessNotifyInterrupt() when the session is idle, or just before
 * ReadyForQuery.  This runs a small transaction that reads PostgreSQL's own
 * queue, and flushes.  This file recognizes the transaction before its commit:
 *
 *	- no statement of the client has run in it, and none is being executed;
 *	- no portal is active: a procedure that commits starts new transactions, but
 *	  within the command that called it, and no notification may be sent there;
 *	- there are unread notifications, and their interrupt has been consumed.
 *
 * A transaction of the client raises the interrupt again if there are unread
 * notifications, so that a wrong decision here cannot leave a session asleep.
 *
 * An idle session also runs a transaction when it has to process invalidation
 * messages.  Notifications can be delivered in this transaction, but
 * PostgreSQL does not flush after it.  If our signal or timeout is still
 * pending, the flush follows with it.  Otherwise, the interrupt is raised
 * here.
 *
 * A session that is about to end delivers nothing, although it may run
 * transactions, for instance to drop its temporary tables.  Notifications that
 * were assigned to it are reassigned when it has ended.
 *
 * A Parse or Describe message or a fast-path call can also be mistaken for the
 * small transaction, if it has just ended while our signal is still pending.
 * The client then receives its notifications directly before ReadyForQuery, as
 * it would with the signal.
 *
 * The small transaction may fail before it reaches this file, for instance for
 * lack of memory.  It is repeated then, since no other process would do it.
 * After MAX_FAILURES in a row, the session ends.  An error while sending, for
 * instance a payload that the client's encoding cannot represent, ends the
 * session at once, as in PostgreSQL: there is no other way to tell the client
 * that it missed a notification.
 *
 * With pinpoint.latency_target, and with pinpoint.fold under load, a delivery
 * that would be too soon after the last one is delayed; see pacing.c.
 *
 * Sending takes as long as the client does not read.  To avoid holding back
 * VACUUM, a delivery waits while the transaction has a snapshot, but not for
 * ever (see MAX_SNAPSHOTS).  The slot contains the time since when the session
 * has been sending, for processes that wait for it: see
 * standby/replay_blockers.c.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/async.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/request.h"
#include "base/settings.h"
#include "listener/delivery.h"
#include "listener/disconnect_reason.h"
#include "listener/fold.h"
#include "listener/held_heartbeat.h"
#include "listener/listening.h"
#include "listener/pacing.h"
#include "queue/message_log.h"
#include "wakeup/sharing.h"
#include "wakeup/slots.h"
#include "wakeup/wakeup.h"

/*
 * A session that reads a long backlog releases batches each time it has
 * read this many bytes of the log.
 */
#define ADVANCE_INTERVAL	(256 * 1024)

/*
 * The same with pinpoint.fold.  All collected notifications are sent before
 * their batches are released, so duplicates beyond this limit are not found.
 */
#define FOLD_ADVANCE_INTERVAL	(4 * 1024 * 1024)

/*
 * The session ends when PostgreSQL's small transaction has failed this many
 * times in a row.
 */
#define MAX_FAILURES		3

/*
 * A delivery can be delayed because PostgreSQL has taken a snapshot to read
 * its own queue.  At this attempt in a row, it is executed in spite of the
 * snapshot.
 */
#define MAX_SNAPSHOTS		100

/*
 * The last transaction in which a statement of the client was executed.  It
 * need not be reset: a session does not reuse local transaction IDs, and has
 * none between transactions.
 */
static LocalTransactionId statement_lxid = InvalidLocalTransactionId;

/* Its value at the last delivery. */
static LocalTransactionId statement_before = InvalidLocalTransactionId;

/*
 * Transactions that have failed in a row while there was something to read,
 * with no statement of the client and no successful transaction in between.
 */
static int	failures = 0;

/* Deliveries delayed in a row because of a snapshot. */
static int	snapshots = 0;

/*
 * Has this session read a notification that was assigned to it on a shared
 * channel, and that may not have left the send buffer yet?
 */
static bool assigned_to_me = false;

static bool any_to_deliver(void);
static bool is_small_transaction(void);
static bool is_ending(void);
static bool waits_for_snapshot(void);
static void send_held_heartbeat(void);
static void deliver(void);
static void notify_on_listen(void);
static void deliver_range(const PinpointReading *reading,
						  PinpointDelivered *delivered);
static void send_collected(void);
static void send_notification(const char *channel, const char *payload,
							  int32 sender_pid);
static void absorb_barrier_while_sending(void);
static uint64 deliver_batch(PinpointBatch *batch, bool unread);
static bool is_for_me(PinpointBatch *batch, uint32 number,
					  const char *channel, bool unread, bool *reassigned);

/*
 * A statement is about to be executed.  It is a statement of the client if a
 * portal is active: other libraries can execute statements in their
 * transaction callbacks, without a portal.  In both cases the session is not
 * sending notifications any more.
 */
void
pinpoint_delivery_at_statement(void)
{
	pinpoint_slot_set_sending(0);
	if (ActivePortal != NULL)
	{
		statement_lxid = PINPOINT_MY_LXID;
		failures = 0;
	}
}

/*
 * Is there anything to deliver: unread batches, channels of
 * pinpoint.notify_on_listen that have become valid, or a heartbeat that is
 * held?
 */
static bool
any_to_deliver(void)
{
	return pinpoint_slot_pending() || pinpoint_listening_any_to_notify() ||
		pinpoint_held_heartbeat_any();
}

/*
 * Is this the transaction that PostgreSQL runs for an interrupt?
 */
static bool
is_small_transaction(void)
{
	return statement_lxid != PINPOINT_MY_LXID && ActivePortal == NULL &&
		debug_query_string == NULL;
}

/*
 * Is this session about to end?  Then nothing may be sent to its client.  A
 * background worker never has a client: PostgreSQL logs its notifications.
 */
static bool
is_ending(void)
{
	return proc_exit_inprogress || ProcDiePending || ClientConnectionLost ||
		(whereToSendOutput == DestNone && MyBackendType != B_BG_WORKER);
}

/*
 * Before the commit of a transaction without LISTEN, UNLISTEN and NOTIFY:
 * deliver, if it is the one that PostgreSQL runs for an interrupt.
 *
 * Errors: out of memory.  During the delivery, any error ends the session.
 */
void
pinpoint_delivery_at_pre_commit(void)
{
	failures = 0;
	if (!pinpoint_slot_registered())
	{
		Assert(!any_to_deliver());
		return;
	}
	if (is_ending())
		return;

	/*
	 * The pause has ended, or an error has cancelled the timeout, or this is
	 * a transaction of the client, which may have changed
	 * pinpoint.latency_target.
	 */
	if (pinpoint_slot_resting() &&
		(!pinpoint_pacing_timeout_is_active() || !is_small_transaction()))
		pinpoint_pacing_stop_resting();
	if (!any_to_deliver())
		return;

	/*
	 * A reminder means that a signal may have had no effect.  PostgreSQL
	 * ignores signals if its own list of channels is empty.
	 */
	if (pinpoint_slot_reminded())
		pinpoint_listening_reconcile();

	if (notifyInterruptPending || !any_to_deliver())
		return;
	if (!is_small_transaction())
	{
		/*
		 * This is a transaction of the client, and our signal is still
		 * pending.  There is no need to wait for it.
		 */
		notifyInterruptPending = true;
		return;
	}

	/*
	 * pinpoint.latency_target does not delay a heartbeat that is held: it
	 * costs no more wakeups.  Alone, it must not look like a load.
	 */
	if (pinpoint_held_heartbeat_any())
	{
		if (waits_for_snapshot())
			return;
		send_held_heartbeat();
		if (any_to_deliver() && !pinpoint_pacing_delays())
			deliver();
	}
	else if (!pinpoint_pacing_delays() && !waits_for_snapshot())
		deliver();
}

/*
 * Before the commit of a transaction with LISTEN, UNLISTEN or NOTIFY, or
 * before PREPARE TRANSACTION: deliver unread notifications after it.  It is a
 * transaction of the client, which may have changed pinpoint.latency_target,
 * so a rest ends.
 */
void
pinpoint_delivery_look_afterwards(void)
{
	AssertNoLockHeld();
	if (pinpoint_slot_resting())
		pinpoint_pacing_stop_resting();
	if (any_to_deliver())
		notifyInterruptPending = true;
}

/*
 * After the publication of this transaction: as in PostgreSQL, the client
 * receives notifications of its own transaction before the end of the command.
 * If another sender has made this session SIGNALLED since
 * pinpoint_delivery_look_afterwards(), the publication set no flag, and the
 * signal of that sender may come later.  Does not fail.
 */
void
pinpoint_delivery_after_publication(void)
{
	if (pinpoint_slot_pending())
		notifyInterruptPending = true;
}

/*
 * Is the delivery to be delayed because of a snapshot?  If so, the interrupt
 * will cause the next attempt.
 */
static bool
waits_for_snapshot(void)
{
	/*
	 * With a default isolation level above READ COMMITTED, the snapshot that
	 * PostgreSQL has taken to read its own queue lasts until the transaction
	 * ends.  The next transaction takes none, because the session has read
	 * that queue.
	 */
	InvalidateCatalogSnapshot();
	if (TransactionIdIsValid(MyProc->xmin) && ++snapshots < MAX_SNAPSHOTS)
	{
		notifyInterruptPending = true;
		return true;
	}
	snapshots = 0;
	return false;
}

/*
 * Send the heartbeat that is held.  The interrupt was raised when it was held,
 * so this is the transaction that PostgreSQL runs for an interrupt, after which
 * it flushes.
 */
static void
send_held_heartbeat(void)
{
	bool		save_exit_on_any_error = ExitOnAnyError;

	/* As in deliver(). */
	ExitOnAnyError = true;
	pinpoint_slot_set_sending(GetCurrentTimestamp());
	pinpoint_held_heartbeat_send(send_notification);
	ExitOnAnyError = save_exit_on_any_error;
}

static void
deliver(void)
{
	bool		save_exit_on_any_error = ExitOnAnyError;
	bool		is_timed = pinpoint_pacing_timeout_is_active();
	PinpointReading reading;

	AssertNoLockHeld();
	Assert(is_small_transaction());

	/*
	 * As in PostgreSQL, an error while sending ends the session.  Therefore
	 * this need not be reset after an error.
	 */
	ExitOnAnyError = true;

	if (pinpoint_listening_any_to_notify())
		notify_on_listen();
	if (pinpoint_slot_pending() && pinpoint_slot_begin_reading(&reading))
	{
		PinpointDelivered delivered = {0};

		/*
		 * PostgreSQL flushes after this transaction, and may wait for the
		 * client there, too.  So this is reset by the next statement, and not
		 * at the end of the delivery.
		 */
		pinpoint_slot_set_sending(GetCurrentTimestamp());
		pinpoint_pacing_begin_reading(statement_lxid != statement_before);
		statement_before = statement_lxid;
		deliver_range(&reading, &delivered);

		/*
		 * PostgreSQL may not flush after this transaction.  The pending
		 * signal may not arrive, because the waker skips a session that has
		 * read. The pending timeout may be set to a later time below.
		 */
		if (reading.queued_for_waker || is_timed)
			notifyInterruptPending = true;

		/*
		 * More batches were published meanwhile, which is always so under
		 * high load.  Let PostgreSQL flush before they are read.  It also
		 * flushes if their delivery is delayed: the interrupt for this
		 * delivery is either pending, or was raised above, or has caused this
		 * transaction.
		 */
		if (pinpoint_pacing_end_reading(&delivered))
			notifyInterruptPending = true;
		pinpoint_wakeup_give_back();

		/* PostgreSQL reads its own queue before the heartbeat is sent. */
		if (pinpoint_held_heartbeat_any())
			notifyInterruptPending = true;
	}
	else
		pinpoint_fold_send(send_notification);

	ExitOnAnyError = save_exit_on_any_error;
}

/*
 * Notify the client on the channels of pinpoint.notify_on_listen that have
 * become valid, with an empty payload.
 */
static void
notify_on_listen(void)
{
	const char *channel;

	pinpoint_slot_set_sending(GetCurrentTimestamp());
	while ((channel = pinpoint_listening_next_to_notify()) != NULL)
	{
		if (pinpoint_fold)
			pinpoint_fold_add(channel, "", MyProcPid, send_notification);
		else
			send_notification(channel, "", MyProcPid);
	}

	/* If the delivery was delayed, PostgreSQL flushes when the timeout ends. */
	if (pinpoint_pacing_timeout_is_active())
		notifyInterruptPending = true;
}

/*
 * A transaction has aborted.  The interrupt for unread notifications, or for a
 * heartbeat that is held, may have been consumed.  If it was the small
 * transaction that failed, no other process would raise the interrupt again.
 * After MAX_FAILURES in a row, end the session.
 */
void
pinpoint_delivery_at_abort(void)
{
	if (!pinpoint_slot_to_look() && !pinpoint_listening_any_to_notify() &&
		!pinpoint_held_heartbeat_any())
		return;

	/* A procedure can roll back any number of times. */
	if (ActivePortal == NULL && ++failures >= MAX_FAILURES)
		pinpoint_disconnect_reason_unread();
	else
		notifyInterruptPending = true;
}

/*
 * Deliver the notifications for this session in a range of batches.  The
 * session has read the batches before reading->first already.  Of these, it
 * delivers only the notifications that were reassigned to it since then.  Adds
 * to *delivered what it has delivered.
 */
static void
deliver_range(const PinpointReading *reading, PinpointDelivered *delivered)
{
	PinpointBatch *batch = reading->first;
	bool		unread = true;
	Size		since_advance = 0;

	AssertNoLockHeld();
	Assert(reading->last != NULL &&
		   (reading->first != NULL || reading->reassigned != NULL));

	if (reading->reassigned != NULL &&
		(batch == NULL ||
		 pinpoint_batch_published(reading->reassigned)->sequence <
		 pinpoint_batch_published(batch)->sequence))
	{
		batch = reading->reassigned;
		unread = false;
	}

	for (;;)
	{
		if (batch == reading->first)
			unread = true;
		delivered->notifications += deliver_batch(batch, unread);
		if (unread)
			delivered->bytes += batch->size;
		if (batch == reading->last)
			break;
		if (unread)
			since_advance += batch->size;

		batch = pinpoint_message_log_after(batch);
		if (since_advance >=
			(pinpoint_fold ? FOLD_ADVANCE_INTERVAL : ADVANCE_INTERVAL))
		{
			/*
			 * Notifications of released batches are not reassigned if this
			 * session ends, so they must have been sent.
			 */
			send_collected();
			pinpoint_slot_advance(batch);
			since_advance = 0;
		}

		/*
		 * A backlog can be long.  Process a request to terminate the session,
		 * but none to cancel a query: there is no query, and the error would
		 * end the session.
		 */
		if (ProcDiePending)
			CHECK_FOR_INTERRUPTS();
		absorb_barrier_while_sending();
	}
	send_collected();
}

/*
 * Send a notification to the client.
 *
 * Errors: those of NotifyMyFrontEnd().
 */
static void
send_notification(const char *channel, const char *payload, int32 sender_pid)
{
	AssertNoLockHeld();
	NotifyMyFrontEnd(channel, payload, sender_pid);
	absorb_barrier_while_sending();
}

/*
 * Process a barrier (see ProcSignalBarrier).  Another process, for instance
 * one that drops a database, may wait for all sessions, and this client may
 * read slowly.  As the session has responded, the time since when it has been
 * sending starts again.  (PostgreSQL processes barriers together with all
 * other interrupts, which must not be processed here.)
 */
static void
absorb_barrier_while_sending(void)
{
	if (likely(!ProcSignalBarrierPending))
		return;
	ProcessProcSignalBarrier();
	pinpoint_slot_set_sending(GetCurrentTimestamp());
}

/*
 * Send the collected notifications to the client.  If any notification was
 * assigned to this session, flush PostgreSQL's send buffer, too: its contents
 * would be lost with the session.
 */
static void
send_collected(void)
{
	pinpoint_fold_send(send_notification);
	if (!assigned_to_me)
		return;

	/* An earlier flush may have failed, when the buffer was full. */
	if (whereToSendOutput == DestRemote &&
		(PqCommMethods->flush() != 0 || ClientConnectionLost))
	{
		/*
		 * The client has disconnected.  This ends the session, which
		 * reassigns its notifications.
		 */
		CHECK_FOR_INTERRUPTS();
	}
	assigned_to_me = false;
}

/*
 * Send the notifications of a batch that are for this session, or collect them
 * for pinpoint.fold.  Returns their number.
 *
 * unread: has the session not read the batch before?
 */
static uint64
deliver_batch(PinpointBatch *batch, bool unread)
{
	const char *channel;
	const char *payload;
	const char *only;			/* for channels, if there is only one */
	const char **channels = &only;	/* NULL if not for this session */
	bool		any = false;
	bool		any_reassigned = false;
	PinpointBatchReader reader;
	uint32		number;
	uint64		delivered = 0;

	Assert(pinpoint_batch_published(batch)->sequence <=
		   pinpoint_message_log_sequence());
	if (batch->dboid != MyDatabaseId || (!unread && batch->nassignments == 0))
		return 0;

	if (batch->nchannels > 1)
		channels = palloc_extended(batch->nchannels * sizeof(char *),
								   MCXT_ALLOC_HUGE);

	channel = pinpoint_batch_first_channel(batch);
	for (uint32 i = 0; i < batch->nchannels; i++)
	{
		channels[i] = NULL;
		if (is_for_me(batch, i, channel, unread, &any_reassigned))
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
			Assert(number < batch->nchannels);
			if (channels[number] == NULL)
				continue;
			if (pinpoint_is_heartbeat_channel(channels[number]))
				pinpoint_held_heartbeat_hold(payload, batch->sender_pid,
											 pinpoint_batch_published(batch)->sequence);
			else if (pinpoint_fold)
			{
				pinpoint_fold_add(channels[number], payload,
								  batch->sender_pid, send_notification);
				absorb_barrier_while_sending();
			}
			else
				send_notification(channels[number], payload,
								  batch->sender_pid);
			delivered++;
		}
	}

	/*
	 * This session may read the batch again, for another notification that is
	 * reassigned to it.
	 */
	if (any_reassigned)
	{
		send_collected();
		for (uint32 i = 0; i < batch->nchannels; i++)
		{
			if (channels[i] != NULL)
				pinpoint_sharing_delivered(batch, i);
		}
	}

	if (channels != &only)
		pfree(channels);
	return delivered;
}

/*
 * Are the notifications of a batch on a channel for this session?
 *
 * number: of the channel in the batch.
 *
 * unread: see deliver_batch().
 *
 * Sets *reassigned to true if they were reassigned to the session; otherwise
 * leaves it unchanged.
 */
static bool
is_for_me(PinpointBatch *batch, uint32 number, const char *channel,
		  bool unread, bool *reassigned)
{
	uint64		begins_after;
	bool		shared;

	Assert(number < batch->nchannels);
	if (!pinpoint_listening_on(channel, pinpoint_batch_channel_hash(channel),
							   &begins_after, &shared))
		return false;

	/* Assigned notifications may be older than the LISTEN of this session. */
	if (shared)
	{
		switch (pinpoint_sharing_share(batch, number))
		{
			case PINPOINT_SHARE_REASSIGNED:
				*reassigned = true;
				assigned_to_me = true;
				return true;
			case PINPOINT_SHARE_ASSIGNED:
				assigned_to_me = assigned_to_me || unread;
				return unread;
			case PINPOINT_SHARE_NONE:
				if (number < batch->all_share_from)
					return false;
		}
	}
	return unread && pinpoint_batch_published(batch)->sequence > begins_after;
}
