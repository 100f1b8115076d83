/*-------------------------------------------------------------------------
 *
 * replay.c
 *		Takes notifications out of the WAL, on a standby.
 *
 * The other end of replicate.c.  The startup process, which replays the WAL, calls
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
 * furthest behind is disconnected, with the reason, until there is room; its process
 * is waited for, as PostgreSQL does with sessions that are in the way of replay, but
 * never a client.  If there is no room even for one transaction in an empty log, all
 * that listen in its database are disconnected when it commits.
 *
 * Anybody who may call pg_logical_emit_message() can write a message that looks like
 * ours, into his own transaction.  So nothing is believed: a batch that is not as it
 * should be is dropped.
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
#include "common/hashfn.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "postmaster/startup.h"
#include "replication/message.h"
#include "storage/standbydefs.h"

#include "channel_map.h"
#include "commit_order.h"
#include "compat.h"
#include "locks.h"
#include "message_log.h"
#include "replay.h"
#include "replicate.h"
#include "slots.h"
#include "wakeup.h"

/* Microseconds between two looks whether a listener has gone. */
#define LISTENER_GONE_INTERVAL	10000

/* The numbers in the first line of a message; see replicate.c. */
enum
{
	VERSION,
	SENDER_PID,
	CHANNELS,
	NOTIFICATIONS,
	TOTAL,
	OFFSET,
};

StaticAssertDecl(OFFSET + 1 == PINPOINT_MESSAGE_NUMBERS,
				 "one name for each number");

/* Lists of batches, by transaction; a power of two. */
#define NBUCKETS				256

/*
 * The batches of transactions that have not ended yet.  They are in shared memory, but
 * these lists are of the startup process alone.
 */
static dlist_head unfinished[NBUCKETS];
static uint64 nunfinished = 0;

static void (*prev_message_redo) (XLogReaderState *record) = NULL;
static void (*prev_xact_redo) (XLogReaderState *record) = NULL;
static void (*prev_standby_redo) (XLogReaderState *record) = NULL;
static void (*prev_message_cleanup) (void) = NULL;

static void message_redo(XLogReaderState *record);
static void xact_redo_end(XLogReaderState *record);
static void standby_redo_running(XLogReaderState *record);
static void message_cleanup(void);
static void keep_piece(TransactionId xid, Oid dboid, const char *text,
					   const char *end);
static bool read_first_line(const char **text, const char *end,
							uint64 *numbers);
static bool read_number(const char **text, const char *end, char terminator,
						uint64 *number);
static PinpointBatch *begin_batch(TransactionId xid, Oid dboid,
								  const uint64 *numbers);
static bool add_line(PinpointBatch *batch, const char *line, const char *end);
static PinpointBatch *reserve(Size size);
static bool disconnect_furthest_behind(void);
static PinpointBatch *find_unfinished(TransactionId xid);
static void publish(PinpointBatch *batch);
static void drop(PinpointBatch *batch);
static void drop_older_than(TransactionId xid);

/*
 * When the library is loaded: be called for these records.
 */
void
pinpoint_replay_init(void)
{
	for (int i = 0; i < NBUCKETS; i++)
		dlist_init(&unfinished[i]);

	prev_message_redo = RmgrTable[RM_LOGICALMSG_ID].rm_redo;
	RmgrTable[RM_LOGICALMSG_ID].rm_redo = message_redo;
	prev_message_cleanup = RmgrTable[RM_LOGICALMSG_ID].rm_cleanup;
	RmgrTable[RM_LOGICALMSG_ID].rm_cleanup = message_cleanup;
	prev_xact_redo = RmgrTable[RM_XACT_ID].rm_redo;
	RmgrTable[RM_XACT_ID].rm_redo = xact_redo_end;
	prev_standby_redo = RmgrTable[RM_STANDBY_ID].rm_redo;
	RmgrTable[RM_STANDBY_ID].rm_redo = standby_redo_running;
}

static void
message_redo(XLogReaderState *record)
{
	xl_logical_message *message;

	prev_message_redo(record);

	if (standbyState == STANDBY_DISABLED)
		return;

	message = (xl_logical_message *) XLogRecGetData(record);
	if (message->transactional &&
		strcmp(message->message, PINPOINT_MESSAGE_PREFIX) == 0)
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
	PinpointBatch *batch;

	prev_xact_redo(record);

	if (nunfinished == 0)
		return;

	switch (XLogRecGetInfo(record) & XLOG_XACT_OPMASK)
	{
		case XLOG_XACT_COMMIT:
			batch = find_unfinished(XLogRecGetXid(record));
			if (batch != NULL)
				publish(batch);
			break;
		case XLOG_XACT_ABORT:
			batch = find_unfinished(XLogRecGetXid(record));
			if (batch != NULL)
				drop(batch);
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
	{
		xl_running_xacts *running = (xl_running_xacts *) XLogRecGetData(record);

		drop_older_than(running->oldestRunningXid);
	}
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
 * A piece of what a transaction notifies; replicate.c has its form.  The first one
 * begins anew, should there have been another one: only the last is PostgreSQL's.
 *
 * What is not as it should be ends the reading, so that the batch stays incomplete.
 */
static void
keep_piece(TransactionId xid, Oid dboid, const char *text, const char *end)
{
	uint64		numbers[PINPOINT_MESSAGE_NUMBERS];
	PinpointBatch *batch;

	if (!TransactionIdIsValid(xid) || !read_first_line(&text, end, numbers))
		return;

	batch = find_unfinished(xid);
	if (numbers[OFFSET] == 0)
	{
		if (batch != NULL)
			drop(batch);
		batch = begin_batch(xid, dboid, numbers);
	}
	if (batch == NULL || batch->received != numbers[OFFSET])
		return;

	while (text <end)
	{
		const char *line_end = memchr(text, '\n', end - text);

		if (line_end == NULL || !add_line(batch, text, line_end))
			return;
		text = line_end + 1;
	}
}

/*
 * The numbers at the beginning of a piece.
 */
static bool
read_first_line(const char **text, const char *end, uint64 *numbers)
{
	for (int i = 0; i < PINPOINT_MESSAGE_NUMBERS; i++)
	{
		if (!read_number(text, end,
						 i < PINPOINT_MESSAGE_NUMBERS - 1 ? ' ' : '\n',
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
read_number(const char **text, const char *end, char terminator,
			uint64 *number)
{
	const char *start = *text;

	*number = 0;
	while (*text <end && *text -start < 18 && isdigit((unsigned char) **text))
		*number = *number * 10 + (*(*text) ++- '0');
	if (*text == start || *text == end || **text !=terminator)
		return false;
	(*text) ++;
	return true;
}

/*
 * A line behind the first one: a channel, or a notification.
 */
static bool
add_line(PinpointBatch *batch, const char *line, const char *end)
{
	uint64		number = 0;
	char	   *string;
	Size		available;
	Size		len = 0;

	if (batch->nrecords >= batch->nchannels &&
		(!read_number(&line, end, '\t', &number) || number > PG_INT32_MAX))
		return false;
	if (!pinpoint_batch_next_record(batch, &string, &available))
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
		if (string != NULL)
			string[len] = c;
		len++;
	}
	return pinpoint_batch_add_record(batch, (uint32) number, len);
}

/*
 * Make a batch for a transaction.  If there is no room for it, it is one without a
 * body; NULL if there is none even for that.
 */
static PinpointBatch *
begin_batch(TransactionId xid, Oid dboid, const uint64 *numbers)
{
	PinpointBatch *batch = NULL;
	uint16		ngiven_max = Min(numbers[CHANNELS],
								 PINPOINT_CHANNELS_LOOKED_UP) *
		pinpoint_channel_map_max_share_limit();
	bool		no_room = false;

	if (numbers[TOTAL] <= pinpoint_message_log_capacity())
		batch = reserve(pinpoint_batch_size_of_body(numbers[TOTAL],
													ngiven_max));
	if (batch == NULL)
	{
		no_room = true;
		ngiven_max = 0;
		batch = reserve(pinpoint_batch_size_of_body(0, 0));
		if (batch == NULL)
			return NULL;
	}

	batch->dboid = dboid;
	batch->sender_pid = (int32) numbers[SENDER_PID];
	batch->nchannels = (uint32) numbers[CHANNELS];
	batch->nnotifications = (uint32) numbers[NOTIFICATIONS];
	batch->nlisteners = 0;
	batch->ngiven_max = ngiven_max;
	batch->no_room = no_room;
	batch->joined = 0;
	batch->xid = xid;
	batch->ngiven = 0;
	batch->shared_with_all = false;
	batch->nrecords = 0;
	batch->received = 0;
	batch->expected = numbers[TOTAL];

	dlist_push_tail(&unfinished[murmurhash32(xid) % NBUCKETS], &batch->link);
	nunfinished++;
	return batch;
}

/*
 * Take space in the log, if need be that of listeners.  NULL if nobody listens who
 * keeps any.
 */
static PinpointBatch *
reserve(Size size)
{
	for (;;)
	{
		PinpointBatch *batch;
		int			error;

		LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
		batch = pinpoint_message_log_reserve(size, &error);
		LWLockRelease(PinpointOrderLock);
		if (batch != NULL)
			return batch;

		if (!disconnect_furthest_behind())
			return NULL;
	}
}

/*
 * Disconnect the listener that is furthest behind, and wait until its process has
 * gone.  False if there is none.
 */
static bool
disconnect_furthest_behind(void)
{
	int			pid = pinpoint_slots_give_up_furthest();

	if (pid == 0)
		return false;

	ereport(LOG,
			(errmsg("disconnecting the listener with PID %d, as replay needs room in the NOTIFY queue",
					pid),
			 errhint("Its client reads too slowly, or it has been in a transaction for long. Increase \"pinpoint.queue_size\" on this server if that is to be expected.")));

	while (pinpoint_slots_is_listening(pid))
	{
		/* As in pg_terminate_backend(), it may have ended by itself. */
		(void) kill(pid, SIGTERM);
		pg_usleep(LISTENER_GONE_INTERVAL);
		PINPOINT_STARTUP_INTERRUPTS();
	}
	return true;
}

static PinpointBatch *
find_unfinished(TransactionId xid)
{
	dlist_iter	iter;

	if (nunfinished == 0)
		return NULL;
	dlist_foreach(iter, &unfinished[murmurhash32(xid) % NBUCKETS])
	{
		PinpointBatch *batch = dlist_container(PinpointBatch, link, iter.cur);

		if (batch->xid == xid)
			return batch;
	}
	return NULL;
}

/*
 * The transaction of a batch has committed.
 */
static void
publish(PinpointBatch *batch)
{
	if (!pinpoint_batch_is_complete(batch))
	{
		ereport(LOG,
				(errmsg("ignoring a logical message with the prefix \"%s\" that pg_pinpoint has not written",
						PINPOINT_MESSAGE_PREFIX)));
		drop(batch);
		return;
	}
	if (batch->no_room)
	{
		int			n = pinpoint_slots_give_up_database(batch->dboid);

		ereport(LOG,
				(errmsg("there is no room in the NOTIFY queue for a transaction with %u notifications",
						batch->nnotifications),
				 errdetail("The %d sessions that listen in its database are disconnected.",
						   n),
				 errhint("Increase \"pinpoint.queue_size\" on this server.")));
		drop(batch);
		return;
	}

	dlist_delete(&batch->link);
	nunfinished--;
	pinpoint_commit_order_publish_replayed(batch);
}

static void
drop(PinpointBatch *batch)
{
	dlist_delete(&batch->link);
	nunfinished--;
	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_message_log_free(batch);
	LWLockRelease(PinpointOrderLock);
}

/*
 * Drop the batches of transactions before this one, or of all if it is invalid.
 */
static void
drop_older_than(TransactionId xid)
{
	for (int i = 0; i < NBUCKETS; i++)
	{
		dlist_mutable_iter iter;

		dlist_foreach_modify(iter, &unfinished[i])
		{
			PinpointBatch *batch = dlist_container(PinpointBatch, link,
												   iter.cur);

			if (!TransactionIdIsValid(xid) ||
				TransactionIdPrecedes(batch->xid, xid))
				drop(batch);
		}
	}
}
