/*-------------------------------------------------------------------------
 *
 * unnotified.c
 *		Committed changes that the current transaction still has to notify.
 *
 * A prepared transaction is committed by a session that is in another
 * transaction, and its changes are notified at the end of this other one.  In
 * between, this session must not fail, because the commit cannot be undone.
 * So it cannot be cancelled or terminated from before the first commit until
 * after the second one: this file holds interrupts.  A request that arrives
 * meanwhile has no effect on the statement.  A request to terminate the
 * session takes effect directly after it.
 *
 * An error is still possible: the queue is full, or memory is used up.  Then
 * the sessions that listen on the channels are disconnected, and the channels
 * have changed for pinpoint.changed_since().  If it is not known which
 * channels these are, all channels of the database count.  This neither fails
 * nor allocates memory.
 *
 * Standbys need nothing: PREPARE TRANSACTION has written the notifications to
 * the WAL, and a standby publishes them when it replays the commit of the
 * prepared transaction.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/check.h"
#include "listener/evict.h"
#include "live/changes.h"
#include "live/unnotified.h"
#include "positions/positions.h"

/*
 * Does this transaction hold interrupts?  An error ends this: PostgreSQL then
 * sets the count of the holds to 0.
 */
static bool holds_interrupts = false;

/* Are the changes committed, or may they be? */
static bool is_committed = false;

/* Are there possibly more channels than those of the list? */
static bool is_unknown = false;

/* The channels of the changes, a list of char * in TopTransactionContext. */
static List *unnotified = NIL;

/* The database whose channels have changed; see count_database(). */
static Oid	dboid_to_count = InvalidOid;

static void add_channel(const char *channel);
static void disconnect_listeners(void);
static void count_database(void);
static void reset(void);

/*
 * From now on until the end of the transaction, this session cannot be
 * cancelled or terminated.  Called outside of a subtransaction.
 *
 * Errors: a request to cancel the statement or to end the session has arrived
 * before.
 */
void
pinpoint_unnotified_begin(void)
{
	CHECK_FOR_INTERRUPTS();
	if (!holds_interrupts)
		HOLD_INTERRUPTS();
	holds_interrupts = true;
}

/*
 * Notify channels by this transaction: a prepared transaction that is committed
 * now, or was committed before, has changed their tables.
 *
 * channels: a list of char *.
 *
 * Errors: out of memory.
 */
void
pinpoint_unnotified_notify(List *channels)
{
	ListCell   *lc;

	foreach(lc, channels)
		add_channel(lfirst(lc));
	pinpoint_changes_notify(channels);
}

/*
 * Partitions of a table follow each other, and often have the same channel.
 */
static void
add_channel(const char *channel)
{
	MemoryContext oldcontext;

	if (unnotified != NIL && strcmp(llast(unnotified), channel) == 0)
		return;
	oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	unnotified = lappend(unnotified, pstrdup(channel));
	MemoryContextSwitchTo(oldcontext);
}

void
pinpoint_unnotified_set_unknown(bool unknown)
{
	is_unknown = unknown;
}

/*
 * The changes are committed, or may be from now on.
 */
void
pinpoint_unnotified_set_committed(void)
{
	Assert(holds_interrupts);
	is_committed = true;
}

/*
 * An error has been raised, which ends the hold.
 *
 * committed: whether the changes are committed.
 */
void
pinpoint_unnotified_failed(bool committed)
{
	holds_interrupts = false;
	is_committed = committed;
}

/*
 * After the commit record.  PostgreSQL holds interrupts, too, until the
 * transaction has ended.
 */
void
pinpoint_unnotified_at_commit(void)
{
	if (holds_interrupts)
	{
		Assert(InterruptHoldoffCount > 1);
		RESUME_INTERRUPTS();
	}
	reset();
}

/*
 * The transaction has aborted because of an error.  Does not fail.
 */
void
pinpoint_unnotified_at_abort(void)
{
	AssertInterruptsHeld();
	AssertNoLockHeld();

	if (is_committed && (is_unknown || unnotified != NIL))
		disconnect_listeners();
	reset();
}

static void
disconnect_listeners(void)
{
	PINPOINT_BEGIN_CANNOT_FAIL();
	if (is_unknown)
		pinpoint_unnotified_tell_database(MyDatabaseId);
	else
	{
		pinpoint_positions_compute_channels(unnotified);
		pinpoint_evict_listeners(unnotified, PINPOINT_EVICTED_PREPARED,
								 pinpoint_positions_count);
		pinpoint_positions_wake();
	}
	PINPOINT_END_CANNOT_FAIL();
}

/*
 * It is not known which channels of a database would have to be notified: tell
 * all its listeners.  Does not fail.
 */
void
pinpoint_unnotified_tell_database(Oid dboid)
{
	dboid_to_count = dboid;
	(void) pinpoint_evict_database(dboid, PINPOINT_EVICTED_PREPARED,
								   count_database);
	pinpoint_positions_wake();
}

static void
count_database(void)
{
	pinpoint_positions_count_all_of(dboid_to_count);
}

static void
reset(void)
{
	holds_interrupts = false;
	is_committed = false;
	is_unknown = false;
	unnotified = NIL;
}
