/*-------------------------------------------------------------------------
 *
 * primary_status.c
 *		What a standby knows of its primary: does it replicate notifications?
 *
 * The primary writes its status to the WAL; see replication_status.c.  The
 * startup process of a standby knows it only from there.
 *
 *	UNKNOWN		at the start of replay, and after the record of a checkpoint at
 *				shutdown or of the end of recovery: the server that writes the
 *				next records has been started or promoted since, and may have
 *				another configuration, or not have this library
 *	ON			after "on".  Until the next status or the end of this server's
 *				WAL, each commit replicates its notifications, or a message that
 *				some are left out
 *	OFF			after "off"
 *
 * Notifications are counted only in the state ON, and if pinpoint.replicate is
 * on in the configuration of the standby.  Otherwise all channels have
 * changed, always, and there are no heartbeats.
 *
 * Why the answer "unchanged" of a standby is correct.  Let T be a transaction
 * that notifies channel c of database D on the primary, and P a position that
 * this standby has given before a session on it could see T.
 *
 *	1. If T is replayed in the state ON, then T was counted after it became
 *	   visible, or its message was replayed and all channels of D were counted.
 *	   Either number is above P.
 *	2. If T is replayed in another state, then no answer contains "unchanged"
 *	   until the next "on".  Then the floor is raised, after T has become
 *	   visible.  The floor is above P, so all channels have changed since P.
 *	3. If T leaves nothing in the WAL (it only notifies, and does not
 *	   replicate), then it has not read the flag of its server, because it
 *	   would have written the message.  So it has ended before that server
 *	   wrote its next "on", and a standby that replays this "on" raises the
 *	   floor as in 2, unless its state was ON before.  It was not: a server
 *	   that has written "on" has set its flag, and clears it only after "off",
 *	   or by a restart, which leaves one of the two records.
 *	4. Positions are not valid on another server, nor after a restart of this
 *	   one, nor after its promotion, which raises the floor.
 *
 * A session that listens for heartbeats receives a position P only after all
 * notifications that were counted up to P.  Those that were not counted are
 * the ones of 2, 3, and of messages in 1.  When the state becomes ON, and when
 * such a message is replayed, listeners of heartbeats are disconnected under
 * the same hold of the lock under which the counter advances.  So no session
 * whose LISTEN has committed before receives a position from after that.
 * Listeners that did not listen for heartbeats stay connected, but can no
 * longer begin to; see pinpoint_slot_set_heartbeats().
 *
 * A session that registers in this transaction may still begin to.  What was
 * not counted is visible before the counter advances, so before this
 * transaction commits; the client reads its tables, or calls changed_since(),
 * after that.  In this transaction, changed_since() reports all channels as
 * changed, because none is committed.
 *
 * The orders of events, and why each is safe.  "Record" is one of the two that
 * make the state UNKNOWN.  A primary writes such a record before any session
 * can commit.
 *
 *	switched on				"on" follows all commits that were not replicated:
 *							2, 3.
 *	switched off			"off" precedes all commits that are not replicated.
 *	off and on, or on and	If the primary has written both, as above.  If its
 *							waker has
 *	off, quickly			not noticed, the flag was set meanwhile: 1.
 *	a reload on the standby	Its setting does not change what is counted, only
 *							whether the answer uses it.  Switched on, it raises
 *							the floor.
 *	primary restarted, with	Record, UNKNOWN, then its status.  The same after a
 *							crash,
 *	another setting			where the record is that of the end of recovery.
 *	primary restarted		Record, then UNKNOWN until a server with the library
 *	without the library		writes "on".
 *	standby restarted		UNKNOWN.  It replays from a checkpoint of the
 *							primary, which repeats its status after each one.
 *							Statuses and records that follow the checkpoint are
 *							replayed again, in order.
 *	standby restarted		UNKNOWN until the primary has been restarted with
 *							the
 *	first, to install		library, and has written "on".
 *	new base backup			The same as a restart of the standby.  The backup
 *							begins at a checkpoint, also if it is taken from a
 *							standby.
 *	failover				The promoted server writes a record, which all
 *							other standbys replay: UNKNOWN, then its status, or
 *							none if it does not have the library.
 *	failover and back		The old primary is rewound and replays as a
 *							standby: restart.
 *	cascading standby		It replays the same records in the same order.
 *	timeline switch			PostgreSQL changes the timeline only at one of
 *							these records.
 *	older primary			The status of version 1.0 is ignored: UNKNOWN.
 *	message before, commit	The commit record is marked, and counts as
 *							incomplete; see
 *	after the redo point	replay.c.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog_internal.h"
#include "access/xlogutils.h"
#include "catalog/pg_control.h"

#include "base/check.h"
#include "base/settings.h"
#include "listener/evict.h"
#include "positions/positions.h"
#include "standby/primary_status.h"
#include "standby/wal_messages.h"

/* The last status that was replayed. */
static enum
{
	REPORTED_NOTHING,
	REPORTED_ON,
	REPORTED_OFF
}			reported = REPORTED_NOTHING;

/* Is it the status of the server that writes the next records? */
static bool is_current = false;

/*
 * May a commit have been replayed that was not counted, since the last one
 * that was?
 */
static bool missed = true;

/* The database of the transaction that has left out notifications. */
static Oid	left_out_in = InvalidOid;

static void (*prev_xlog_redo) (XLogReaderState *record) = NULL;

static void xlog_redo_end_of_server(XLogReaderState *record);
static void disconnect_heartbeat_listeners(Oid dboid,
										   void (*with_lock) (void));
static void count_left_out(void);

/*
 * When the library is loaded: wrap the function for records of checkpoints.
 */
void
pinpoint_primary_status_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);

	prev_xlog_redo = RmgrTable[RM_XLOG_ID].rm_redo;
	RmgrTable[RM_XLOG_ID].rm_redo = xlog_redo_end_of_server;
}

/*
 * Replay begins.
 */
void
pinpoint_primary_status_begin(void)
{
	AssertStartupProcess();
	Assert(!pinpoint_positions_replicates());

	reported = REPORTED_NOTHING;
	is_current = false;
	missed = true;
}

/*
 * The end of recovery.  If no commit was replayed that was not counted,
 * listeners have missed nothing: other transactions of the old primary are
 * not part of the history of this server.
 */
void
pinpoint_primary_status_end(void)
{
	AssertStartupProcess();
	AssertNoLockHeld();

	if (!missed)
		pinpoint_positions_raise_floor();
	else
		disconnect_heartbeat_listeners(InvalidOid,
									   pinpoint_positions_raise_floor_locked);
}

/*
 * Wrapper for records of checkpoints and others.  After these two, nothing is
 * known of the server that writes the next records.
 */
static void
xlog_redo_end_of_server(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record) & ~XLR_INFO_MASK;

	prev_xlog_redo(record);
	if (standbyState != STANDBY_DISABLED &&
		(info == XLOG_CHECKPOINT_SHUTDOWN || info == XLOG_END_OF_RECOVERY))
	{
		is_current = false;
		pinpoint_primary_status_decide_counting(false);
	}
}

/*
 * The primary reports its status.  A message in an unknown format is ignored.
 */
void
pinpoint_primary_status_set(const char *status, Size size)
{
	bool		was_off = reported == REPORTED_OFF;
	int			n;

	AssertStartupProcess();
	AssertNoLockHeld();

	if (size == strlen(PINPOINT_STATUS_ON) &&
		memcmp(status, PINPOINT_STATUS_ON, size) == 0)
		reported = REPORTED_ON;
	else if (size == strlen(PINPOINT_STATUS_OFF) &&
			 memcmp(status, PINPOINT_STATUS_OFF, size) == 0)
	{
		reported = REPORTED_OFF;
		missed = true;
	}
	else
		return;
	is_current = true;
	pinpoint_primary_status_decide_counting(false);

	if (reported == REPORTED_ON || was_off)
		return;
	n = pinpoint_evict_database(InvalidOid, PINPOINT_EVICTED_REPLICATE_OFF,
								NULL);
	if (n > 0)
		ereport(LOG,
				(errmsg("the primary no longer replicates notifications"),
				 errdetail_plural("The %d session that listens on this server is disconnected.",
								  "The %d sessions that listen on this server are disconnected.",
								  n, n),
				 errhint("Set \"pinpoint.replicate\" and \"pinpoint.enabled\" to \"on\" on every server that may become the primary.")));
}

/*
 * Determine whether the notifications that are replayed from now on are
 * counted.  Called when the status changes, and, because the setting of this
 * server may change, after each record of the resource managers Transaction
 * and Standby.
 *
 * is_commit: the record was a commit.
 */
void
pinpoint_primary_status_decide_counting(bool is_commit)
{
	bool		counts = pinpoint_replicate_notifications &&
		is_current && reported == REPORTED_ON;

	AssertStartupProcess();
	AssertNoLockHeld();

	if (counts != pinpoint_positions_replicates())
	{
		if (counts)
			disconnect_heartbeat_listeners(InvalidOid,
										   pinpoint_positions_raise_floor_locked);
		pinpoint_positions_set_replicates(counts);
	}
	if (counts)
		missed = false;
	else if (is_commit)
		missed = true;

	Assert(counts == pinpoint_positions_replicates());
	Assert(!counts || !missed);
}

/*
 * A transaction has committed that has left out notifications: all channels of
 * its database have changed.
 */
void
pinpoint_primary_status_left_out(Oid dboid)
{
	AssertStartupProcess();
	Assert(OidIsValid(dboid));

	/* Otherwise this is done for all databases, as soon as they are counted. */
	if (!pinpoint_positions_replicates())
		return;
	left_out_in = dboid;
	disconnect_heartbeat_listeners(dboid, count_left_out);
}

static void
count_left_out(void)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(OidIsValid(left_out_in));

	pinpoint_positions_count_all_of(left_out_in);
}

/*
 * Transactions may have been replayed that were not counted: advance the
 * counter, and disconnect sessions that listen for heartbeats.  They may have
 * missed notifications, and the next heartbeat would cover these.
 *
 * dboid: the database of these transactions; InvalidOid for all.
 * with_lock: advances the counter.
 */
static void
disconnect_heartbeat_listeners(Oid dboid, void (*with_lock) (void))
{
	uint64		counter PG_USED_FOR_ASSERTS_ONLY = pinpoint_positions_counter();
	int			n;

	AssertNoLockHeld();

	n = pinpoint_evict_heartbeat_listeners(dboid, with_lock);
	Assert(pinpoint_positions_counter() > counter);
	pinpoint_positions_wake();
	if (n > 0)
		ereport(LOG,
				(errmsg("notifications may have been missed because they were not replicated"),
				 errdetail_plural("The %d session that listens for heartbeats is disconnected.",
								  "The %d sessions that listen for heartbeats are disconnected.",
								  n, n)));
}
