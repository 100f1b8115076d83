/*-------------------------------------------------------------------------
 *
 * applied_prepared.c
 *		Notifies prepared transactions that apply workers commit.
 *
 * The apply worker of a subscription with two_phase commits prepared
 * transactions without a statement, and no hook is called before that.  It
 * commits them within a transaction of its own, whose pre-commit callback
 * follows.  The locks have been released by then.
 *
 * Therefore shared memory contains the tables that these transactions have
 * locked for writing.  The worker that prepares a transaction stores them
 * directly after it has written the record, before the apply worker goes on.
 * It may be the apply worker or a parallel apply worker.  In each pre-commit,
 * the apply worker looks for transactions of its subscription that have been
 * committed, and notifies the channels of their tables; see also unnotified.c.
 * If a worker ends between the two commits, the next worker of the
 * subscription finds the transaction.
 *
 * A worker may stand still between the two commits, or may be the last one of
 * its subscription, which is disabled or dropped.  So senders and the waker
 * look once a second for transactions that have been over for MAX_LEFT
 * milliseconds.  They know neither the labels nor, cheaply, whether the
 * transaction was committed.  So they disconnect all listeners of the database,
 * and all its channels have changed, as in unnotified.c.
 *
 * A worker that starts also looks for transactions that were prepared before
 * the server was started.  It recognizes them by their names.  It has
 * committed a transaction of its own before it commits a prepared one.
 *
 * The channels are determined after the commit, with the labels of that time.
 * If another session has changed a label since, this has notified the channel
 * before.
 *
 * Memory.  Each prepared transaction has an entry at its number (see
 * prepared_transactions.c).  So there is always room.  An entry remains until
 * a worker of the subscription has seen that the transaction is over.  If the
 * number is used again before, the entry is lost.  The next commit of each
 * apply worker then notifies all watched tables of its database.  If none of
 * the database commits within MAX_LEFT, it is taken over as above.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "replication/logicalworker.h"
#include "replication/worker_internal.h"
#include "storage/procarray.h"
#include "storage/spin.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/interval.h"
#include "base/transaction.h"
#include "live/applied_prepared.h"
#include "live/prepared_transactions.h"
#include "live/unnotified.h"
#include "live/watched_tables.h"

/* The names of transactions that a subscription prepares begin so. */
#define GID_PREFIX		"pg_gid_"

/* Number of tables for which an entry has room. */
#define MAX_TABLES		60

/*
 * Milliseconds between two looks of senders and of the waker, and those for
 * which a transaction that is over is left to its worker.
 */
#define LOOK_INTERVAL	1000
#define MAX_LEFT		10000

/* What an apply worker has to know of a prepared transaction. */
typedef struct AppliedTransaction
{
	TransactionId xid;			/* invalid: the entry is free */
	Oid			dboid;			/* its database */
	Oid			subid;			/* its subscription */
	TimestampTz over_since;		/* when a sender or the waker has first seen
								 * that it is over; 0 if none has */
	int			ntables;		/* number of tables that it has locked for
								 * writing, possibly more than MAX_TABLES */
	Oid			tables[MAX_TABLES];
} AppliedTransaction;

/*
 * mutex protects the entry.  Other sessions read its xid and lost_dboid without
 * it, to skip free entries.
 */
typedef struct AppliedEntry
{
	slock_t		mutex;
	AppliedTransaction transaction;
	Oid			lost_dboid;		/* database of a transaction that was
								 * overwritten, and may not be notified;
								 * InvalidOid if there is none */
	TimestampTz lost_since;		/* when it was overwritten */
} AppliedEntry;

/*
 * nused is the number of transactions and databases in entries, or more, and
 * nlost that of transactions that were overwritten.  Both are incremented under
 * the mutex of the entry, before this can be read, and read without a lock.
 * looked_at is the time of the last look of a sender or of the waker; no lock,
 * as two looks at the same time do no harm.
 */
typedef struct AppliedPrepared
{
	pg_atomic_uint64 looked_at;
	pg_atomic_uint32 nused;
	pg_atomic_uint64 nlost;
	AppliedEntry entries[FLEXIBLE_ARRAY_MEMBER];	/* max_prepared_transactions
													 * elements */
} AppliedPrepared;

static AppliedPrepared *applied = NULL;

/* The value of nlost that this worker has handled. */
static uint64 handled_lost = 0;

static bool is_apply_worker(void);
static void store(int number, TransactionId xid);
static void lose(AppliedEntry *entry, TimestampTz now);
static void remove_lost(int number, Oid dboid, TimestampTz since);
static void remove_entry(int number, TransactionId xid);
static void find_prepared_before(void);
static void notify_entries(void);
static void notify_lost(void);
static bool read_entry(int number, AppliedTransaction *transaction);
static bool read_own_entry(int number, AppliedTransaction *transaction);
static bool is_over(TransactionId xid, bool *committed);
static void notify(const AppliedTransaction *transaction);
static Oid	lost_database(int number, TimestampTz now, TimestampTz *since);
static bool is_left(int number, const AppliedTransaction *transaction,
					TimestampTz now);

Size
pinpoint_applied_prepared_shmem_size(void)
{
	return add_size(offsetof(AppliedPrepared, entries),
					mul_size(max_prepared_xacts, sizeof(AppliedEntry)));
}

/*
 * The postmaster calls this at start and at restart after a crash.
 */
void
pinpoint_applied_prepared_shmem_init(void *memory)
{
	applied = memory;
	pg_atomic_init_u64(&applied->looked_at, 0);
	pg_atomic_init_u32(&applied->nused, 0);
	pg_atomic_init_u64(&applied->nlost, 0);
	for (int i = 0; i < max_prepared_xacts; i++)
	{
		SpinLockInit(&applied->entries[i].mutex);
		applied->entries[i].transaction.xid = InvalidTransactionId;
		applied->entries[i].lost_dboid = InvalidOid;
	}
}

/*
 * Is this a worker of a subscription?  Workers that copy tables prepare
 * nothing, so their looks find nothing.
 */
static bool
is_apply_worker(void)
{
	return unlikely(IsLogicalWorker()) && max_prepared_xacts > 0 &&
		OidIsValid(MyDatabaseId);
}

/*
 * Called in XACT_EVENT_PREPARE, in all sessions: the record is written, and the
 * locks belong to the prepared transaction.  Does not fail.
 */
void
pinpoint_applied_prepared_at_prepare(void)
{
	TransactionId xid = GetTopTransactionIdIfAny();
	int			number;

	AssertInterruptsHeld();

	if (!is_apply_worker() || !TransactionIdIsValid(xid))
		return;
	number = pinpoint_prepared_transaction_number(xid);
	Assert(number >= 0);
	if (number >= 0)
		store(number, xid);
}

/*
 * Store a prepared transaction of this subscription.  Does not fail.
 */
static void
store(int number, TransactionId xid)
{
	AppliedEntry *entry = &applied->entries[number];
	AppliedTransaction transaction =
	{.xid = xid,.dboid = MyDatabaseId,.subid = MyLogicalRepWorker->subid};
	PinpointPreparedLock locks[MAX_TABLES];
	TimestampTz now = GetCurrentTimestamp();

	transaction.ntables =
		pinpoint_prepared_transaction_copy_locks(number, locks, MAX_TABLES);
	for (int i = 0; i < Min(transaction.ntables, MAX_TABLES); i++)
		transaction.tables[i] = locks[i].oid;

	/* Partner: pinpoint_applied_prepared_at_pre_commit() reads nlost last. */
	SpinLockAcquire(&entry->mutex);
	if (!TransactionIdIsValid(entry->transaction.xid))
		pg_atomic_fetch_add_u32(&applied->nused, 1);
	else if (entry->transaction.xid != xid)
	{
		pg_atomic_fetch_add_u64(&applied->nlost, 1);
		lose(entry, now);
	}
	entry->transaction = transaction;
	SpinLockRelease(&entry->mutex);
}

/*
 * The transaction of an entry is overwritten.  If another one of another
 * database is lost already, only the workers of the later one care for it.  The
 * caller holds the mutex.
 */
static void
lose(AppliedEntry *entry, TimestampTz now)
{
	if (entry->transaction.ntables == 0)
		return;
	if (!OidIsValid(entry->lost_dboid))
	{
		entry->lost_dboid = entry->transaction.dboid;
		pg_atomic_fetch_add_u32(&applied->nused, 1);
	}
	if (entry->lost_dboid == entry->transaction.dboid)
		entry->lost_since = now;
}

/*
 * Lost transactions of a database are notified, or their listeners are told.
 *
 * since: only if the last one was lost at this time; 0: at any time.
 */
static void
remove_lost(int number, Oid dboid, TimestampTz since)
{
	AppliedEntry *entry = &applied->entries[number];
	bool		removed;

	if (*(volatile Oid *) &entry->lost_dboid != dboid)
		return;
	SpinLockAcquire(&entry->mutex);
	removed = entry->lost_dboid == dboid &&
		(since == 0 || entry->lost_since == since);
	if (removed)
		entry->lost_dboid = InvalidOid;
	SpinLockRelease(&entry->mutex);

	if (removed)
		pg_atomic_fetch_sub_u32(&applied->nused, 1);
}

/*
 * Free an entry, unless it belongs to another transaction now.
 */
static void
remove_entry(int number, TransactionId xid)
{
	AppliedEntry *entry = &applied->entries[number];
	bool		removed;

	SpinLockAcquire(&entry->mutex);
	removed = entry->transaction.xid == xid;
	if (removed)
		entry->transaction.xid = InvalidTransactionId;
	SpinLockRelease(&entry->mutex);

	if (removed)
		pg_atomic_fetch_sub_u32(&applied->nused, 1);
}

/*
 * Called in XACT_EVENT_PRE_COMMIT, in all sessions: notify the changes of
 * prepared transactions of this subscription that have been committed, by this
 * transaction or before.
 *
 * Errors: out of memory, those of reading catalogs and pg_xact.
 */
void
pinpoint_applied_prepared_at_pre_commit(void)
{
	static bool found_before = false;

	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);
	Assert(CurrentMemoryContext == TopTransactionContext);

	if (!is_apply_worker())
		return;
	if (!found_before)
		find_prepared_before();
	found_before = true;
	if (pg_atomic_read_u32(&applied->nused) != 0)
		notify_entries();

	/*
	 * Another worker can overwrite an entry as soon as its transaction is
	 * over, and free it again.  So this comes after the entries were read.
	 */
	pg_read_barrier();
	notify_lost();
}

/*
 * Notify the transactions of this subscription that are over.
 */
static void
notify_entries(void)
{
	AppliedTransaction transaction;
	bool		committed;

	for (int i = 0; i < max_prepared_xacts; i++)
	{
		if (!read_own_entry(i, &transaction) ||
			!is_over(transaction.xid, &committed))
			continue;
		if (committed)
			notify(&transaction);
		remove_entry(i, transaction.xid);
	}
}

/*
 * Called before the first commit of a worker: look at all prepared transactions
 * of this subscription.  Those without an entry were prepared before the server
 * was started.  Those that have only an entry are over: they had been prepared
 * when it was stored.  They count as committed, because pg_xact may be
 * truncated.
 */
static void
find_prepared_before(void)
{
	AppliedTransaction *stored = palloc_array(AppliedTransaction,
											  max_prepared_xacts);
	char	   *prefix;
	List	   *xids;
	ListCell   *lc;

	for (int i = 0; i < max_prepared_xacts; i++)
	{
		if (!read_own_entry(i, &stored[i]))
			stored[i].xid = InvalidTransactionId;
	}
	prefix = psprintf(GID_PREFIX "%u_", MyLogicalRepWorker->subid);
	xids = pinpoint_prepared_transactions_find(prefix, true);
	for (int i = 0; i < max_prepared_xacts; i++)
	{
		if (!TransactionIdIsValid(stored[i].xid) ||
			list_member_oid(xids, stored[i].xid))
			continue;
		notify(&stored[i]);
		remove_entry(i, stored[i].xid);
	}
	foreach(lc, xids)
	{
		int			number =
			pinpoint_prepared_transaction_number(lfirst_oid(lc));

		if (number >= 0)
			store(number, lfirst_oid(lc));
	}
}

/*
 * Entries were overwritten.  They may have been of this subscription.
 */
static void
notify_lost(void)
{
	uint64		nlost = pg_atomic_read_u64(&applied->nlost);

	if (nlost == handled_lost)
		return;
	AcceptInvalidationMessages();
	if (pinpoint_watched_tables_exist())
	{
		pinpoint_unnotified_begin();
		pinpoint_unnotified_notify(pinpoint_watched_tables_channels());
		pinpoint_unnotified_set_committed();
	}
	handled_lost = nlost;

	/* One that is lost only now became visible before this commit, too. */
	for (int i = 0; i < max_prepared_xacts; i++)
		remove_lost(i, MyDatabaseId, 0);
}

/*
 * Read an entry.  Returns false if it is free.
 */
static bool
read_entry(int number, AppliedTransaction *transaction)
{
	AppliedEntry *entry = &applied->entries[number];

	if (*(volatile TransactionId *) &entry->transaction.xid ==
		InvalidTransactionId)
		return false;
	SpinLockAcquire(&entry->mutex);
	*transaction = entry->transaction;
	SpinLockRelease(&entry->mutex);
	return TransactionIdIsValid(transaction->xid);
}

/*
 * The same.  Also returns false if it is not an entry of this subscription.
 */
static bool
read_own_entry(int number, AppliedTransaction *transaction)
{
	return read_entry(number, transaction) &&
		transaction->subid == MyLogicalRepWorker->subid;
}

/*
 * Is a transaction over, and visible if it is committed?  In this order, most
 * calls read only pg_xact.
 */
static bool
is_over(TransactionId xid, bool *committed)
{
	*committed = TransactionIdDidCommit(xid);
	return (*committed || TransactionIdDidAbort(xid)) &&
		!TransactionIdIsInProgress(xid);
}

/*
 * Notify a committed transaction.  From here on, this session must not fail.
 */
static void
notify(const AppliedTransaction *transaction)
{
	AcceptInvalidationMessages();
	if (!pinpoint_watched_tables_exist())
		return;

	pinpoint_unnotified_begin();
	if (transaction->ntables > MAX_TABLES)
		pinpoint_unnotified_notify(pinpoint_watched_tables_channels());
	for (int i = 0; i < Min(transaction->ntables, MAX_TABLES); i++)
	{
		Oid			relid = transaction->tables[i];

		pinpoint_unnotified_notify(pinpoint_watched_tables_to_notify(relid));
	}
	pinpoint_unnotified_set_committed();
}

/*
 * Called before a session ends a prepared transaction by its name.  Returns its
 * XID if the name is one of a subscription, and otherwise InvalidTransactionId.
 *
 * Errors: out of memory.
 */
TransactionId
pinpoint_applied_prepared_find(const char *gid)
{
	List	   *xids;

	/* The statement reports these errors. */
	if (!IsTransactionState() || IsTransactionBlock() ||
		pg_atomic_read_u32(&applied->nused) == 0 ||
		strncmp(gid, GID_PREFIX, strlen(GID_PREFIX)) != 0)
		return InvalidTransactionId;
	xids = pinpoint_prepared_transactions_find(gid, false);
	return xids != NIL ? linitial_oid(xids) : InvalidTransactionId;
}

/*
 * Called after it: this session has ended the transaction, and notifies it, or
 * will tell the listeners.  So no worker has to.  Not called if the statement
 * has failed: another session may have ended the transaction.  Does not fail.
 *
 * xid: result of pinpoint_applied_prepared_find().
 */
void
pinpoint_applied_prepared_forget(TransactionId xid)
{
	if (!TransactionIdIsValid(xid))
		return;
	for (int i = 0; i < max_prepared_xacts; i++)
		remove_entry(i, xid);
}

/*
 * Called before a commit that notifies, and by the waker: take over the
 * transactions that are left to a worker for too long.  Does not fail.
 */
void
pinpoint_applied_prepared_take_over(void)
{
	TimestampTz now;
	TimestampTz looked_at;

	AssertNoLockHeld();
	if (likely(pg_atomic_read_u32(&applied->nused) == 0))
		return;
	now = GetCurrentTimestamp();
	looked_at = (TimestampTz) pg_atomic_read_u64(&applied->looked_at);

	if (!pinpoint_interval_has_passed(looked_at, now, LOOK_INTERVAL))
		return;
	pg_atomic_write_u64(&applied->looked_at, (uint64) now);

	for (int i = 0; i < max_prepared_xacts; i++)
	{
		AppliedTransaction transaction;
		TimestampTz since = 0;
		Oid			lost = lost_database(i, now, &since);

		if (read_entry(i, &transaction) && is_left(i, &transaction, now))
		{
			if (transaction.ntables > 0)
				pinpoint_unnotified_tell_database(transaction.dboid);
			remove_entry(i, transaction.xid);
		}
		if (OidIsValid(lost))
		{
			pinpoint_unnotified_tell_database(lost);
			remove_lost(i, lost, since);
		}
	}
}

/*
 * The database of a transaction that was lost long ago, and since when;
 * InvalidOid if there is none.
 */
static Oid
lost_database(int number, TimestampTz now, TimestampTz *since)
{
	AppliedEntry *entry = &applied->entries[number];
	Oid			dboid = InvalidOid;

	if (!OidIsValid(*(volatile Oid *) &entry->lost_dboid))
		return InvalidOid;
	SpinLockAcquire(&entry->mutex);
	if (entry->lost_since > now)
		entry->lost_since = now;	/* the clock was set back */
	if (TimestampDifferenceExceeds(entry->lost_since, now, MAX_LEFT))
		dboid = entry->lost_dboid;
	*since = entry->lost_since;
	SpinLockRelease(&entry->mutex);
	return dboid;
}

/*
 * Has a transaction been over for long?  Stores the time if this is seen for
 * the first time.
 *
 * A worker that starts can have stored a transaction that is just being
 * prepared, which is not in progress yet.
 */
static bool
is_left(int number, const AppliedTransaction *transaction, TimestampTz now)
{
	AppliedEntry *entry = &applied->entries[number];
	TimestampTz since = transaction->over_since;

	if (since != 0 && since <= now &&
		!TimestampDifferenceExceeds(since, now, MAX_LEFT))
		return false;
	if (pinpoint_prepared_transaction_in_progress(number, transaction->xid))
		since = 0;
	else if (since != 0 && since <= now)
		return true;
	else
		since = GetCurrentTimestamp();	/* this process may have been stopped */
	SpinLockAcquire(&entry->mutex);
	if (entry->transaction.xid == transaction->xid)
		entry->transaction.over_since = since;
	SpinLockRelease(&entry->mutex);
	return false;
}
