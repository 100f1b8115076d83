/*-------------------------------------------------------------------------
 *
 * delivery.c
 *		Reads published notifications in a listening session, and sends them to its
 *		client.
 *
 * PostgreSQL determines the time.  After PROCSIG_NOTIFY_INTERRUPT it calls
 * ProcessNotifyInterrupt() when the session is idle, or just before ReadyForQuery.
 * This runs a small transaction that reads PostgreSQL's own queue, and flushes.  This
 * file recognizes the transaction before its commit:
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
 * messages.  Notifications can be delivered in this transaction, but PostgreSQL does
 * not flush after it.  If our signal or timeout is still pending, the flush follows
 * with it.  Otherwise, the interrupt is raised here.
 *
 * A session that is about to end delivers nothing, although it may run transactions,
 * for instance to drop its temporary tables.  Notifications that were assigned to it
 * are reassigned when it has ended.
 *
 * A Parse or Describe message or a fast-path call can also be mistaken for the small
 * transaction, if it has just ended while our signal is still pending.  The client
 * then receives its notifications directly before ReadyForQuery, as it would with the
 * signal.
 *
 * The small transaction may fail before it reaches this file, for instance for lack of
 * memory.  It is repeated then, since no other process would do it.  After
 * MAX_FAILURES in a row, the session ends.  An error while sending, for instance a
 * payload that the client's encoding cannot represent, ends the session at once, as in
 * PostgreSQL: there is no other way to tell the client that it missed a notification.
 *
 * pinpoint.latency_target.  A delivery that would be too soon after the last one is
 * delayed: a timeout raises the interrupt again when it is due.  The slot stays
 * SIGNALLED meanwhile, so no sender signals this session again.  No process waits for
 * it, and no transaction is open.  PostgreSQL cancels all timeouts when there is an
 * error, and then the interrupt is raised at once; see disconnect_reason.c.  Between a
 * command and its ReadyForQuery, when the client waits, no delivery is delayed.
 *
 * After a delayed delivery, the next one will probably be delayed, too.  Then the
 * session is not signalled for it.  It sets the timeout after the delivery, and is
 * RESTING until then.  Thus a session under constant load wakes up once in each
 * interval, and not twice.  If it finds no notification at the timeout, the load is
 * over.
 *
 * On a busy server with very many listeners, the waker takes longer than the interval
 * to signal all of them.  Sessions that rest would then wake up more often than those
 * that wait for their signal, and leave too little processor time to senders.  So
 * after MAX_RESTS, a session waits for a signal again.  It rests again if the signal
 * comes too soon.
 *
 * Sending takes as long as the client does not read.  To avoid holding back VACUUM,
 * nothing is sent while the transaction has a snapshot.  The slot contains the time
 * since when the session has been sending, for processes that wait for it: see
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
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/settings.h"
#include "listener/delivery.h"
#include "listener/disconnect_reason.h"
#include "listener/fold.h"
#include "listener/listening.h"
#include "queue/message_log.h"
#include "wakeup/sharing.h"
#include "wakeup/slots.h"
#include "wakeup/wakeup.h"

/*
 * After so many bytes of the log a reader lets go of what it has read.
 */
#define ADVANCE_INTERVAL	(256 * 1024)

/*
 * Likewise, where identical notifications are folded: what is let go of has been
 * told, so nothing is folded across.
 */
#define FOLD_ADVANCE_INTERVAL	(4 * 1024 * 1024)

/*
 * So often in a row a session rests under a storm.
 */
#define MAX_RESTS			16

/*
 * So often in a row PostgreSQL's small transaction may fail before the session
 * ends.
 */
#define MAX_FAILURES		3

/*
 * So often in a row a delivery is put off because PostgreSQL has taken a
 * snapshot to read its own queue.
 */
#define MAX_SNAPSHOTS		100

/*
 * The transaction in which a statement of the client has run last.  (Local IDs
 * are not reused within a session, and between transactions there is none, so
 * nobody has to reset this.)
 */
static LocalTransactionId statement_lxid = InvalidLocalTransactionId;

/* When this session was delivered to last. */
static TimestampTz last_delivery = 0;

/* When a delivery that was put off is due, or this session has rested. */
static TimeoutId due_timeout = MAX_TIMEOUTS;

/*
 * How often this session may still rest.  None if no delivery was put off, or if there
 * was nothing to deliver since then.
 */
static int	rests_left = 0;

/* Transactions that have failed in a row, with no statement in between. */
static int	failures = 0;

/* Deliveries put off in a row because of a snapshot. */
static int	snapshots = 0;

/* Was anything given to this session that has not gone to the client yet? */
static bool assigned_to_me = false;

static bool is_small_transaction(void);
static bool is_ending(void);
static void stop_resting(void);
static bool put_off(void);
static TimestampTz next_due(void);
static void set_due(void);
static void deliver(void);
static uint64 deliver_range(const PinpointReading *reading);
static void tell_all(void);
static void absorb_barrier(void);
static uint64 deliver_batch(PinpointBatch *batch, bool unread);
static bool is_for_me(PinpointBatch *batch, uint32 number,
					  const char *channel, bool unread, bool *reassigned);

/*
 * A statement is about to run.  What a client sends runs in a portal.  What
 * other libraries run in their transaction callbacks does not, and does not
 * count.
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
 * Is this the transaction that PostgreSQL runs for an interrupt?
 */
static bool
is_small_transaction(void)
{
	return statement_lxid != PINPOINT_MY_LXID && ActivePortal == NULL &&
		debug_query_string == NULL;
}

/*
 * Is this session about to end?  Its client is told nothing any more, or may not
 * be.
 */
static bool
is_ending(void)
{
	return proc_exit_inprogress || ProcDiePending || ClientConnectionLost ||
		whereToSendOutput == DestNone;
}

/*
 * Before the commit of a transaction that neither listens nor notifies: if it
 * is the one that PostgreSQL runs for an interrupt, deliver.
 */
void
pinpoint_delivery_at_pre_commit(void)
{
	failures = 0;
	if (is_ending())
		return;

	/*
	 * It has rested; or the timeout is lost; or the client did something,
	 * which may have been to change the interval.
	 */
	if (pinpoint_slot_resting() &&
		(!get_timeout_active(due_timeout) || !is_small_transaction()))
		stop_resting();
	if (!pinpoint_slot_pending())
		return;

	/*
	 * PostgreSQL runs no transaction for our signals if the session listens
	 * on nothing by its own books.
	 */
	if (pinpoint_slot_reminded())
		pinpoint_listening_reconcile();

	if (notifyInterruptPending || !pinpoint_slot_pending())
		return;
	if (!is_small_transaction())
	{
		/*
		 * A transaction of the client, and our signal is still under way.
		 * There is no need to wait for it.
		 */
		notifyInterruptPending = true;
		return;
	}

	if (!put_off())
		deliver();
}

/*
 * Before the commit of a transaction that listens or notifies, or before PREPARE
 * TRANSACTION: it is the client's, so what is unread is not put off any longer, and
 * the interval may be another one now.
 */
void
pinpoint_delivery_look_afterwards(void)
{
	if (pinpoint_slot_resting())
		stop_resting();
	if (pinpoint_slot_pending())
		notifyInterruptPending = true;
}

/*
 * The rest is over, and if there is nothing the storm is, too.
 */
static void
stop_resting(void)
{
	pinpoint_slot_stop_resting();
	if (!pinpoint_slot_pending())
		rests_left = 0;
}

/*
 * Is it too early to deliver?  Then it is seen to that this is asked again.
 */
static bool
put_off(void)
{
	if (pinpoint_latency_target > 0 && pq_is_reading_msg())
	{
		TimestampTz now = GetCurrentTimestamp();

		/* A clock that was set back must not keep anything. */
		if (now < next_due() && now >= last_delivery)
		{
			set_due();
			rests_left = MAX_RESTS;
			return true;
		}
	}

	/*
	 * With a default isolation level above READ COMMITTED the snapshot that
	 * PostgreSQL has taken to read its own queue lasts as long as the
	 * transaction.  The next one needs none, once that queue is read.
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
 * When the next delivery is not too early.
 */
static TimestampTz
next_due(void)
{
	return TimestampTzPlusMilliseconds(last_delivery, pinpoint_latency_target);
}

/*
 * Look again then.
 */
static void
set_due(void)
{
	if (due_timeout == MAX_TIMEOUTS)
		due_timeout = RegisterTimeout(USER_TIMEOUT, HandleNotifyInterrupt);
	enable_timeout_at(due_timeout, next_due());
}

static void
deliver(void)
{
	bool		save_exit_on_any_error = ExitOnAnyError;
	bool		rest = rests_left > 0 && pinpoint_latency_target > 0;
	bool		is_timed = due_timeout != MAX_TIMEOUTS &&
		get_timeout_active(due_timeout);
	PinpointReading reading;

	/* As PostgreSQL does it where it sends; it need not be put back then. */
	ExitOnAnyError = true;

	if (pinpoint_slot_begin_reading(&reading))
	{
		uint64		delivered;

		/*
		 * PostgreSQL flushes when this transaction is over, and may wait for the
		 * client there, too.  So this is taken back by the next statement.
		 */
		pinpoint_slot_set_sending(GetCurrentTimestamp());
		delivered = deliver_range(&reading);

		/*
		 * This may be a transaction after which PostgreSQL does not flush.
		 * The waker passes over a session that has read, and a timeout may be
		 * set anew below.
		 */
		if (reading.queued_for_waker || is_timed)
			notifyInterruptPending = true;

		if (pinpoint_latency_target > 0)
			last_delivery = GetCurrentTimestamp();

		/*
		 * Under a storm there is always more.  Let PostgreSQL flush first,
		 * and then begin anew.
		 */
		if (pinpoint_slot_end_reading(delivered, last_delivery,
									  rest ? next_due() : 0))
			notifyInterruptPending = true;
		else if (rest)
		{
			set_due();
			rests_left--;
		}
		pinpoint_wakeup_give_back();
	}

	ExitOnAnyError = save_exit_on_any_error;
}

/*
 * A transaction has aborted.  The interrupt for what is unread may have been
 * consumed, and if it was the small transaction that failed nobody would raise
 * it again.
 */
void
pinpoint_delivery_at_abort(void)
{
	if (!pinpoint_slot_to_look())
		return;

	/* A procedure may roll back as often as it likes. */
	if (ActivePortal == NULL && ++failures >= MAX_FAILURES)
		pinpoint_disconnect_reason_unread();
	else
		notifyInterruptPending = true;
}

/*
 * Deliver what there is for this session in some batches.  It has read those before the
 * first unread one already, and gets only what was reassigned to it since then.  Returns
 * the number of notifications.
 */
static uint64
deliver_range(const PinpointReading *reading)
{
	PinpointBatch *batch = reading->first;
	bool		unread = true;
	uint64		delivered = 0;
	Size		since_advance = 0;

	if (reading->reassigned != NULL &&
		(batch == NULL || reading->reassigned->sequence < batch->sequence))
	{
		batch = reading->reassigned;
		unread = false;
	}

	for (;;)
	{
		if (batch == reading->first)
			unread = true;
		delivered += deliver_batch(batch, unread);
		if (batch == reading->last)
			break;
		if (unread)
			since_advance += batch->size;

		batch = pinpoint_message_log_after(batch);
		if (since_advance >=
			(pinpoint_fold ? FOLD_ADVANCE_INTERVAL : ADVANCE_INTERVAL))
		{
			/* What we leave behind is lost to others: it must have been told. */
			tell_all();
			pinpoint_slot_advance(batch);
			since_advance = 0;
		}

		/*
		 * A backlog can be long.  Obey an order to terminate, but no request
		 * to cancel a query: there is none, and an error would end the
		 * session.
		 */
		if (ProcDiePending)
			CHECK_FOR_INTERRUPTS();
		absorb_barrier();
	}
	tell_all();
	return delivered;
}

/*
 * Another process may wait for all sessions, for instance to drop a database, and the
 * client may read slowly.  It need not wait until all is sent.  (PostgreSQL absorbs
 * barriers with all other interrupts, which must not be processed here.)
 */
static void
absorb_barrier(void)
{
	if (likely(!ProcSignalBarrierPending))
		return;
	ProcessProcSignalBarrier();
	pinpoint_slot_set_sending(GetCurrentTimestamp());
}

/*
 * Tell the client what has been collected.  If any of it was given to this session
 * alone, it has to leave PostgreSQL's buffer, too: that would be lost with the
 * session.
 */
static void
tell_all(void)
{
	pinpoint_fold_tell();
	if (!assigned_to_me)
		return;

	/* What did not fit into the buffer may have failed before. */
	if (whereToSendOutput == DestRemote &&
		(PqCommMethods->flush() != 0 || ClientConnectionLost))
	{
		/* The client has gone.  This ends the session, which hands it on. */
		CHECK_FOR_INTERRUPTS();
	}
	assigned_to_me = false;
}

/*
 * Send those notifications of a batch that are for this session.
 *
 * unread: has the session not read the batch before?
 */
static uint64
deliver_batch(PinpointBatch *batch, bool unread)
{
	const char *channel;
	const char *payload;
	const char *only;			/* the channel, if there is just one */
	const char **channels = &only;	/* NULL where not for us */
	bool		any = false;
	bool		any_reassigned = false;
	PinpointBatchReader reader;
	uint32		number;
	uint64		delivered = 0;

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
			if (channels[number] == NULL)
				continue;
			if (pinpoint_fold)
				pinpoint_fold_add(channels[number], payload,
								  batch->sender_pid);
			else
				NotifyMyFrontEnd(channels[number], payload,
								 batch->sender_pid);
			absorb_barrier();
			delivered++;
		}
	}

	/*
	 * This session may go through the batch once more, for something else
	 * that is reassigned to it.
	 */
	if (any_reassigned)
	{
		tell_all();
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
 * Is what a batch has on a channel, the one with this number, for this session?
 *
 * unread: as above.  Sets *reassigned if it was reassigned to the session.
 */
static bool
is_for_me(PinpointBatch *batch, uint32 number, const char *channel,
		  bool unread, bool *reassigned)
{
	uint64		since;
	bool		shared;

	if (!pinpoint_is_listening(channel, pinpoint_batch_channel_hash(channel),
							   &since, &shared))
		return false;

	/* What is assigned to us may be older than our LISTEN. */
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
	return unread && batch->sequence > since;
}
