/*-------------------------------------------------------------------------
 *
 * wal_messages.c
 *		Writes the notifications of a transaction to the WAL, for standbys.
 *
 * With pinpoint.replicate, a transaction writes its notifications as logical
 * messages with the prefix "pg_pinpoint".  They are part of the transaction:
 * the flush of its commit record includes them, and they have no effect if it
 * rolls back.  A server that replays the WAL without this library ignores
 * them.  On a standby, replay.c reads them.  Logical decoding passes them to
 * output plugins that process messages.
 *
 * A message is a text in the encoding of the database, so that a program that
 * reads it from a replication slot can also interpret it.  Its first line has
 * six numbers:
 *
 *	version of this format
 *	PID of the sender
 *	channels and notifications of the transaction
 *	bytes that they will use in the message log, and the part of these bytes
 *	that earlier messages of this transaction contain: the offset
 *
 * The channels follow, one per line, and then the notifications: number of the
 * channel, counted from 0, tab, payload.  A backslash in a name or payload is
 * doubled, and a newline is written as a backslash and an "n".  Long data is
 * divided into several messages, each of whole lines, because a WAL record
 * must fit into memory on both servers.
 *
 * A message with no channels and no notifications has another meaning, which
 * is in place of the offset: PINPOINT_OFFSET_LEFT_OUT or
 * PINPOINT_OFFSET_RAISE_FLOOR.
 *
 * Writing WAL assigns an ID to a transaction without one, so it will have a
 * commit record that can be replayed.  That record is marked; see
 * mark_commit_record().
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "replication/message.h"

#include "base/check.h"
#include "base/transaction.h"
#include "standby/wal_messages.h"

/*
 * If a message has more bytes than this, the next line begins a new message.
 */
#define PIECE_SIZE		(256 * 1024)

static void begin_message(StringInfo message, PinpointBatch *batch,
						  Size offset);
static void append_line(StringInfo message, const char *string);
static void insert_without_contents(Size meaning);
static XLogRecPtr insert_message(StringInfo message);
static void mark_commit_record(void);

/*
 * Write the batch of this transaction to the WAL.  Called before the commit,
 * when the batch is written, and before it is announced; see pre_commit().
 * Also called before PREPARE TRANSACTION; see live/commit_prepared.c.
 *
 * Errors: out of memory, those of writing WAL.
 */
void
pinpoint_wal_messages_write(PinpointBatch *batch)
{
	StringInfoData message;
	PinpointBatchReader reader;
	const char *channel = pinpoint_batch_first_channel(batch);
	const char *payload;
	uint32		number;
	uint32		nmessages = 0;
	XLogRecPtr	end;

	/* The batch of a transaction that will be prepared is not in the queue. */
	Assert(PinpointMyTransaction.phase == (PinpointMyTransaction.batch != NULL ?
										   PINPOINT_RESERVED :
										   PINPOINT_SEALED));
	Assert(PinpointMyTransaction.batch == NULL ||
		   PinpointMyTransaction.batch == batch);
	AssertNoLockHeld();

	initStringInfo(&message);
	begin_message(&message, batch, 0);
	for (uint32 i = 0; i < batch->nchannels; i++)
	{
		if (message.len > PIECE_SIZE)
		{
			(void) insert_message(&message);
			nmessages++;
			begin_message(&message, batch,
						  pinpoint_batch_offset(batch, channel));
		}
		append_line(&message, channel);
		channel = pinpoint_batch_next_channel(channel);
	}

	pinpoint_batch_read(batch, channel, &reader);
	while ((payload = pinpoint_batch_read_next(&reader, &number)) != NULL)
	{
		if (message.len > PIECE_SIZE)
		{
			(void) insert_message(&message);
			nmessages++;
			begin_message(&message, batch,
						  pinpoint_batch_offset(batch, payload));
		}
		appendStringInfo(&message, "%u\t", number);
		append_line(&message, payload);
	}

	/* All of the batch is in the messages, and nothing after it. */
	Assert(MAXALIGN(pinpoint_batch_offset(batch, reader.cursor)) ==
		   pinpoint_batch_body_size(batch));
	end = insert_message(&message);
	pfree(message.data);
	mark_commit_record();

	/*
	 * Flush a large batch before the commit is announced: a long flush after
	 * that would hold back other notifications; see early_commit_work.c.
	 */
	if (nmessages > 0)
		XLogFlush(end);
}

/*
 * Write a message for a transaction that creates the extension.  Called before
 * its commit.  Earlier notifications of this database were not counted on
 * standbys.  So a standby raises the floor of positions at the commit; see
 * positions.c.
 *
 * Errors: out of memory, those of writing WAL.
 */
void
pinpoint_wal_messages_write_floor(void)
{
	if (XLogIsNeeded())
		insert_without_contents(PINPOINT_OFFSET_RAISE_FLOOR);
}

/*
 * Write a message for a transaction that does not replicate notifications.
 * Called before its commit.  A standby counts all channels of the database as
 * changed at the commit; see primary_status.c.
 *
 * Errors: out of memory, those of writing WAL.
 */
void
pinpoint_wal_messages_write_left_out(void)
{
	insert_without_contents(PINPOINT_OFFSET_LEFT_OUT);
}

static void
insert_without_contents(Size meaning)
{
	StringInfoData message;

	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);
	AssertNoLockHeld();

	initStringInfo(&message);
	appendStringInfo(&message, "%d %d 0 0 0 %zu\n",
					 PINPOINT_MESSAGE_VERSION, MyProcPid, meaning);
	(void) insert_message(&message);
	pfree(message.data);
	mark_commit_record();
}

static void
begin_message(StringInfo message, PinpointBatch *batch, Size offset)
{
	Assert(offset < pinpoint_batch_body_size(batch));
	Assert(offset == 0 || message->len > PIECE_SIZE);

	resetStringInfo(message);
	appendStringInfo(message, "%d %d %u %u %zu %zu\n",
					 PINPOINT_MESSAGE_VERSION, batch->sender_pid,
					 batch->nchannels, batch->nnotifications,
					 pinpoint_batch_body_size(batch), offset);
}

static void
append_line(StringInfo message, const char *string)
{
	for (;;)
	{
		Size		plain = strcspn(string, "\\\n");

		appendBinaryStringInfo(message, string, (int) plain);
		string += plain;
		if (*string == '\0')
			break;
		appendStringInfoString(message, *string == '\n' ? "\\n" : "\\\\");
		string++;
	}
	appendStringInfoChar(message, '\n');
}

/*
 * Insert a message into the WAL.  Returns the end of the record.
 */
static XLogRecPtr
insert_message(StringInfo message)
{
	xl_logical_message record = {
		.dbId = MyDatabaseId,
		.transactional = true,
		.prefix_size = sizeof(PINPOINT_MESSAGE_PREFIX),
		.message_size = message->len,
	};

	Assert(XLogIsNeeded() && !RecoveryInProgress());
	Assert(CritSectionCount == 0);

	/*
	 * As in LogLogicalMessage(): the message needs a transaction with an ID.
	 */
	(void) GetCurrentTransactionId();

	XLogBeginInsert();
	XLogRegisterData((char *) &record, SizeOfLogicalMessage);
	XLogRegisterData((char *) PINPOINT_MESSAGE_PREFIX,
					 sizeof(PINPOINT_MESSAGE_PREFIX));
	XLogRegisterData(message->data, message->len);
	XLogSetRecordFlags(XLOG_INCLUDE_ORIGIN);
	return XLogInsert(RM_LOGICALMSG_ID, XLOG_LOGICAL_MESSAGE);
}

/*
 * Mark the commit record of this transaction: messages of this library may
 * precede it.  A standby that began to replay after these messages detects by
 * the mark that it has not seen them; see why_incomplete() in replay.c.
 *
 * A commit record has no field for this.  But it has a flag for "the
 * transaction has held an AccessExclusiveLock".  If there was no such lock, a
 * standby searches for one and finds none, which has no other effect.
 * PostgreSQL itself sets the flag for every prepared transaction.  PostgreSQL
 * clears it at the start of the next transaction.
 */
static void
mark_commit_record(void)
{
	Assert(IsTransactionState());
	Assert(TransactionIdIsValid(GetTopTransactionIdIfAny()));
	MyXactFlags |= XACT_FLAGS_ACQUIREDACCESSEXCLUSIVELOCK;
}
