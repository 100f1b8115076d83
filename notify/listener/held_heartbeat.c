/*-------------------------------------------------------------------------
 *
 * held_heartbeat.c
 *		Holds a heartbeat until PostgreSQL's own queue has been read.
 *
 * A heartbeat states that all notifications up to its position have arrived,
 * also those in PostgreSQL's own queue.  But the transaction that reads the
 * heartbeat may have read that queue too early, or not at all; see delivery.c.
 * Therefore the heartbeat is not sent in this transaction.  The interrupt is
 * raised, and the transaction that PostgreSQL runs for it sends the heartbeat.
 * All notifications of F, a transaction that was counted up to the position,
 * are sent before that:
 *
 *	1. F was visible when it was counted, so before the heartbeat was
 *	   published, and before it was held; see positions.c.
 *	2. Nothing is delivered while the interrupt is pending.  PostgreSQL clears
 *	   it before it reads its own queue.  So that happens after the heartbeat
 *	   was held, with a snapshot in which F is visible.  PostgreSQL also clears
 *	   the interrupt if the session listens on nothing any more.  Then the
 *	   heartbeat is never sent: it is older than the next LISTEN.
 *	3. F is not behind a notification of a transaction that has not ended:
 *	   PostgreSQL holds a lock from the insertion into its queue to the end of
 *	   the transaction.
 *	4. If the reading fails, the interrupt is raised again; see
 *	   pinpoint_delivery_at_abort() and disconnect_reason.c.  (Not so if there
 *	   is twice in a row not enough memory to start the transaction.  In the
 *	   minor releases of which minor_release.h tells, PostgreSQL may then skip
 *	   a notification in its queue.)
 *
 * The argument is about sessions that were listening when F became visible.
 * LISTEN skips an F that is visible; see docs/missed.md.
 *
 * The session may send later notifications before the heartbeat, which does
 * not cover them.  A newer heartbeat replaces one that is still held.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/hash.h"
#include "base/request.h"
#include "listener/held_heartbeat.h"
#include "listener/listening.h"
#include "wakeup/slots.h"

/* A heartbeat has at most this many bytes, without the terminating zero. */
#define MAX_LENGTH		127

/* The payload is empty if none is held. */
static char held_payload[MAX_LENGTH + 1];
static int32 held_sender_pid;
static uint64 held_sequence;

/*
 * Is a heartbeat held?  A session that listens on nothing any more has none.
 * After the next LISTEN, the heartbeat is dropped when it would be sent.
 */
bool
pinpoint_held_heartbeat_any(void)
{
	return held_payload[0] != '\0' && pinpoint_slot_registered();
}

/*
 * Hold a heartbeat, in place of one that is held already.
 *
 * sender_pid: of the process that has sent the heartbeat.
 *
 * sequence: number of its batch.
 */
void
pinpoint_held_heartbeat_hold(const char *payload, int32 sender_pid,
							 uint64 sequence)
{
	Assert(payload[0] != '\0' && strlen(payload) <= MAX_LENGTH);
	strlcpy(held_payload, payload, sizeof(held_payload));
	held_sender_pid = sender_pid;
	held_sequence = sequence;
}

/*
 * Send the heartbeat that is held, if the session still listens.
 *
 * Errors: those of send.
 */
void
pinpoint_held_heartbeat_send(PinpointSend send)
{
	const char *channel = PINPOINT_HEARTBEAT_CHANNEL;
	char		payload[MAX_LENGTH + 1];
	uint64		begins_after;
	bool		shared;

	Assert(pinpoint_held_heartbeat_any());
	strlcpy(payload, held_payload, sizeof(payload));
	held_payload[0] = '\0';
	if (pinpoint_listening_on(channel, pinpoint_hash_channel(channel),
							  &begins_after, &shared) &&
		held_sequence > begins_after)
		send(channel, payload, held_sender_pid);
}
