/*-------------------------------------------------------------------------
 *
 * written_tables.c
 *		The tables that this transaction has locked for writing.
 *
 * A statement locks each table that it changes, however it is executed, and
 * keeps the lock until the transaction ends.  When a subtransaction is rolled
 * back, the locks that it acquired are released.  So the locks tell which
 * tables have changed, if nobody counts the changes.  They tell too much: a
 * statement that changes no row takes them, too.  Nothing is told if an
 * extension that changes a table releases its lock earlier.
 *
 * PostgreSQL does not give access to the table of locks that a process has in
 * its own memory.  So the locks are read in shared memory.
 *
 *	fast path		most locks in mode RowExclusiveLock, in the entry of this
 *					process.  Only this process adds one.  Another one that
 *					needs a conflicting lock moves it to the lock table, under
 *					fpInfoLock, in which the entry is read here.
 *	lock table		stronger locks, and those that do not fit into the fast
 *					path.  The entry has a list of its locks for each
 *					partition.  Others only add locks to it, those of the fast
 *					path.
 *
 * The fast path is read first.  A lock that was moved before this is in the
 * lock table then, and the list is not empty: the process that moved it held
 * fpInfoLock.  A lock that is moved later has been found.  So an empty list is
 * skipped without the lock of its partition.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "live/written_tables.h"

/*
 * Modes in which a transaction locks a table that it changes.  It cannot change
 * one that it has only locked in ShareUpdateExclusiveLock or ShareLock.
 */
#define WRITING_MODES \
	(LOCKBIT_ON(RowExclusiveLock) | LOCKBIT_ON(ShareRowExclusiveLock) | \
	 LOCKBIT_ON(ExclusiveLock) | LOCKBIT_ON(AccessExclusiveLock))

/* A group of the fast path has 16 slots with a bit for each of three modes. */
#define SLOTS_PER_GROUP		16
#define MODES_PER_SLOT		3
#define ROW_EXCLUSIVE_BITS	UINT64CONST(04444444444444444)

/* The tables, in TopMemoryContext. */
static Oid *tables = NULL;
static int	size = 0;

static int	find_tables(void);
static int	find_in_fast_path(int n);
static int	find_in_partition(int partition, int n);
static int	found_table(Oid relid, int n);
#ifdef USE_ASSERT_CHECKING
static void check_tables(int n);
#endif

/*
 * Set *relids to the OIDs of the tables of this database that this session has
 * locked for writing, no catalogs.  Indexes and sequences can be among them,
 * and a table can be there twice.
 *
 * Returns their number.  *relids is valid until the next call.
 *
 * Errors: out of memory.
 */
int
pinpoint_written_tables(const Oid **relids)
{
	int			n;

	Assert(IsTransactionState());
	Assert(OidIsValid(MyDatabaseId));

	while ((n = find_tables()) > size)
	{
		Oid		   *larger = MemoryContextAllocHuge(TopMemoryContext,
													(Size) n * 2 * sizeof(Oid));

		if (tables != NULL)
			pfree(tables);
		tables = larger;
		size = n * 2;
	}
#ifdef USE_ASSERT_CHECKING
	check_tables(n);
#endif
	*relids = tables;
	return n;
}

/*
 * Returns the number of tables.  If it is above size, some are not stored.
 */
static int
find_tables(void)
{
	int			n = find_in_fast_path(0);

	for (int partition = 0; partition < NUM_LOCK_PARTITIONS; partition++)
	{
		if (!PINPOINT_NO_LOCKS_IN_PARTITION(partition))
			n = find_in_partition(partition, n);
	}
	return n;
}

/*
 * n: number of tables that were found before.  Returns the new number.
 */
static int
find_in_fast_path(int n)
{
	LWLockAcquire(&MyProc->fpInfoLock, LW_SHARED);
	for (int group = 0; group < PINPOINT_FAST_PATH_GROUPS; group++)
	{
		uint64		bits =
			PINPOINT_FAST_PATH_BITS(MyProc, group) & ROW_EXCLUSIVE_BITS;

		for (; bits != 0; bits &= bits - 1)
		{
			int			slot = pg_rightmost_one_pos64(bits) / MODES_PER_SLOT;

			n = found_table(MyProc->fpRelId[group * SLOTS_PER_GROUP + slot], n);
		}
	}
	LWLockRelease(&MyProc->fpInfoLock);
	return n;
}

static int
find_in_partition(int partition, int n)
{
	LWLock	   *lock = LockHashPartitionLockByIndex(partition);
	PROCLOCK   *held = NULL;

	LWLockAcquire(lock, LW_SHARED);
	while ((held = pinpoint_next_proclock(MyProc, partition, held)) != NULL)
	{
		const LOCKTAG *tag = &held->tag.myLock->tag;

		if (tag->locktag_type == LOCKTAG_RELATION &&
			tag->locktag_field1 == MyDatabaseId &&
			(held->holdMask & WRITING_MODES) != 0)
			n = found_table(tag->locktag_field2, n);
	}
	LWLockRelease(lock);
	return n;
}

static int
found_table(Oid relid, int n)
{
	if (relid < FirstNormalObjectId)
		return n;
	if (n < size)
		tables[n] = relid;
	return n + 1;
}

#ifdef USE_ASSERT_CHECKING
/* Locks that the check looks at, at most. */
#define MAX_CHECKED		64

/*
 * In a build with assertions, the table of locks of this process is accessible.
 */
static void
check_tables(int n)
{
	HASH_SEQ_STATUS seq;
	LOCALLOCK  *local;
	int			nchecked = 0;

	hash_seq_init(&seq, GetLockMethodLocalHash());
	while ((local = hash_seq_search(&seq)) != NULL)
	{
		const LOCKTAG *tag = &local->tag.lock;
		bool		found = false;

		if (local->nLocks == 0 || tag->locktag_type != LOCKTAG_RELATION ||
			tag->locktag_field1 != MyDatabaseId ||
			tag->locktag_field2 < FirstNormalObjectId ||
			(LOCKBIT_ON(local->tag.mode) & WRITING_MODES) == 0)
			continue;
		for (int i = 0; i < n && !found; i++)
			found = tables[i] == tag->locktag_field2;
		Assert(found);
		if (++nchecked == MAX_CHECKED)
		{
			hash_seq_term(&seq);
			break;
		}
	}
}
#endif
