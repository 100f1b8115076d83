/*-------------------------------------------------------------------------
 *
 * replay.c
 *		Takes notifications out of the WAL, on a standby.
 *
 * The other end of wal_messages.c.  The startup process, which replays the WAL, calls
 * us for the records of three resource managers, after PostgreSQL has replayed them:
 *
 *	logical message		of ours: put the piece into the batch of its transaction,
 *						for which room is reserved in the message log with the
 *						first piece.
 *	commit				of a transaction with a batch: publish it.  PostgreSQL has
 *						made the transaction visible and released its locks before,
 *						so a listener that is told sees its rows.  Commits are
 *						replayed in the order of their records, which is the order
 *						of publication.
 *	abort				give the room back.
 *	running transactions	a transaction that is older than all of these has ended,
 *						though its end is not in the WAL, as the primary has
 *						crashed: likewise.
 *
 * With the end of recovery all that is left has ended, too.
 *
 * An error here would end the standby, and waiting would keep all its readers behind.
 * So nothing is allocated, but in the log.  If the log is full, the listener that is
 * furthest behind is disconnected, with the reason, until there is room.  Most let go
 * of their place at once; for those that cannot, see evict() in slots.c, replay waits
 * for LISTENER_GONE_TIME at most, but never for a client.  If a transaction's
 * notifications cannot be kept at all, or if the beginning of them came before replay
 * began, all that listen in its database are disconnected when it commits.
 *
 * All this is done where hot standby is on.  A server that recovers from a crash has
 * no sessions that could listen.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <signal.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog_internal.h"
#include "access/xlogutils.h"
#include "miscadmin.h"
#include "postmaster/startup.h"
#include "replication/message.h"
#include "storage/standbydefs.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/locks.h"
#include "commit/commit_order.h"
#include "commit/wal_messages.h"
#include "queue/message_log.h"
#include "standby/replay.h"
#include "wakeup/channel_map.h"
#include "wakeup/slots.h"
#include "wakeup/wakeup.h"

/* Microseconds between two looks whether a listener has gone. */
#define LISTENER_GONE_INTERVAL	10000

/* Milliseconds that one has to be gone. */
#define LISTENER_GONE_TIME		5000

/* The numbers in the first line of a message; see wal_messages.c. */
enum
{
	VERSION,
	SENDER_PID,
	CHANNELS,
	NOTIFICATIONS,
	TOTAL,
	OFFSET,
	NNUMBERS
};

/*
 * Milliseconds that other sessions have to read what was handed on to them by one
 * that was disconnected.
 */
#define HAND_ON_TIME			100

/* A transaction that has sent notifications, and has not ended yet. */
typedef struct Unfinished
{
	TransactionId xid;
	Oid			dboid;
	uint32		nnotifications;
	PinpointBatchWriter writer; /* without a batch if they cannot be kept */
} Unfinished;

/*
 * All of these, in no particular order.  Usually they are few.  Each session of the
 * primary has one at most, and this server allows as many sessions; and there may
 * be as many from before a crash of the primary.  Made by the postmaster, inherited
 * and used by the startup process.
 */
static Unfinished *unfinished = NULL;
static int	nunfinished = 0;

/* Bytes of the log that their batches take. */
static Size unfinished_bytes = 0;

static void (*prev_message_redo) (XLogReaderState *record) = NULL;
static void (*prev_xact_redo) (XLogReaderState *record) = NULL;
static void (*prev_standby_redo) (XLogReaderState *record) = NULL;
static void (*prev_message_cleanup) (void) = NULL;

static void do_without_context(void (*work) (XLogReaderState *),
							   XLogReaderState *record);
static void message_redo(XLogReaderState *record);
static void keep_message(XLogReaderState *record);
static void xact_redo_end(XLogReaderState *record);
static void end_transaction(XLogReaderState *record);
static void standby_redo_running(XLogReaderState *record);
static void drop_not_running(XLogReaderState *record);
static void message_cleanup(void);
static int	max_unfinished(void);
static void keep_piece(TransactionId xid, Oid dboid, const char *cursor,
					   const char *end);
static bool read_first_line(const char **cursor, const char *end,
							uint64 *numbers);
static bool read_number(const char **cursor, const char *end, char terminator,
						uint64 *number);
static Unfinished *begin(TransactionId xid, Oid dboid, const uint64 *numbers);
static bool add_line(PinpointBatchWriter *writer, const char *line,
					 const char *end);
static PinpointBatch *reserve(Size size);
static PinpointBatch *try_reserve(Size size);
static bool disconnect_furthest_behind(void);
static void disconnect_database(Oid dboid, uint32 nnotifications);
static Unfinished *find_unfinished(TransactionId xid);
static void publish(Unfinished *transaction);
static void forget(Unfinished *transaction);
static void drop(Unfinished *transaction);
static void drop_older_than(TransactionId xid);

/*
 * When the library is loaded: be called for these records.
 */
void
pinpoint_replay_init(void)
{
	prev_message_redo = RmgrTable[RM_LOGICALMSG_ID].rm_redo;
	RmgrTable[RM_LOGICALMSG_ID].rm_redo = message_redo;
	prev_message_cleanup = RmgrTable[RM_LOGICALMSG_ID].rm_cleanup;
	RmgrTable[RM_LOGICALMSG_ID].rm_cleanup = message_cleanup;
	prev_xact_redo = RmgrTable[RM_XACT_ID].rm_redo;
	RmgrTable[RM_XACT_ID].rm_redo = xact_redo_end;
	prev_standby_redo = RmgrTable[RM_STANDBY_ID].rm_redo;
	RmgrTable[RM_STANDBY_ID].rm_redo = standby_redo_running;
}

/*
 * In the postmaster, at start and at restart after a crash.
 */
void
pinpoint_replay_allocate(void)
{
	if (unfinished == NULL)
		unfinished = MemoryContextAlloc(TopMemoryContext,
										max_unfinished() * sizeof(Unfinished));
}

static int
max_unfinished(void)
{
	return 2 * MaxBackends;
}

/*
 * Do what is ours at a record.  PostgreSQL has an error context callback for redo that
 * describes the whole record, with all payloads in it: none of what we report is
 * about that, and to make its text takes memory, which there may not be.
 */
static void
do_without_context(void (*work) (XLogReaderState *), XLogReaderState *record)
{
	ErrorContextCallback *save_error_context_stack = error_context_stack;

	error_context_stack = NULL;
	work(record);
	error_context_stack = save_error_context_stack;
}

static void
message_redo(XLogReaderState *record)
{
	prev_message_redo(record);
	if (standbyState != STANDBY_DISABLED)
		do_without_context(keep_message, record);
}

static void
keep_message(XLogReaderState *record)
{
	xl_logical_message *message;

	message = (xl_logical_message *) XLogRecGetData(record);
	if (message->transactional &&
		message->prefix_size == sizeof(PINPOINT_MESSAGE_PREFIX) &&
		memcmp(message->message, PINPOINT_MESSAGE_PREFIX,
			   sizeof(PINPOINT_MESSAGE_PREFIX)) == 0)
		keep_piece(XLogRecGetXid(record), message->dbId,
				   message->message + message->prefix_size,
				   message->message + message->prefix_size +
				   message->message_size);
}

/*
 * A prepared transaction has sent nothing, so its end, which is written by another
 * transaction, does not matter.
 */
static void
xact_redo_end(XLogReaderState *record)
{
	prev_xact_redo(record);
	if (nunfinished > 0)
		do_without_context(end_transaction, record);
}

static void
end_transaction(XLogReaderState *record)
{
	Unfinished *transaction;

	switch (XLogRecGetInfo(record) & XLOG_XACT_OPMASK)
	{
		case XLOG_XACT_COMMIT:
			transaction = find_unfinished(XLogRecGetXid(record));
			if (transaction != NULL)
				publish(transaction);
			break;
		case XLOG_XACT_ABORT:
			transaction = find_unfinished(XLogRecGetXid(record));
			if (transaction != NULL)
				drop(transaction);
			break;
		default:
			break;
	}
}

static void
standby_redo_running(XLogReaderState *record)
{
	prev_standby_redo(record);
	if (nunfinished > 0 &&
		(XLogRecGetInfo(record) & ~XLR_INFO_MASK) == XLOG_RUNNING_XACTS)
		do_without_context(drop_not_running, record);
}

static void
drop_not_running(XLogReaderState *record)
{
	xl_running_xacts *running = (xl_running_xacts *) XLogRecGetData(record);

	drop_older_than(running->oldestRunningXid);
}

/*
 * The end of recovery.
 */
static void
message_cleanup(void)
{
	if (prev_message_cleanup)
		prev_message_cleanup();
	if (nunfinished > 0)
		drop_older_than(InvalidTransactionId);
}

/*
 * A piece of what a transaction notifies; wal_messages.c has its form.
 *
 * What is not as it should be ends the reading, so that the batch stays incomplete.
 */
static void
keep_piece(TransactionId xid, Oid dboid, const char *cursor, const char *end)
{
	uint64		numbers[NNUMBERS] = {0};
	Unfinished *transaction;
	PinpointBatchWriter *writer;

	if (!TransactionIdIsValid(xid))
		return;
	if (!read_first_line(&cursor, end, numbers))
	{
		if (numbers[VERSION] <= PINPOINT_MESSAGE_VERSION)
			return;

		/*
		 * A newer primary: it is a notification, and cannot be told. Nothing
		 * is reserved for a piece that is not the first.
		 */
		numbers[OFFSET] = 1;
		numbers[CHANNELS] = numbers[NOTIFICATIONS] = 0;
	}

	transaction = find_unfinished(xid);
	if (transaction == NULL)
		transaction = begin(xid, dboid, numbers);
	if (transaction == NULL)
		return;
	writer = &transaction->writer;
	if (writer->batch == NULL || writer->written != numbers[OFFSET])
		return;

	while (cursor < end)
	{
		const char *line_end = memchr(cursor, '\n', end - cursor);

		if (line_end == NULL || !add_line(writer, cursor, line_end))
			return;
		cursor = line_end + 1;
	}
}

/*
 * The numbers at the beginning of a piece.
 */
static bool
read_first_line(const char **cursor, const char *end, uint64 *numbers)
{
	for (int i = 0; i < NNUMBERS; i++)
	{
		if (!read_number(cursor, end,
						 i < NNUMBERS - 1 ? ' ' : '\n',
						 &numbers[i]))
			return false;
	}
	return numbers[VERSION] == PINPOINT_MESSAGE_VERSION &&
		numbers[SENDER_PID] <= PG_INT32_MAX &&
		numbers[CHANNELS] <= PG_INT32_MAX &&
		numbers[NOTIFICATIONS] <= PG_INT32_MAX &&
		numbers[TOTAL] == MAXALIGN(numbers[TOTAL]);
}

/*
 * A number of at most 18 digits, and what comes behind it.
 */
static bool
read_number(const char **cursor, const char *end, char terminator,
			uint64 *number)
{
	const char *digit = *cursor;

	*number = 0;
	while (digit < end && digit - *cursor < 18 &&
		   isdigit((unsigned char) *digit))
		*number = *number * 10 + (*digit++ - '0');
	if (digit == *cursor || digit == end || *digit != terminator)
		return false;
	*cursor = digit + 1;
	return true;
}

/*
 * A line behind the first one: a channel, or a notification.
 */
static bool
add_line(PinpointBatchWriter *writer, const char *line, const char *end)
{
	uint64		number = 0;
	char	   *string;
	Size		available;
	Size		len = 0;

	if (pinpoint_batch_has_channels(writer) &&
		(!read_number(&line, end, '\t', &number) || number > PG_INT32_MAX))
		return false;
	string = pinpoint_batch_next_string(writer, &available);
	if (string == NULL)
		return false;

	for (; line < end; line++)
	{
		char		c = *line;

		if (c == '\\')
		{
			if (++line == end)
				return false;
			c = *line == 'n' ? '\n' : *line;
		}
		if (len == available)
			return false;
		string[len++] = c;
	}
	return pinpoint_batch_add_record(writer, (uint32) number, len);
}

/*
 * The first piece of a transaction, or at least the first that is replayed here.
 */
static Unfinished *
begin(TransactionId xid, Oid dboid, const uint64 *numbers)
{
	Unfinished *transaction;
	PinpointBatch *batch = NULL;
	uint16		max_assignments = Min(numbers[CHANNELS],
								 PINPOINT_CHANNELS_LOOKED_UP) *
		Max(pinpoint_channel_map_max_share_limit(), 1);

	if (nunfinished == max_unfinished())
	{
		/* It cannot be, but if it is, then let nobody wait for this one. */
		disconnect_database(dboid, (uint32) numbers[NOTIFICATIONS]);
		return NULL;
	}
	if (numbers[OFFSET] == 0)
		batch = reserve(pinpoint_batch_size_of_body(numbers[TOTAL],
													max_assignments));

	transaction = &unfinished[nunfinished++];
	transaction->xid = xid;
	transaction->dboid = dboid;
	transaction->nnotifications = (uint32) numbers[NOTIFICATIONS];
	transaction->writer.batch = NULL;

	if (batch != NULL)
	{
		batch->dboid = dboid;
		batch->sender_pid = (int32) numbers[SENDER_PID];
		batch->nchannels = (uint32) numbers[CHANNELS];
		batch->nnotifications = (uint32) numbers[NOTIFICATIONS];
		batch->max_assignments = max_assignments;
		pinpoint_batch_begin(batch, &transaction->writer);
		unfinished_bytes += batch->size;
	}
	return transaction;
}

/*
 * Take space in the log, if need be that of listeners.  NULL if there is none that
 * listeners keep.
 */
static PinpointBatch *
reserve(Size size)
{
	PinpointBatch *batch = try_reserve(size);

	while (batch == NULL &&
		   size <= pinpoint_message_log_capacity() - unfinished_bytes &&
		   disconnect_furthest_behind())
	{
		batch = try_reserve(size);

		/*
		 * What that one had on channels that it shared has gone to others,
		 * who keep it now.
		 */
		for (int waited = 0;
			 batch == NULL && waited < HAND_ON_TIME &&
			 pinpoint_channel_map_is_shared();
			 waited += LISTENER_GONE_INTERVAL / 1000)
		{
			pg_usleep(LISTENER_GONE_INTERVAL);
			PINPOINT_STARTUP_INTERRUPTS();
			batch = try_reserve(size);
		}
	}
	return batch;
}

static PinpointBatch *
try_reserve(Size size)
{
	int			error;

	return pinpoint_message_log_reserve(size, &error);
}

/*
 * Disconnect the listener that is furthest behind, and wait until it keeps nothing
 * any more.  False if there is none, or if that one does not end in time: a session
 * that reports an error to a client that does not read cannot be ended.  Replay must
 * not wait for it, and not once more for each transaction.
 */
static bool
disconnect_furthest_behind(void)
{
	static int	waited_in_vain = 0;
	int			pid = pinpoint_slots_evict_furthest();

	if (pid == 0)
		return false;
	if (pid == waited_in_vain && pinpoint_slots_keeps(pid))
	{
		/* It may be another one by now. */
		(void) kill(pid, SIGTERM);
		return false;
	}
	waited_in_vain = 0;

	ereport(LOG,
			(errmsg("disconnecting the listener with PID %d, as replay needs room in the NOTIFY queue",
					pid),
			 errhint("Its client reads too slowly, or it has been in a transaction for long. Increase \"pinpoint.queue_size\" on this server if that is to be expected.")));

	/*
	 * As in pg_terminate_backend(), it may have ended by itself.  One order
	 * may not be enough: it obeys the first by telling its client, and may
	 * wait for that.
	 */
	for (int waited = 0;; waited += LISTENER_GONE_INTERVAL / 1000)
	{
		(void) kill(pid, SIGTERM);
		if (!pinpoint_slots_keeps(pid))
			return true;
		if (waited >= LISTENER_GONE_TIME)
		{
			waited_in_vain = pid;
			return false;
		}
		pg_usleep(LISTENER_GONE_INTERVAL);
		PINPOINT_STARTUP_INTERRUPTS();
	}
}

/*
 * What a transaction has notified cannot be told: disconnect all who listen in its
 * database.
 */
static void
disconnect_database(Oid dboid, uint32 nnotifications)
{
	int			n = pinpoint_slots_evict_database(dboid);

	if (n == 0)
		return;
	ereport(LOG,
			(nnotifications > 0 ?
			 errmsg("cannot tell the %u notifications of a transaction",
					nnotifications) :
			 errmsg("cannot tell the notifications of a transaction"),
			 errdetail("There was no room for them in the NOTIFY queue, or they were replayed in part only, or the primary has a newer version of pg_pinpoint. The %d sessions that listen in its database are disconnected.",
					   n),
			 nnotifications > 0 ?
			 errhint("If this happens more than once, increase \"pinpoint.queue_size\" on this server.") : 0));
}

static Unfinished *
find_unfinished(TransactionId xid)
{
	for (int i = 0; i < nunfinished; i++)
	{
		if (unfinished[i].xid == xid)
			return &unfinished[i];
	}
	return NULL;
}

/*
 * A transaction has committed.
 */
static void
publish(Unfinished *transaction)
{
	PinpointBatch *batch = transaction->writer.batch;

	if (batch != NULL && pinpoint_batch_is_complete(&transaction->writer))
	{
		forget(transaction);
		pinpoint_commit_order_publish_replayed(batch);
	}
	else
	{
		disconnect_database(transaction->dboid, transaction->nnotifications);
		drop(transaction);
	}
}

/*
 * Take a transaction out of the list, without its batch.
 */
static void
forget(Unfinished *transaction)
{
	if (transaction->writer.batch != NULL)
		unfinished_bytes -= transaction->writer.batch->size;
	*transaction = unfinished[--nunfinished];
}

static void
drop(Unfinished *transaction)
{
	PinpointBatch *batch = transaction->writer.batch;

	forget(transaction);
	if (batch != NULL)
	{
		LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
		pinpoint_message_log_withdraw(batch);
		LWLockRelease(PinpointOrderLock);
	}
}

/*
 * Drop what transactions before this one have sent, or all if it is invalid.
 */
static void
drop_older_than(TransactionId xid)
{
	/* Backwards, as the last one comes into the place of one that is dropped. */
	for (int i = nunfinished - 1; i >= 0; i--)
	{
		if (!TransactionIdIsValid(xid) ||
			TransactionIdPrecedes(unfinished[i].xid, xid))
			drop(&unfinished[i]);
	}
}
