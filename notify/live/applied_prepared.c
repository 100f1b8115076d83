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
 * apply worker then notifies all watched tables of its database.
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

#include "base/check.h"
#include "base/transaction.h"
#include "live/applied_prepared.h"
#include "live/prepared_transactions.h"
#include "live/unnotified.h"
#include "live/watched_tables.h"

/* Number of tables for which an entry has room. */
#define MAX_TABLES		60

/* What an apply worker has to know of a prepared transaction. */
typedef struct AppliedTransaction
{
	TransactionId xid;			/* invalid: the entry is free */
	Oid			subid;			/* its subscription */
	int			ntables;		/* number of tables that it has locked for
								 * writing, possibly more than MAX_TABLES */
	Oid			tables[MAX_TABLES];
} AppliedTransaction;

/*
 * mutex protects the entry.  Other sessions read its xid without it, to skip
 * free entries.
 */
typedef struct AppliedEntry
{
	slock_t		mutex;
	AppliedTransaction transaction;
} AppliedEntry;

/*
 * nused is the number of entries that are not free, or more, and nlost that of
 * entries that were overwritten.  Both are incremented under the mutex of the
 * entry, before this can be read, and read without a lock.
 */
typedef struct AppliedPrepared
{
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
static void remove_entry(int number, TransactionId xid);
static void find_prepared_before(void);
static void notify_entries(void);
static void notify_lost(void);
static bool read_own_entry(int number, AppliedTransaction *transaction);
static bool is_over(TransactionId xid, bool *committed);
static void notify(const AppliedTransaction *transaction);

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
	pg_atomic_init_u32(&applied->nused, 0);
	pg_atomic_init_u64(&applied->nlost, 0);
	for (int i = 0; i < max_prepared_xacts; i++)
	{
		SpinLockInit(&applied->entries[i].mutex);
		applied->entries[i].transaction.xid = InvalidTransactionId;
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
	{.xid = xid,.subid = MyLogicalRepWorker->subid};
	PinpointPreparedLock locks[MAX_TABLES];
	TransactionId before;

	transaction.ntables =
		pinpoint_prepared_transaction_copy_locks(number, locks, MAX_TABLES);
	for (int i = 0; i < Min(transaction.ntables, MAX_TABLES); i++)
		transaction.tables[i] = locks[i].oid;

	/* Partner: pinpoint_applied_prepared_at_pre_commit() reads nlost last. */
	SpinLockAcquire(&entry->mutex);
	before = entry->transaction.xid;
	if (!TransactionIdIsValid(before))
		pg_atomic_fetch_add_u32(&applied->nused, 1);
	else if (before != xid)
		pg_atomic_fetch_add_u64(&applied->nlost, 1);
	entry->transaction = transaction;
	SpinLockRelease(&entry->mutex);
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
	prefix = psprintf("pg_gid_%u_", MyLogicalRepWorker->subid);
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
}

/*
 * Read an entry.  Returns false if it is not one of this subscription.
 */
static bool
read_own_entry(int number, AppliedTransaction *transaction)
{
	AppliedEntry *entry = &applied->entries[number];

	if (*(volatile TransactionId *) &entry->transaction.xid ==
		InvalidTransactionId)
		return false;
	SpinLockAcquire(&entry->mutex);
	*transaction = entry->transaction;
	SpinLockRelease(&entry->mutex);
	return TransactionIdIsValid(transaction->xid) &&
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
