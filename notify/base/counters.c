/*-------------------------------------------------------------------------
 *
 * counters.c
 *		Counters by database, since the server started.
 *
 * The counters are in an array.  The hash value of a database's OID selects the
 * element.  A database gets its element when something is counted for it for the first
 * time, and keeps the element until the server stops, even if the database is dropped.
 * If there are more databases than elements, the last ones share one element.
 *
 * There is no lock, because all fields are atomic.  Counting never waits, fails or
 * allocates memory, so it is also possible after the commit record.  For a moment, two
 * counters can be inconsistent with each other.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "port/atomics.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "base/counters.h"

typedef struct DatabaseCounters
{
	pg_atomic_uint32 dboid;		/* InvalidOid if the place is free */
	pg_atomic_uint64 counts[PINPOINT_NCOUNTERS];
} DatabaseCounters;

/* The last place is for those that found none. */
typedef struct Counters
{
	pg_atomic_uint64 reset;		/* when they were, 0 if never */
	DatabaseCounters databases[PINPOINT_MAX_COUNTED_DATABASES];
} Counters;

#define NPLACES		(PINPOINT_MAX_COUNTED_DATABASES - 1)

static Counters *counters = NULL;

static DatabaseCounters *place_of(Oid dboid);

Size
pinpoint_counters_shmem_size(void)
{
	return MAXALIGN(sizeof(Counters));
}

void
pinpoint_counters_shmem_init(void)
{
	bool		found;

	counters = ShmemInitStruct("pg_pinpoint counters",
							   pinpoint_counters_shmem_size(), &found);
	if (found)
		return;

	pg_atomic_init_u64(&counters->reset, 0);
	for (int i = 0; i < PINPOINT_MAX_COUNTED_DATABASES; i++)
	{
		pg_atomic_init_u32(&counters->databases[i].dboid, InvalidOid);
		for (int j = 0; j < PINPOINT_NCOUNTERS; j++)
			pg_atomic_init_u64(&counters->databases[i].counts[j], 0);
	}
}

/*
 * Something has happened n times in a database.
 */
void
pinpoint_count(Oid dboid, PinpointCounter counter, uint64 n)
{
	if (n > 0)
		pg_atomic_fetch_add_u64(&place_of(dboid)->counts[counter], (int64) n);
}

/*
 * The most that has ever been counted at once in a database is n, or more.
 */
void
pinpoint_count_max(Oid dboid, PinpointCounter counter, uint64 n)
{
	pg_atomic_uint64 *count = &place_of(dboid)->counts[counter];
	uint64		most = pg_atomic_read_u64(count);

	/* If somebody changes it at the same time, most becomes what it is. */
	while (most < n && !pg_atomic_compare_exchange_u64(count, &most, n))
		continue;
}

static DatabaseCounters *
place_of(Oid dboid)
{
	uint32		hash = murmurhash32(dboid);

	for (uint32 i = 0; i < NPLACES; i++)
	{
		DatabaseCounters *place = &counters->databases[(hash + i) % NPLACES];
		uint32		owner = pg_atomic_read_u32(&place->dboid);

		/* If somebody takes it at the same time, owner becomes who it is. */
		if (owner == InvalidOid &&
			pg_atomic_compare_exchange_u32(&place->dboid, &owner, dboid))
			return place;
		if (owner == dboid)
			return place;
	}
	return &counters->databases[NPLACES];
}

/*
 * Copy the counters of all databases to copy[], which has room for
 * PINPOINT_MAX_COUNTED_DATABASES.  Returns the number of databases.
 */
int
pinpoint_counters_copy(PinpointCounts *copy)
{
	int			n = 0;

	for (int i = 0; i < PINPOINT_MAX_COUNTED_DATABASES; i++)
	{
		DatabaseCounters *place = &counters->databases[i];
		uint64		any = 0;

		copy[n].dboid = pg_atomic_read_u32(&place->dboid);
		copy[n].reset = (TimestampTz) pg_atomic_read_u64(&counters->reset);
		for (int j = 0; j < PINPOINT_NCOUNTERS; j++)
		{
			copy[n].counts[j] = pg_atomic_read_u64(&place->counts[j]);
			any |= copy[n].counts[j];
		}
		if (copy[n].dboid != InvalidOid || any != 0)
			n++;
	}
	return n;
}

/*
 * Begin to count anew.
 */
void
pinpoint_counters_reset(void)
{
	for (int i = 0; i < PINPOINT_MAX_COUNTED_DATABASES; i++)
	{
		for (int j = 0; j < PINPOINT_NCOUNTERS; j++)
			pg_atomic_write_u64(&counters->databases[i].counts[j], 0);
	}
	pg_atomic_write_u64(&counters->reset, (uint64) GetCurrentTimestamp());
}
