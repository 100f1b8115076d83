/*-------------------------------------------------------------------------
 *
 * standby_snapshot.c
 *		Writes snapshots of the running transactions to the WAL when many
 *		transactions have changed catalogs.
 *
 * Logical decoding keeps the IDs of the transactions that have changed a
 * catalog, and sorts all of them again for each further one.  It removes them
 * at a snapshot of the running transactions (xl_running_xacts), which the
 * background writer writes every 15 seconds and each checkpoint once.  A
 * schema change with a transaction for each of N tables can end within these
 * 15 seconds, so the time to decode it is again proportional to N squared.
 *
 * This file counts the transactions that change a catalog, when they commit.
 * When their number reaches the setting, a background worker writes such a
 * snapshot, with the function that the background writer uses.
 *
 * This adds a small record to the WAL from time to time, so it is off by
 * default, and there is no worker then.  The count need not be exact: it
 * determines when a record is written, and does not affect the result of
 * decoding.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/sinval.h"
#include "storage/spin.h"
#include "storage/standby.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"

#include "compat.h"
#include "decoding.h"

/* Seconds after which a worker that has failed is restarted */
#define RESTART_INTERVAL	5

typedef struct SharedStandbySnapshot
{
	/* Transactions that have changed a catalog, and their subtransactions */
	pg_atomic_uint64 changes;

	/* Snapshots that were written.  Only the worker writes this. */
	pg_atomic_uint64 snapshots;

	slock_t		mutex;			/* protects the latch */
	Latch	   *worker_latch;	/* NULL if there is no worker */
} SharedStandbySnapshot;

/* Setting: number of transactions until a snapshot is written; 0: never */
static int	standby_snapshot_interval = 0;

/* NULL if the library is not active */
static SharedStandbySnapshot *standby_snapshot = NULL;

static const char *library_name(Size size);
static void count_changes(XactEvent event, void *arg);
static bool changes_catalog(void);
static void wake_worker(void);
static void forget_worker(int code, Datum arg);
static void set_worker_latch(Latch *expected, Latch *latch);
static void write_snapshot(void);
static bool is_wanted(void);

PGDLLEXPORT void pinpoint_standby_snapshot_main(Datum arg);

void
pinpoint_standby_snapshot_define_setting(void)
{
	DefineCustomIntVariable("pinpoint_decoding.standby_snapshot_interval",
							"Sets the number of catalog-changing transactions after which a snapshot of the running transactions is written to the WAL.",
							"This makes logical decoding of many small schema changes faster. Zero disables it.",
							&standby_snapshot_interval,
							0, 0, INT_MAX,
							PGC_POSTMASTER,
							0,
							NULL, NULL, NULL);
}

/*
 * Register the worker.  Called if the library is active, after the setting was
 * read.
 */
void
pinpoint_standby_snapshot_init(void)
{
	BackgroundWorker worker = {0};
	const char *library;

	Assert(process_shared_preload_libraries_in_progress);
	if (standby_snapshot_interval == 0)
		return;
	library = library_name(sizeof(worker.bgw_library_name));
	if (library == NULL)
	{
		ereport(WARNING,
				(errmsg("no snapshots of running transactions are written because the path of the library is too long")));
		return;
	}

	RegisterXactCallback(count_changes, NULL);

	worker.bgw_flags =
		BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = RESTART_INTERVAL;
	strlcpy(worker.bgw_name, "pg_pinpoint_decoding standby snapshots", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "pg_pinpoint_decoding standby snapshots", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, library, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "pinpoint_standby_snapshot_main", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/*
 * Returns the name by which the worker loads this library: the path of its
 * file, because the server may preload a library by path.  Before PostgreSQL
 * 17, the path may be too long.  Then returns the short name if it means the
 * same file, else NULL.
 *
 * size: of bgw_library_name, in bytes.
 */
static const char *
library_name(Size size)
{
	char		installed[MAXPGPATH];
	Dl_info		info;

	if (dladdr(&standby_snapshot, &info) == 0)
		return "pg_pinpoint_decoding";
	if (strlen(info.dli_fname) < size)
		return info.dli_fname;
	snprintf(installed, sizeof(installed), "%s/pg_pinpoint_decoding.so", pkglib_path);
	return strcmp(info.dli_fname, installed) == 0 ? "pg_pinpoint_decoding" : NULL;
}

Size
pinpoint_standby_snapshot_shmem_size(void)
{
	return sizeof(SharedStandbySnapshot);
}

void
pinpoint_standby_snapshot_shmem_init(void)
{
	bool		found;

	Assert(LWLockHeldByMeInMode(AddinShmemInitLock, LW_EXCLUSIVE));
	standby_snapshot = ShmemInitStruct("pg_pinpoint_decoding standby snapshots",
									   pinpoint_standby_snapshot_shmem_size(),
									   &found);
	if (found)
		return;

	pg_atomic_init_u64(&standby_snapshot->changes, 0);
	pg_atomic_init_u64(&standby_snapshot->snapshots, 0);
	SpinLockInit(&standby_snapshot->mutex);
	standby_snapshot->worker_latch = NULL;
}

/* Number of snapshots that the worker has written since the server started */
uint64
pinpoint_standby_snapshots(void)
{
	Assert(standby_snapshot != NULL);
	return pg_atomic_read_u64(&standby_snapshot->snapshots);
}

/*
 * Callback before the end of a transaction: count it if it changes a catalog.
 *
 * The transaction may still fail, or may be prepared and committed much later.
 * This does no harm.  After the commit, no step may fail, so it is counted
 * here.
 *
 * Errors: out of memory.
 */
static void
count_changes(XactEvent event, void *arg)
{
	TransactionId *children;
	uint64		before;
	uint64		now;

	if (event != XACT_EVENT_PRE_COMMIT && event != XACT_EVENT_PRE_PREPARE)
		return;
	if (!changes_catalog())
		return;

	/* Decoding also keeps the IDs of subtransactions. */
	Assert(standby_snapshot != NULL && standby_snapshot_interval > 0);
	now = 1 + (uint64) xactGetCommittedChildren(&children);
	before = pg_atomic_fetch_add_u64(&standby_snapshot->changes, now);
	now += before;
	if (now / standby_snapshot_interval != before / standby_snapshot_interval)
		wake_worker();
}

/*
 * Has the transaction changed a catalog?  This is so if it has invalidation
 * messages to send.  PostgreSQL calls the same function when it writes the
 * commit record.
 *
 * Errors: out of memory.
 */
static bool
changes_catalog(void)
{
	SharedInvalidationMessage *messages;
	bool		init_file_changes;

	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return false;
	if (xactGetCommittedInvalidationMessages(&messages,
											 &init_file_changes) == 0)
		return false;
	pfree(messages);
	return true;
}

static void
wake_worker(void)
{
	Latch	   *latch;

	SpinLockAcquire(&standby_snapshot->mutex);
	latch = standby_snapshot->worker_latch;
	SpinLockRelease(&standby_snapshot->mutex);

	/* Another process may own the latch by now, and ignores the wakeup. */
	if (latch != NULL)
		SetLatch(latch);
}

/*
 * Main function of the worker.  All transactions together wake it once in each
 * interval.  Transactions do not wait for it.
 */
void
pinpoint_standby_snapshot_main(Datum arg)
{
	uint64		last;

	Assert(MyBackendType == B_BG_WORKER);
	Assert(standby_snapshot != NULL && standby_snapshot_interval > 0);
	last = pg_atomic_read_u64(&standby_snapshot->changes);

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	/*
	 * It connects to no database, because pg_stat_activity does not show a
	 * background worker that is not connected.
	 */
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	before_shmem_exit(forget_worker, (Datum) 0);
	set_worker_latch(NULL, MyLatch);

	for (;;)
	{
		uint64		now;

		CHECK_FOR_INTERRUPTS();

		now = pg_atomic_read_u64(&standby_snapshot->changes);
		Assert(now >= last);
		if (now / standby_snapshot_interval != last / standby_snapshot_interval)
		{
			last = now;
			if (is_wanted())
				write_snapshot();
		}

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1,
						 pinpoint_wait_event());
		ResetLatch(MyLatch);
	}
}

static void
forget_worker(int code, Datum arg)
{
	set_worker_latch(MyLatch, NULL);
}

/*
 * Store the latch of the worker.  There is one worker at a time, and it
 * forgets its latch before it ends.
 *
 * expected: the latch that is stored until now.
 */
static void
set_worker_latch(Latch *expected, Latch *latch)
{
	Latch	   *before PG_USED_FOR_ASSERTS_ONLY;

	SpinLockAcquire(&standby_snapshot->mutex);
	before = standby_snapshot->worker_latch;
	standby_snapshot->worker_latch = latch;
	SpinLockRelease(&standby_snapshot->mutex);
	Assert(before == expected);
}

static void
write_snapshot(void)
{
	Assert(standby_snapshot->worker_latch == MyLatch);	/* only we set it */
	Assert(!IsTransactionState());

	LogStandbySnapshot();
	pg_atomic_write_u64(&standby_snapshot->snapshots,
						pinpoint_standby_snapshots() + 1);
}

/*
 * Can a snapshot be useful for decoding?  A standby may have logical slots, so
 * any replication slot counts.
 */
static bool
is_wanted(void)
{
	bool		wanted = false;

	if (!XLogLogicalInfoActive() || RecoveryInProgress())
		return false;

	Assert(!LWLockHeldByMe(ReplicationSlotControlLock));
	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots && !wanted; i++)
		wanted = ReplicationSlotCtl->replication_slots[i].in_use;
	LWLockRelease(ReplicationSlotControlLock);
	return wanted;
}
