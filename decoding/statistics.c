/*-------------------------------------------------------------------------
 *
 * statistics.c
 *		Statistics of the relation-file map, for each session and since the
 *		server started.
 *
 * Every session counts in a separate slot, so counting needs no lock and no
 * atomic operation.  When a session ends, its numbers are added to the sum of
 * earlier sessions.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"

#include "compat.h"
#include "decoding.h"

PG_FUNCTION_INFO_V1(pinpoint_decoding_stat_get_server);
PG_FUNCTION_INFO_V1(pinpoint_decoding_stat_get_sessions);
PG_FUNCTION_INFO_V1(pinpoint_decoding_stat_get_standby_snapshots);

/*
 * A WAL sender writes to its slot for each change that it decodes.  Therefore
 * no two slots are on the same cache line.
 */
typedef struct pg_attribute_aligned(PG_CACHE_LINE_SIZE) Slot
{
	int			pid;			/* 0: free */
	pg_atomic_uint64 counters[PINPOINT_COUNTERS];	/* only the owner writes */
} Slot;

StaticAssertDecl(sizeof(Slot) % PG_CACHE_LINE_SIZE == 0,
				 "two slots are on the same cache line");

/*
 * The lock protects the pids and the totals.  Counting needs no lock.
 */
typedef struct SharedStatistics
{
	LWLock	   *lock;
	uint64		totals[PINPOINT_COUNTERS];	/* of the sessions that ended */
	int			num_slots;
	Slot		slots[FLEXIBLE_ARRAY_MEMBER];
} SharedStatistics;

/* NULL if the library is not active */
static SharedStatistics *shared = NULL;

/* Counters of a session without a slot.  No function reads them. */
static pg_atomic_uint64 no_counters[PINPOINT_COUNTERS];
pg_atomic_uint64 *pinpoint_statistics_counters = no_counters;

static Slot *my_slot = NULL;

static void detach(int code, Datum arg);

Size
pinpoint_statistics_shmem_size(void)
{
	return add_size(offsetof(SharedStatistics, slots),
					mul_size(MaxBackends, sizeof(Slot)));
}

void
pinpoint_statistics_shmem_init(void)
{
	bool		found;

	Assert(LWLockHeldByMeInMode(AddinShmemInitLock, LW_EXCLUSIVE));
	shared = ShmemInitStruct("pg_pinpoint_decoding statistics",
							 pinpoint_statistics_shmem_size(), &found);
	Assert((uintptr_t) shared % PG_CACHE_LINE_SIZE == 0);
	if (found)
		return;

	memset(shared, 0, pinpoint_statistics_shmem_size());
	shared->lock = &(GetNamedLWLockTranche("PinpointDecodingStatistics"))->lock;
	shared->num_slots = MaxBackends;
	Assert((char *) &shared->slots[shared->num_slots] <=
		   (char *) shared + pinpoint_statistics_shmem_size());
	for (int i = 0; i < shared->num_slots; i++)
	{
		for (int counter = 0; counter < PINPOINT_COUNTERS; counter++)
			pg_atomic_init_u64(&shared->slots[i].counters[counter], 0);
	}
}

/*
 * Give this session a slot.  Called once in a session, before anything is
 * counted.
 */
void
pinpoint_statistics_attach(void)
{
	int			number = PINPOINT_MY_SLOT_NUMBER;

	Assert(my_slot == NULL && pinpoint_statistics_counters == no_counters);
	if (shared == NULL || number < 0 || number >= shared->num_slots)
		return;

	before_shmem_exit(detach, (Datum) 0);

	my_slot = &shared->slots[number];
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	Assert(my_slot->pid == 0);
	my_slot->pid = MyProcPid;
	LWLockRelease(shared->lock);
	pinpoint_statistics_counters = my_slot->counters;
}

/*
 * The session ends: add its counters to the totals, and free its slot.
 */
static void
detach(int code, Datum arg)
{
	if (my_slot == NULL)
		return;

	SET_GAUGE(PINPOINT_ENTRIES, 0);
	SET_GAUGE(PINPOINT_NEGATIVE_ENTRIES, 0);
	pinpoint_statistics_counters = no_counters;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	Assert(my_slot->pid == MyProcPid);
	for (int counter = 0; counter < PINPOINT_COUNTERS; counter++)
	{
		shared->totals[counter] +=
			pg_atomic_read_u64(&my_slot->counters[counter]);
		pg_atomic_write_u64(&my_slot->counters[counter], 0);
	}
	my_slot->pid = 0;
	LWLockRelease(shared->lock);
	my_slot = NULL;
}

/*
 * pinpoint_decoding.stat_get_server(): one row.  If the library is not active,
 * nothing is counted and the counters are NULL.
 */
Datum
pinpoint_decoding_stat_get_server(PG_FUNCTION_ARGS)
{
#define SERVER_COLUMNS	(2 + PINPOINT_COUNTERS)
	TupleDesc	tupdesc;
	Datum		values[SERVER_COLUMNS] = {0};
	bool		nulls[SERVER_COLUMNS];
	uint64		sums[PINPOINT_COUNTERS];

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	memset(nulls, true, sizeof(nulls));
	values[0] = BoolGetDatum(pinpoint_decoding_refused_because == NULL);
	nulls[0] = false;
	if (pinpoint_decoding_refused_because != NULL)
	{
		values[1] = CStringGetTextDatum(pinpoint_decoding_refused_because);
		nulls[1] = false;
	}

	if (shared != NULL)
	{
		LWLockAcquire(shared->lock, LW_SHARED);
		memcpy(sums, shared->totals, sizeof(sums));
		for (int i = 0; i < shared->num_slots; i++)
		{
			for (int counter = 0; counter < PINPOINT_COUNTERS; counter++)
				sums[counter] +=
					pg_atomic_read_u64(&shared->slots[i].counters[counter]);
		}
		LWLockRelease(shared->lock);

		for (int counter = 0; counter < PINPOINT_COUNTERS; counter++)
		{
			values[2 + counter] = Int64GetDatum((int64) sums[counter]);
			nulls[2 + counter] = false;
		}
	}

	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc),
													  values, nulls)));
}

/*
 * pinpoint_decoding.stat_get_sessions(): one row per session that has looked
 * up a relation.
 */
Datum
pinpoint_decoding_stat_get_sessions(PG_FUNCTION_ARGS)
{
#define SESSION_COLUMNS	(1 + PINPOINT_COUNTERS)
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	if (shared == NULL)
		return (Datum) 0;

	for (int i = 0; i < shared->num_slots; i++)
	{
		Slot	   *slot = &shared->slots[i];
		Datum		values[SESSION_COLUMNS];
		bool		nulls[SESSION_COLUMNS] = {0};
		int			pid;

		LWLockAcquire(shared->lock, LW_SHARED);
		pid = slot->pid;
		values[0] = Int32GetDatum(pid);
		for (int counter = 0; counter < PINPOINT_COUNTERS; counter++)
		{
			uint64		count = pg_atomic_read_u64(&slot->counters[counter]);

			values[1 + counter] = Int64GetDatum((int64) count);
		}
		LWLockRelease(shared->lock);

		if (pid != 0)
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
								 nulls);
	}
	return (Datum) 0;
}

/*
 * pinpoint_decoding.stat_get_standby_snapshots(): NULL if the library is not
 * active.
 */
Datum
pinpoint_decoding_stat_get_standby_snapshots(PG_FUNCTION_ARGS)
{
	if (shared == NULL)
		PG_RETURN_NULL();
	PG_RETURN_INT64((int64) pinpoint_standby_snapshots());
}
