/*-------------------------------------------------------------------------
 *
 * replicate.c
 *		Writes the notifications of a transaction into the WAL, for standbys.
 *
 * With pinpoint.replicate a transaction writes what it notifies as logical messages
 * with the prefix "pg_pinpoint".  They are part of the transaction: the flush of its
 * commit record carries them, and nobody sees anything of them if it rolls back.  A
 * server that replays the WAL without this library ignores them.  replay.c is the
 * other end; and logical decoding hands them to output plug-ins that ask for
 * messages.
 *
 * A message holds the body of the transaction's batch, channels and notifications as
 * they are in the log; see batch.c.  A long body goes in pieces, as a WAL record has
 * to fit into memory, on both sides.
 *
 * Writing WAL gives the transaction an ID, if it has none yet, so that it will have a
 * commit record to be replayed.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "replication/message.h"

#include "compat.h"
#include "replicate.h"

/* Bytes of the body that one message holds at most. */
#define PIECE_SIZE		(256 * 1024)

/*
 * Before commit: write a batch of this transaction into the WAL.
 *
 * Errors: those of writing WAL.
 */
void
pinpoint_replicate(PinpointBatch *batch)
{
	const char *body = pinpoint_batch_body(batch);
	PinpointMessage head = {
		.version = PINPOINT_MESSAGE_VERSION,
		.sender_pid = batch->sender_pid,
		.nchannels = batch->nchannels,
		.nnotifications = batch->nnotifications,
		.total = pinpoint_batch_body_size(batch),
	};
	StringInfoData message;

	initStringInfo(&message);
	while (head.offset < head.total)
	{
		Size		piece = Min(PIECE_SIZE, head.total - head.offset);

		resetStringInfo(&message);
		appendBinaryStringInfo(&message, (const char *) &head, sizeof(head));
		appendBinaryStringInfo(&message, body + head.offset, (int) piece);
		PINPOINT_LOG_MESSAGE(PINPOINT_MESSAGE_PREFIX, message.data,
							 message.len);
		head.offset += piece;
	}
	pfree(message.data);
}
