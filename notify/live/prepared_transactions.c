/*-------------------------------------------------------------------------
 *
 * prepared_transactions.c
 *		Prepared transactions of this database: their names and their locks.
 *
 * A prepared transaction has its locks until it is committed, also after a
 * restart of the server.  They tell which tables it may have changed.
 * PostgreSQL keeps them in a process entry of the transaction: one of the
 * array PreparedXactProcs, which has max_prepared_transactions elements.  The
 * index of the element is called the number of the prepared transaction here.
 *
 * The entry can be used again as soon as the transaction has ended.  Then the
 * locks of another transaction are read.  That does no harm: the session that
 * commits the first one has notified its changes, or will.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "catalog/pg_extension.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "base/compat.h"
#include "live/prepared_transactions.h"

/* Number of locks for which there is room at first. */
#define INITIAL_SIZE	64

/*
 * Modes in which a transaction locks a table that it changes.  INSERT, UPDATE,
 * DELETE, MERGE and COPY take RowExclusiveLock; TRUNCATE, REFRESH MATERIALIZED
 * VIEW and DDL a stronger one, as do watch() and unwatch().  CREATE INDEX takes
 * ShareLock.
 */
#define WRITING_MODES \
	(LOCKBIT_ON(RowExclusiveLock) | LOCKBIT_ON(ShareUpdateExclusiveLock) | \
	 LOCKBIT_ON(ShareRowExclusiveLock) | LOCKBIT_ON(ExclusiveLock) | \
	 LOCKBIT_ON(AccessExclusiveLock))

static int	copy_locks_of_partition(int number, int partition,
									PinpointPreparedLock *locks, int n,
									int size);
static bool describe_lock(const PROCLOCK *held, PinpointPreparedLock *lock);

/*
 * The XIDs of the prepared transactions of this database with a name, or with
 * names that begin so.  Calls the function that the view pg_prepared_xacts
 * calls, which reads all prepared transactions of the server.
 *
 * Errors: out of memory.
 */
List *
pinpoint_prepared_transactions_find(const char *gid, bool is_prefix)
{
	List	   *xids = NIL;

	LOCAL_FCINFO(fcinfo, 0);
	FmgrInfo	flinfo;
	ReturnSetInfo rsinfo = {.type = T_ReturnSetInfo};

	fmgr_info(F_PG_PREPARED_XACT, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 0, InvalidOid, NULL,
							 (Node *) &rsinfo);
	rsinfo.econtext = CreateStandaloneExprContext();
	rsinfo.allowedModes = SFRM_ValuePerCall;
	for (;;)
	{
		Datum		row;
		HeapTupleHeader tuple;
		char	   *name;
		bool		isnull;

		rsinfo.isDone = ExprSingleResult;
		row = FunctionCallInvoke(fcinfo);
		if (rsinfo.isDone != ExprMultipleResult)
			break;
		tuple = DatumGetHeapTupleHeader(row);
		name = TextDatumGetCString(GetAttributeByName(tuple, "gid", &isnull));
		if ((is_prefix ? strncmp(name, gid, strlen(gid)) :
			 strcmp(name, gid)) == 0 &&
			DatumGetObjectId(GetAttributeByName(tuple, "dbid", &isnull)) == MyDatabaseId)
		{
			Datum		xid = GetAttributeByName(tuple, "transaction", &isnull);

			xids = lappend_oid(xids, DatumGetTransactionId(xid));
		}
	}
	FreeExprContext(rsinfo.econtext, true);
	return xids;
}

/*
 * The number of a prepared transaction; -1 if it has ended, and another one
 * uses its process entry.  Does not fail.
 */
int
pinpoint_prepared_transaction_number(TransactionId xid)
{
	Assert(TransactionIdIsValid(xid));

	for (int i = 0; i < max_prepared_xacts; i++)
	{
		if (*(volatile TransactionId *) &PreparedXactProcs[i].xid == xid)
			return i;
	}
	return -1;
}

/*
 * Is a transaction that had this number when it was prepared still prepared?
 * Unlike TransactionIdIsInProgress(), this needs no snapshot: in a process that
 * takes none, an XID can seem to be older than all others.  Does not fail.
 */
bool
pinpoint_prepared_transaction_in_progress(int number, TransactionId xid)
{
	int			offset;
	bool		in_progress;

	Assert(number >= 0 && number < max_prepared_xacts);
	Assert(TransactionIdIsValid(xid));

	/*
	 * When a transaction ends, its XID in the array becomes invalid.  After
	 * that, its offset may be that of another process.
	 */
	LWLockAcquire(ProcArrayLock, LW_SHARED);
	offset = PreparedXactProcs[number].pgxactoff;
	in_progress = offset >= 0 && ProcGlobal->xids[offset] == xid;
	LWLockRelease(ProcArrayLock);
	return in_progress;
}

/*
 * Copy the locks of a prepared transaction on tables of this database, in modes
 * for writing, and on extensions that it drops.
 *
 * Returns their number.  If it is above size, some are not copied.
 *
 * Each partition of PostgreSQL's lock table is locked in shared mode while the
 * locks of this transaction in it are copied.  Does not fail.
 */
int
pinpoint_prepared_transaction_copy_locks(int number,
										 PinpointPreparedLock *locks, int size)
{
	int			n = 0;

	Assert(number >= 0 && number < max_prepared_xacts);

	for (int partition = 0; partition < NUM_LOCK_PARTITIONS; partition++)
	{
		LWLock	   *lock = LockHashPartitionLockByIndex(partition);

		LWLockAcquire(lock, LW_SHARED);
		n = copy_locks_of_partition(number, partition, locks, n, size);
		LWLockRelease(lock);
	}
	return n;
}

/*
 * n: number of locks that were found before.  Returns the new number.
 */
static int
copy_locks_of_partition(int number, int partition,
						PinpointPreparedLock *locks, int n, int size)
{
	PGPROC	   *proc = &PreparedXactProcs[number];
	PROCLOCK   *held = NULL;
	PinpointPreparedLock lock;

	Assert(LWLockHeldByMe(LockHashPartitionLockByIndex(partition)));

	while ((held = pinpoint_next_proclock(proc, partition, held)) != NULL)
	{
		if (!describe_lock(held, &lock))
			continue;
		if (n < size)
			locks[n] = lock;
		n++;
	}
	return n;
}

/*
 * Returns false if the lock is of no interest.
 */
static bool
describe_lock(const PROCLOCK *held, PinpointPreparedLock *lock)
{
	const LOCKTAG *tag = &held->tag.myLock->tag;

	lock->type = tag->locktag_type;
	lock->modes = held->holdMask;
	if (tag->locktag_field1 != MyDatabaseId)
		return false;
	if (lock->type == LOCKTAG_RELATION)
	{
		lock->oid = tag->locktag_field2;
		return lock->oid >= FirstNormalObjectId &&
			(lock->modes & WRITING_MODES) != 0;
	}
	lock->oid = tag->locktag_field3;
	return lock->type == LOCKTAG_OBJECT &&
		tag->locktag_field2 == ExtensionRelationId &&
		(lock->modes & LOCKBIT_ON(AccessExclusiveLock)) != 0;
}

/*
 * The same, in an array of *n elements.
 *
 * Errors: out of memory.
 */
PinpointPreparedLock *
pinpoint_prepared_transaction_locks(TransactionId xid, int *n)
{
	int			number = pinpoint_prepared_transaction_number(xid);
	int			size = INITIAL_SIZE;
	PinpointPreparedLock *locks = palloc_array(PinpointPreparedLock, size);

	*n = 0;
	if (number < 0)
		return locks;
	while ((*n = pinpoint_prepared_transaction_copy_locks(number, locks,
														  size)) > size)
	{
		size = *n;
		locks =
			repalloc_huge(locks, (Size) size * sizeof(PinpointPreparedLock));
	}
	return locks;
}
