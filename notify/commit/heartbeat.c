/*-------------------------------------------------------------------------
 *
 * heartbeat.c
 *		Heartbeats: notifications that show that a connection works, and a
 *		position.
 *
 * Sessions that listen on PINPOINT_HEARTBEAT_CHANNEL receive a notification
 * every pinpoint.heartbeat_interval.  Its payload is a position (see
 * positions.c) and "primary" or "standby".  The session has received all
 * notifications on its channels that were counted up to this position before
 * the heartbeat.  A client that has received no heartbeat for some time
 * connects again, executes LISTEN, and queries which channels have changed
 * since the last heartbeat.
 *
 * The waker sends heartbeats (see waker.c), one for each database in which a
 * session listens on that channel.  A heartbeat is an ordinary batch in the
 * same log as all other batches, so it arrives after the batches that were
 * published before it.  It has no transaction, and is published at once.  Its
 * position is read before its text is written, and so before its publication:
 * all batches that were counted up to it were published then; see
 * pinpoint_commit_order_published().  Batches that were counted since then may
 * also arrive before the heartbeat, which does not cover them.
 *
 * A standby that does not count notifications (see primary_status.c) sends no
 * heartbeats, because their positions would cover notifications that were not
 * counted.
 *
 * A heartbeat without listeners is discarded at its publication, like any
 * batch.  If the log has no space, the heartbeat is not sent: a client that
 * then connects again loses nothing.
 *
 * Notifications in PostgreSQL's own queue are counted, but are not in this
 * log.  A session sends a heartbeat only after it has read that queue; see
 * listener/held_heartbeat.c.
 *
 * No session can notify that channel through pg_pinpoint: see listen_notify.c,
 * and wal_message_parser.c for those of an older primary.  Sessions cannot
 * share the channel.  For notifications through PostgreSQL's own queue, see
 * position_text.c.
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

#include "base/check.h"
#include "base/hash.h"
#include "base/request.h"
#include "base/settings.h"
#include "commit/commit_order.h"
#include "commit/heartbeat.h"
#include "positions/position_text.h"
#include "positions/positions.h"
#include "queue/message_log.h"
#include "wakeup/slots_read.h"

/* A position, a space, and "primary" or "standby", which have the same length. */
#define PAYLOAD_LENGTH	(PINPOINT_POSITION_LENGTH + 8)

static long milliseconds_until(TimestampTz due);
static void send_to_all(void);
static PinpointBatchLayout *make_layout(const char *payload);
static void send_to_database(Oid dboid);

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

	AssertNoLockHeld();

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
	Oid		   *dboids;
	int			n;

	context = AllocSetContextCreate(TopMemoryContext, "pg_pinpoint heartbeat",
									ALLOCSET_SMALL_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	dboids = palloc_array(Oid, MaxBackends);
	n = pinpoint_slots_read_heartbeat_databases(dboids);
	for (int i = 0; i < n; i++)
		send_to_database(dboids[i]);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/*
 * The layout of the batch of a heartbeat.
 */
static PinpointBatchLayout *
make_layout(const char *payload)
{
	int			channel_len = strlen(PINPOINT_HEARTBEAT_CHANNEL);
	int			payload_len = strlen(payload);
	PinpointNotification *n;

	n = palloc0(offsetof(PinpointNotification, data) +
				channel_len + payload_len + 2);
	n->channel_len = channel_len;
	n->payload_len = payload_len;
	memcpy(n->data, PINPOINT_HEARTBEAT_CHANNEL, channel_len);
	memcpy(n->data + channel_len + 1, payload, payload_len);
	n->channel_hash = pinpoint_hash_channel(n->data);
	return pinpoint_batch_layout(list_make1(n));
}

static void
send_to_database(Oid dboid)
{
	PinpointBatchLayout *layout;
	PinpointBatch *batch;
	uint64		published;
	char		payload[PAYLOAD_LENGTH + 1];
	int			error;

	AssertNoLockHeld();
	Assert(OidIsValid(dboid));

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	published = pinpoint_commit_order_published();
	LWLockRelease(PinpointOrderLock);

	pinpoint_position_text_format(published, dboid, payload);
	strcpy(payload + PINPOINT_POSITION_LENGTH,
		   RecoveryInProgress() ? " standby" : " primary");
	layout = make_layout(payload);
	batch = pinpoint_message_log_reserve(layout->size, &error);
	if (batch == NULL)
		return;
	pinpoint_batch_write(batch, layout);
	batch->dboid = dboid;
	pinpoint_commit_order_publish_heartbeat(batch);
}
