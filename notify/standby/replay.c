/*-------------------------------------------------------------------------
 *
 * replay.c
 *		Reads notifications from the WAL on a standby.
 *
 * wal_messages.c writes them.  The startup process, which replays the WAL, calls this
 * file for these records, all but the last one after PostgreSQL has replayed them:
 *
 *	logical message		with our prefix: add it to the batch of its transaction,
 *						whose space in the message log is reserved at the first
 *						message.
 *	commit				of a transaction with a batch: publish the batch.  PostgreSQL
 *						has made the transaction visible and released its locks
 *						before, so a listener that is notified sees its rows.
 *						Commits are replayed in the order of their records, which is
 *						the order of publication.
 *	abort				free the space.
 *	running transactions	a transaction that is older than all of these has ended,
 *						although its end is not in the WAL, because the primary has
 *						crashed: free the space.
 *
 * At the end of recovery, all remaining transactions have ended, too.
 *
 * An error in the startup process would end the standby, and waiting would delay all
 * sessions on it.  So memory is allocated only in the log.  If the log is full, the
 * listeners that are furthest behind are disconnected, with the reason: first all
 * listeners that keep space in the oldest quarter, then, if this is not enough, in the
 * oldest half, then all.  Most of them release their position at once.  For those that
 * cannot (see eviction.c), replay waits once for each session, for at most five
 * seconds in total, and never for a client.
 *
 * A notification that cannot be delivered is never skipped silently.  If the
 * notifications of a transaction may be incomplete here, all listeners of its database
 * are disconnected at its commit: why_incomplete() determines this.  One case needs an
 * argument.  A standby begins to replay at the redo point of a checkpoint.  If a
 * transaction has written its messages before that point, and its commit record after
 * it, then only the commit is replayed.  Such a transaction had its XID before it
 * wrote a message, and so before the redo point was determined.  The checkpoint stores
 * the next XID after that, so the XID of the transaction is lower than the XID at the
 * start of replay (first_redo_xid).  Its commit record is also marked; see
 * wal_messages.c.  A commit with both properties always disconnects listeners, unless
 * all its messages were replayed.  Other transactions have both properties if they
 * began before the checkpoint and have locked a table exclusively: they disconnect
 * listeners without need.  This ends when no transaction is left that began before the
 * checkpoint, as the records of running transactions show.  A listener that begins
 * after the commit is replayed cannot miss anything.
 *
 * A primary also reports whether it replicates, and which transactions have left out
 * notifications; see primary_status.c.
 *
 * This file is active only with hot standby.  A server that recovers from a crash has
 * no sessions that could listen.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog_internal.h"
#include "access/xlogutils.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "postmaster/startup.h"
#include "replication/message.h"
#include "storage/standbydefs.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/locks.h"
#include "base/request.h"
#include "base/settings.h"
#include "commit/commit_order.h"
#include "commit/positions.h"
#include "commit/wal_messages.h"
#include "listener/eviction.h"
#include "queue/message_log.h"
#include "standby/primary_status.h"
#include "standby/replay.h"
#include "standby/replay_blockers.h"
#include "wakeup/channel_map.h"
#include "wakeup/wakeup.h"

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

/* A transaction that has sent notifications, and has not ended yet. */
typedef struct Unfinished
{
	TransactionId xid;
	Oid			dboid;
	uint32		nnotifications;
	bool		left_out;		/* it has notifications that are not in the
								 * WAL */
	bool		begun;			/* others are in the WAL: */
	PinpointBatchWriter writer; /* without a batch if the notifications cannot
								 * be delivered, */
	PinpointEviction incomplete;	/* for this reason */
} Unfinished;

/*
 * All unfinished transactions, in no particular order.  Usually there are few.
 * Each session of the primary has at most one, and this server allows at least
 * as many sessions.  As many again can remain from before a crash of the
 * primary.  The postmaster allocates the array, and the startup process
 * inherits and uses it.
 */
static Unfinished *unfinished = NULL;
static int	nunfinished = 0;

/* Bytes of the log that their batches take. */
static Size unfinished_bytes = 0;

/*
 * The next XID when replay began, or a later one: the XID after that of a
 * transaction for which the list had no space.  Invalid if no transaction is
 * left that began before this XID.
 */
static TransactionId first_redo_xid = InvalidTransactionId;

/* The reasons of why_incomplete(), for the server log. */
static const char *const incomplete_details[] = {
	[PINPOINT_EVICTED_NO_ROOM] =
	gettext_noop("There was no room for them in the NOTIFY queue."),
	[PINPOINT_EVICTED_INCOMPLETE] =
	gettext_noop("They were incomplete in the WAL."),
	[PINPOINT_EVICTED_NEWER_FORM] =
	gettext_noop("The primary has a newer version of pg_pinpoint."),
	[PINPOINT_EVICTED_BEFORE_REDO] =
	gettext_noop("The transaction may have written them before the position in the WAL at which replay began."),
};

static void (*prev_message_redo) (XLogReaderState *record) = NULL;
static void (*prev_xact_redo) (XLogReaderState *record) = NULL;
static void (*prev_standby_redo) (XLogReaderState *record) = NULL;
static void (*prev_message_startup) (void) = NULL;
static void (*prev_message_cleanup) (void) = NULL;

static void do_without_context(void (*work) (XLogReaderState *),
							   XLogReaderState *record);
static void message_redo(XLogReaderState *record);
static void keep_message(XLogReaderState *record);
static void judge_replication(XLogReaderState *record);
static void xact_redo_end(XLogReaderState *record);
static void end_transaction(XLogReaderState *record);
static void standby_redo_running(XLogReaderState *record);
static void drop_not_running(XLogReaderState *record);
static void message_startup(void);
static void message_cleanup(void);
static int	max_unfinished(void);
static void keep_piece(TransactionId xid, Oid dboid, const char *cursor,
					   const char *end);
static bool read_first_line(const char **cursor, const char *end,
							uint64 *numbers);
static bool read_number(const char **cursor, const char *end, char terminator,
						uint64 *number);
static Unfinished *enter(TransactionId xid, Oid dboid);
static void begin(Unfinished *transaction, const uint64 *numbers,
				  PinpointEviction incomplete);
static bool add_line(PinpointBatchWriter *writer, const char *line,
					 const char *end);
static PinpointBatch *reserve(Size size);
static PinpointBatch *try_reserve(Size size);
static void end_by_commit(Unfinished *transaction, TransactionId xid,
						  XLogReaderState *record);
static bool began_before_redo(TransactionId xid);
static PinpointEviction why_incomplete(Unfinished *transaction,
									   TransactionId xid,
									   const xl_xact_parsed_commit *commit);
static void disconnect_listeners(Oid dboid, PinpointEviction reason,
								 uint32 nnotifications);
static Unfinished *find_unfinished(TransactionId xid);
static void publish(Unfinished *transaction);
static void forget(Unfinished *transaction);
static void drop(Unfinished *transaction);
static void drop_older_than(TransactionId xid);

/*
 * When the library is loaded: wrap the functions for these records.
 */
void
pinpoint_replay_init(void)
{
	prev_message_redo = RmgrTable[RM_LOGICALMSG_ID].rm_redo;
	RmgrTable[RM_LOGICALMSG_ID].rm_redo = message_redo;
	prev_message_startup = RmgrTable[RM_LOGICALMSG_ID].rm_startup;
	RmgrTable[RM_LOGICALMSG_ID].rm_startup = message_startup;
	prev_message_cleanup = RmgrTable[RM_LOGICALMSG_ID].rm_cleanup;
	RmgrTable[RM_LOGICALMSG_ID].rm_cleanup = message_cleanup;
	prev_xact_redo = RmgrTable[RM_XACT_ID].rm_redo;
	RmgrTable[RM_XACT_ID].rm_redo = xact_redo_end;
	prev_standby_redo = RmgrTable[RM_STANDBY_ID].rm_redo;
	RmgrTable[RM_STANDBY_ID].rm_redo = standby_redo_running;
	pinpoint_primary_status_init();
}

/*
 * Allocate memory in the postmaster, at start and at restart after a crash.
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
 * Call a function of this file for a record.  The error context callback of
 * PostgreSQL would describe the whole record, with all payloads, in each
 * message.  Our messages are not about the record, and the description could
 * run out of memory.  Therefore there is no error context during the call.
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

	const char *content;

	message = (xl_logical_message *) XLogRecGetData(record);
	if (message->prefix_size != sizeof(PINPOINT_MESSAGE_PREFIX) ||
		memcmp(message->message, PINPOINT_MESSAGE_PREFIX,
			   sizeof(PINPOINT_MESSAGE_PREFIX)) != 0)
		return;

	content = message->message + message->prefix_size;
	if (message->transactional)
		keep_piece(XLogRecGetXid(record), message->dbId,
				   content, content + message->message_size);
	else if (!OidIsValid(message->dbId))
		pinpoint_primary_status_set(content, message->message_size);
}

/*
 * Wrapper for records of transactions.  A prepared transaction has sent no
 * notification, so its end, in a record of another transaction, is ignored.
 */
static void
xact_redo_end(XLogReaderState *record)
{
	prev_xact_redo(record);
	if (standbyState != STANDBY_DISABLED)
		do_without_context(judge_replication, record);
	if (nunfinished > 0 || TransactionIdIsValid(first_redo_xid))
		do_without_context(end_transaction, record);
}

/*
 * Called after each record of the resource managers Transaction and Standby.
 */
static void
judge_replication(XLogReaderState *record)
{
	uint8		kind = XLogRecGetInfo(record) & XLOG_XACT_OPMASK;

	pinpoint_primary_status_judge(XLogRecGetRmid(record) == RM_XACT_ID &&
								  (kind == XLOG_XACT_COMMIT ||
								   kind == XLOG_XACT_COMMIT_PREPARED));
}

static void
end_transaction(XLogReaderState *record)
{
	TransactionId xid = XLogRecGetXid(record);
	Unfinished *transaction = find_unfinished(xid);

	switch (XLogRecGetInfo(record) & XLOG_XACT_OPMASK)
	{
		case XLOG_XACT_COMMIT:
			end_by_commit(transaction, xid, record);
			break;
		case XLOG_XACT_ABORT:
			if (transaction != NULL)
				drop(transaction);
			break;
		default:
			break;
	}
}

/*
 * A transaction has committed: publish its batch, or disconnect listeners.
 *
 * transaction: NULL if none of its messages was replayed.
 */
static void
end_by_commit(Unfinished *transaction, TransactionId xid,
			  XLogReaderState *record)
{
	xl_xact_parsed_commit commit;
	PinpointEviction reason;

	if (transaction == NULL && !began_before_redo(xid))
		return;

	ParseCommitRecord(XLogRecGetInfo(record),
					  (xl_xact_commit *) XLogRecGetData(record), &commit);
	reason = why_incomplete(transaction, xid, &commit);
	if (reason == PINPOINT_NOT_EVICTED)
	{
		if (transaction == NULL)
			return;

		/*
		 * This comes first: a heartbeat that covers the batch must not reach
		 * sessions that have missed what was left out.
		 */
		if (transaction->left_out)
			pinpoint_primary_status_left_out(transaction->dboid);
		if (transaction->begun)
			publish(transaction);
		else
			forget(transaction);
		return;
	}

	/*
	 * The record may contain no database if no catalog was changed.
	 */
	disconnect_listeners(transaction != NULL ? transaction->dboid : commit.dbId,
						 reason,
						 transaction != NULL ? transaction->nnotifications : 0);
	if (transaction != NULL)
		drop(transaction);
}

/*
 * Can the notifications of a committed transaction be incomplete here?
 * Returns the reason, or PINPOINT_NOT_EVICTED.  See the top of this file.
 *
 * transaction: NULL if none of its messages was replayed.
 */
static PinpointEviction
why_incomplete(Unfinished *transaction, TransactionId xid,
			   const xl_xact_parsed_commit *commit)
{
	if (transaction == NULL)
		return began_before_redo(xid) &&
			(commit->xinfo & XACT_XINFO_HAS_AE_LOCKS) != 0 ?
			PINPOINT_EVICTED_BEFORE_REDO : PINPOINT_NOT_EVICTED;

	if (!transaction->begun)
		return PINPOINT_NOT_EVICTED;
	if (transaction->writer.batch == NULL)
		return transaction->incomplete;
	if (!pinpoint_batch_is_complete(&transaction->writer))
		return PINPOINT_EVICTED_INCOMPLETE;
	return PINPOINT_NOT_EVICTED;
}

/*
 * Did a transaction have its XID before replay began?
 */
static bool
began_before_redo(TransactionId xid)
{
	return TransactionIdIsValid(first_redo_xid) &&
		TransactionIdIsNormal(xid) &&
		TransactionIdPrecedes(xid, first_redo_xid);
}

static void
standby_redo_running(XLogReaderState *record)
{
	prev_standby_redo(record);
	if (standbyState != STANDBY_DISABLED)
		do_without_context(judge_replication, record);
	if ((nunfinished > 0 || TransactionIdIsValid(first_redo_xid)) &&
		(XLogRecGetInfo(record) & ~XLR_INFO_MASK) == XLOG_RUNNING_XACTS)
		do_without_context(drop_not_running, record);
}

static void
drop_not_running(XLogReaderState *record)
{
	xl_running_xacts *running = (xl_running_xacts *) XLogRecGetData(record);

	drop_older_than(running->oldestRunningXid);
	if (TransactionIdIsValid(first_redo_xid) &&
		!TransactionIdPrecedes(running->oldestRunningXid, first_redo_xid))
		first_redo_xid = InvalidTransactionId;
}

/*
 * Replay begins at a checkpoint, which contains the next XID.
 */
static void
message_startup(void)
{
	if (prev_message_startup)
		prev_message_startup();
	first_redo_xid = XidFromFullTransactionId(ReadNextFullTransactionId());
	pinpoint_primary_status_begin();
	pinpoint_replay_blockers_begin();
}

/*
 * The end of recovery: all remaining transactions have ended.
 */
static void
message_cleanup(void)
{
	if (prev_message_cleanup)
		prev_message_cleanup();
	if (nunfinished > 0)
		drop_older_than(InvalidTransactionId);
	pinpoint_primary_status_end();
}

/*
 * Add the contents of a message to the batch of its transaction;
 * wal_messages.c describes the format.
 *
 * If the contents are not valid, the rest is ignored, and the batch remains
 * incomplete.
 */
static void
keep_piece(TransactionId xid, Oid dboid, const char *cursor, const char *end)
{
	uint64		numbers[NNUMBERS] = {0};
	PinpointEviction incomplete = PINPOINT_EVICTED_INCOMPLETE;
	Unfinished *transaction;
	PinpointBatchWriter *writer;

	if (!TransactionIdIsValid(xid))
		return;
	if (!read_first_line(&cursor, end, numbers))
	{
		if (numbers[VERSION] <= PINPOINT_MESSAGE_VERSION)
			return;

		/*
		 * The primary is newer: the message contains notifications in an
		 * unknown format.  An offset other than 0 makes begin() reserve no
		 * space.
		 */
		numbers[OFFSET] = 1;
		numbers[CHANNELS] = numbers[NOTIFICATIONS] = 0;
		incomplete = PINPOINT_EVICTED_NEWER_FORM;
	}

	transaction = find_unfinished(xid);
	if (transaction == NULL)
		transaction = enter(xid, dboid);
	if (transaction == NULL)
		return;
	if (numbers[CHANNELS] == 0 && numbers[OFFSET] == 0)
	{
		transaction->left_out = true;
		return;
	}
	if (!transaction->begun)
		begin(transaction, numbers, incomplete);
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
 * Read the numbers in the first line of a message.  Returns false if they are
 * not valid, or of another version.
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
 * Read a number of at most 18 digits, and the character after it.  Returns
 * false if they are not there.
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
 * Add one line after the first to a batch: a channel, or a notification.
 * Returns false if it is not valid.
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

	/*
	 * NOTIFY refuses the channel of the heartbeat.  If the WAL contains such a
	 * notification nevertheless, it must not reach listeners of heartbeats.
	 */
	if (!pinpoint_batch_has_channels(writer))
	{
		string[len] = '\0';
		if (pinpoint_is_heartbeat_channel(string))
			string[0] = pg_toupper(string[0]);
	}
	return pinpoint_batch_add_record(writer, (uint32) number, len);
}

/*
 * Add a transaction to the list, at its first message that is replayed here.
 * Returns NULL if the list is full.
 */
static Unfinished *
enter(TransactionId xid, Oid dboid)
{
	Unfinished *transaction;

	if (nunfinished == max_unfinished())
	{
		/*
		 * This cannot happen.  If it does, the commit is treated as if the
		 * message were before the start of replay.
		 */
		if (!began_before_redo(xid))
		{
			first_redo_xid = xid;
			TransactionIdAdvance(first_redo_xid);
		}
		return NULL;
	}
	transaction = &unfinished[nunfinished++];
	transaction->xid = xid;
	transaction->dboid = dboid;
	transaction->nnotifications = 0;
	transaction->left_out = false;
	transaction->begun = false;
	transaction->writer.batch = NULL;
	return transaction;
}

/*
 * Begin the batch of a transaction, at the first message with notifications.
 *
 * incomplete: why the transaction cannot be delivered, if this is not the
 * first of these messages.
 */
static void
begin(Unfinished *transaction, const uint64 *numbers,
	  PinpointEviction incomplete)
{
	PinpointBatch *batch = NULL;
	uint16		max_assignments = Min(Min(numbers[CHANNELS],
									  PINPOINT_CHANNELS_LOOKED_UP) *
								  Max(pinpoint_channel_map_max_receivers(), 1),
								  PG_UINT16_MAX);

	if (numbers[OFFSET] == 0)
	{
		batch = reserve(pinpoint_batch_size_of_body(numbers[TOTAL],
													max_assignments));
		incomplete = PINPOINT_EVICTED_NO_ROOM;
	}
	transaction->begun = true;
	transaction->nnotifications = (uint32) numbers[NOTIFICATIONS];
	transaction->incomplete = incomplete;

	if (batch != NULL)
	{
		batch->dboid = transaction->dboid;
		batch->sender_pid = (int32) numbers[SENDER_PID];
		batch->nchannels = (uint32) numbers[CHANNELS];
		batch->nnotifications = (uint32) numbers[NOTIFICATIONS];
		batch->max_assignments = max_assignments;
		pinpoint_batch_begin(batch, &transaction->writer);
		unfinished_bytes += batch->size;
	}
}

/*
 * Reserve space in the log, if necessary by evicting listeners.  Returns NULL
 * if the batch does not fit, or if the listeners do not release enough space
 * in time.
 */
static PinpointBatch *
reserve(Size size)
{
	PinpointBatch *batch = try_reserve(size);
	instr_time	began;

	if (batch != NULL ||
		size > pinpoint_message_log_capacity() - unfinished_bytes)
		return batch;
	INSTR_TIME_SET_CURRENT(began);

	/* First the oldest quarter, then the oldest half, then all. */
	for (int divisor = 4; batch == NULL && divisor > 0; divisor /= 2)
	{
		int			n = pinpoint_evict_oldest(divisor);

		if (n > 0)
			ereport(LOG,
					(errmsg_plural("disconnecting %d listener because replay needs space in the NOTIFY queue",
								   "disconnecting %d listeners because replay needs space in the NOTIFY queue",
								   n, n),
					 errhint("Their clients read too slowly, or they have long transactions. If this is expected, increase \"pinpoint.queue_size\" on this server.")));

		/*
		 * Sessions that were evicted for this before are not waited for again.
		 */
		do
		{
			batch = try_reserve(size);
		} while (batch == NULL && pinpoint_eviction_wait(&began));
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
 * The notifications of a transaction may be incomplete: disconnect all
 * listeners of its database, or of all databases if dboid is InvalidOid.
 *
 * nnotifications: how many it has sent, 0 if not known.
 */
static void
disconnect_listeners(Oid dboid, PinpointEviction reason, uint32 nnotifications)
{
	/*
	 * Both are done in one hold of the lock: a session that begins to listen
	 * later finds the floor raised, and a session that is disconnected
	 * receives no heartbeat from above the floor.
	 */
	int			n = pinpoint_evict_database(dboid, reason,
											pinpoint_positions_raise_floor_locked);

	pinpoint_positions_wake();
	if (n == 0)
		return;
	ereport(LOG,
			(nnotifications > 0 ?
			 errmsg_plural("cannot deliver the %u notification of a transaction",
						   "cannot deliver the %u notifications of a transaction",
						   nnotifications, nnotifications) :
			 errmsg("cannot deliver the notifications of a transaction"),
			 errdetail("%s %s", _(incomplete_details[reason]),
					   OidIsValid(dboid) ?
					   _("All sessions that listen in its database are disconnected.") :
					   _("All sessions that listen are disconnected.")),
			 reason == PINPOINT_EVICTED_NO_ROOM ?
			 errhint("If this happens more than once, increase \"pinpoint.queue_size\" on this server.") : 0,
			 reason == PINPOINT_EVICTED_NEWER_FORM ?
			 errhint("Install the primary's version of pg_pinpoint on this server.") : 0));
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
 * Publish the complete batch of a transaction that has committed.
 */
static void
publish(Unfinished *transaction)
{
	PinpointBatch *batch = transaction->writer.batch;

	forget(transaction);
	pinpoint_wakeup_find_replayed(batch);
	pinpoint_commit_order_publish_replayed(batch);
}

/*
 * Remove a transaction from the list, but do not free its batch.
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
		pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
		pinpoint_message_log_withdraw(batch);
		LWLockRelease(PinpointOrderLock);
	}
}

/*
 * Drop all transactions before this one, or all if it is invalid.
 */
static void
drop_older_than(TransactionId xid)
{
	/* Backwards, because the last element replaces one that is dropped. */
	for (int i = nunfinished - 1; i >= 0; i--)
	{
		if (!TransactionIdIsValid(xid) ||
			TransactionIdPrecedes(unfinished[i].xid, xid))
			drop(&unfinished[i]);
	}
}
