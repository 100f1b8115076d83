/*-------------------------------------------------------------------------
 *
 * heartbeat.c
 *		Heartbeats: notifications that show that a connection works, and a position.
 *
 * Sessions that listen on PINPOINT_HEARTBEAT_CHANNEL receive a notification every
 * pinpoint.heartbeat_interval.  Its payload is a position (see positions.c) and
 * "primary" or "standby".  The session has received all notifications on its channels
 * that were counted up to this position before the heartbeat.  A client that has
 * received no heartbeat for some time connects again, executes LISTEN, and queries
 * which channels have changed since the last heartbeat.
 *
 * The waker sends heartbeats (see waker.c), one for each database in which a session
 * listens on that channel.  A heartbeat is an ordinary batch in the same log as all
 * other batches, so it arrives after the batches that were published before it.  It
 * has no transaction, and is published at once.  Its position is determined at its
 * publication, under one hold of PinpointOrderLock: see
 * pinpoint_commit_order_published().
 *
 * A standby with pinpoint.replicate off sends no heartbeats, because it receives no
 * notifications.
 *
 * A heartbeat without listeners is discarded at its publication, like any batch.  If
 * the log has no space, the heartbeat is not sent: a client that then connects again
 * loses nothing.
 *
 * Notifications in PostgreSQL's own queue are counted, but are not in this log.  A
 * heartbeat may arrive a moment before such a notification.
 *
 * No session can notify that channel through pg_pinpoint: see statement.c, and
 * replay.c for notifications of an older primary.  Sessions cannot share the channel.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/channel_hash.h"
#include "base/locks.h"
#include "base/request.h"
#include "base/settings.h"
#include "commit/commit_order.h"
#include "commit/heartbeat.h"
#include "commit/positions.h"
#include "queue/message_log.h"
#include "wakeup/slots.h"

/* A position, a space, and "primary" or "standby", which have the same length. */
#define PAYLOAD_LENGTH	(PINPOINT_POSITION_LENGTH + 8)

static long milliseconds_until(TimestampTz due);
static void send_to_all(void);
static PinpointBatchLayout *make_layout(void);
static void send_to_database(Oid dboid, PinpointBatchLayout *layout);
static void write_payload(char *payload, uint64 published);

/*
 * Send heartbeats if they are due.  Called by the waker.
 *
 * Returns the number of milliseconds until the next ones are due, or -1 if
 * heartbeats are off.
 *
 * Errors: out of memory.
 */
long
pinpoint_heartbeat_send(void)
{
	static TimestampTz last = 0;
	TimestampTz now;
	long		wait;

	/* If not all notifications are counted, no heartbeat must be sent. */
	if (pinpoint_heartbeat_interval == 0 ||
		(RecoveryInProgress() && !pinpoint_positions_replicates()))
		return -1;

	now = GetCurrentTimestamp();
	wait = milliseconds_until(TimestampTzPlusMilliseconds(last,
														  pinpoint_heartbeat_interval));

	/* Do not wait if the clock was set back. */
	if (wait > 0 && now >= last)
		return wait;

	last = now;
	send_to_all();
	return pinpoint_heartbeat_interval;
}

static long
milliseconds_until(TimestampTz due)
{
	return TimestampDifferenceMilliseconds(GetCurrentTimestamp(), due);
}

static void
send_to_all(void)
{
	MemoryContext context;
	MemoryContext oldcontext;
	PinpointBatchLayout *layout;
	Oid		   *dboids;
	int			n;

	context = AllocSetContextCreate(TopMemoryContext, "pg_pinpoint heartbeat",
									ALLOCSET_SMALL_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	dboids = palloc_array(Oid, MaxBackends);
	n = pinpoint_slots_heartbeat_databases(dboids);
	layout = n > 0 ? make_layout() : NULL;
	for (int i = 0; i < n; i++)
		send_to_database(dboids[i], layout);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/*
 * The layout of the batch of a heartbeat.  The payload has a constant length,
 * and is written later.
 */
static PinpointBatchLayout *
make_layout(void)
{
	int			channel_len = strlen(PINPOINT_HEARTBEAT_CHANNEL);
	PinpointNotification *n;

	n = palloc0(offsetof(PinpointNotification, data) +
				channel_len + PAYLOAD_LENGTH + 2);
	n->channel_len = channel_len;
	n->payload_len = PAYLOAD_LENGTH;
	memcpy(n->data, PINPOINT_HEARTBEAT_CHANNEL, channel_len);
	memset(n->data + channel_len + 1, ' ', PAYLOAD_LENGTH);
	n->channel_hash = pinpoint_channel_hash(n->data);
	return pinpoint_batch_layout(list_make1(n));
}

static void
send_to_database(Oid dboid, PinpointBatchLayout *layout)
{
	PinpointBatch *batch;
	PinpointBatchReader reader;
	const char *payload;
	uint32		number;
	int			error;

	batch = pinpoint_message_log_reserve(layout->size, &error);
	if (batch == NULL)
		return;

	pinpoint_batch_write(batch, layout);
	batch->dboid = dboid;
	pinpoint_batch_read(batch,
						pinpoint_batch_next_channel(pinpoint_batch_first_channel(batch)),
						&reader);
	payload = pinpoint_batch_read_next(&reader, &number);

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	write_payload(unconstify(char *, payload),
				  pinpoint_commit_order_published());
	pinpoint_commit_order_publish_heartbeat(batch);
}

static void
write_payload(char *payload, uint64 published)
{
	pinpoint_positions_format(published, payload);
	strcpy(payload + PINPOINT_POSITION_LENGTH,
		   RecoveryInProgress() ? " standby" : " primary");
}
