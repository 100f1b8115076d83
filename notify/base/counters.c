/*-------------------------------------------------------------------------
 *
 * counters.c
 *		Counters by database, since the server started.
 *
 * The counters are in an array.  The hash value of a database's OID selects
 * the element.  A database gets its element when something is counted for it
 * for the first time, and keeps the element until the server stops, even if
 * the database is dropped.  If there are more databases than elements, the
 * last ones share one element.
 *
 * There is no lock, because all fields are atomic.  Counting never waits,
 * fails or allocates memory, so it is also possible after the commit record.
 * For a moment, two counters can be inconsistent with each other.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "port/atomics.h"
#include "utils/timestamp.h"

#include "base/counters.h"

typedef struct DatabaseCounters
{
	pg_atomic_uint32 dboid;		/* InvalidOid if the element is free */
	pg_atomic_uint64 counts[PINPOINT_NCOUNTERS];
} DatabaseCounters;

/* The last element is shared by databases that found no free one. */
typedef struct Counters
{
	pg_atomic_uint64 reset;		/* time of the last reset, 0 if never */
	DatabaseCounters databases[PINPOINT_MAX_COUNTED_DATABASES];
} Counters;

/* Number of elements that belong to one database. */
#define NOWNED		(PINPOINT_MAX_COUNTED_DATABASES - 1)

static Counters *counters = NULL;

static DatabaseCounters *element_of(Oid dboid);
static DatabaseCounters *find_element(Oid dboid);

Size
pinpoint_counters_shmem_size(void)
{
	return MAXALIGN(sizeof(Counters));
}

void
pinpoint_counters_shmem_init(void *memory)
{
	counters = memory;
	pg_atomic_init_u64(&counters->reset, 0);
	for (int i = 0; i < PINPOINT_MAX_COUNTED_DATABASES; i++)
	{
		pg_atomic_init_u32(&counters->databases[i].dboid, InvalidOid);
		for (int j = 0; j < PINPOINT_NCOUNTERS; j++)
			pg_atomic_init_u64(&counters->databases[i].counts[j], 0);
	}
}

/*
 * Add n to a counter of a database.  Does not fail.
 */
void
pinpoint_counter_add(Oid dboid, PinpointCounter counter, uint64 n)
{
	Assert(counter < PINPOINT_NCOUNTERS && counter != PINPOINT_MAX_HELD_BACK);
	if (n > 0)
		pg_atomic_fetch_add_u64(&element_of(dboid)->counts[counter], (int64) n);
}

/*
 * Set PINPOINT_MAX_HELD_BACK of a database to this time, in microseconds,
 * unless it is higher.  Does not fail.
 */
void
pinpoint_counter_raise_max_held_back(Oid dboid, uint64 time)
{
	pg_atomic_uint64 *count =
		&element_of(dboid)->counts[PINPOINT_MAX_HELD_BACK];
	uint64		longest = pg_atomic_read_u64(count);

	/* If another process changes it, this sets "longest" to the new value. */
	while (longest < time &&
		   !pg_atomic_compare_exchange_u64(count, &longest, time))
		continue;
}

/*
 * The element of a database.  If there are more databases than elements, the
 * search reads all elements, possibly under PinpointOrderLock.  A process
 * nearly always counts for one database, and elements do not change their
 * database, so it remembers the last result.
 */
static DatabaseCounters *
element_of(Oid dboid)
{
	static Oid	last_dboid = InvalidOid;
	static DatabaseCounters *last_element = NULL;

	Assert(OidIsValid(dboid));
	if (dboid != last_dboid || last_element == NULL)
	{
		last_element = find_element(dboid);
		last_dboid = dboid;
	}
	Assert(last_element == &counters->databases[NOWNED] ||
		   pg_atomic_read_u32(&last_element->dboid) == dboid);
	return last_element;
}

static DatabaseCounters *
find_element(Oid dboid)
{
	uint32		hash = murmurhash32(dboid);

	for (uint32 i = 0; i < NOWNED; i++)
	{
		DatabaseCounters *element = &counters->databases[(hash + i) % NOWNED];
		uint32		owner = pg_atomic_read_u32(&element->dboid);

		/* If another process takes it, this sets "owner" to its database. */
		if (owner == InvalidOid &&
			pg_atomic_compare_exchange_u32(&element->dboid, &owner, dboid))
			return element;
		if (owner == dboid)
			return element;
	}
	return &counters->databases[NOWNED];
}

/*
 * Copy the counters of all databases to copy[], an array of
 * PINPOINT_MAX_COUNTED_DATABASES elements.  Returns the number of copied
 * elements.  The shared element is one of them, if it is in use.
 */
int
pinpoint_counters_copy(PinpointCounts *copy)
{
	int			n = 0;

	for (int i = 0; i < PINPOINT_MAX_COUNTED_DATABASES; i++)
	{
		DatabaseCounters *element = &counters->databases[i];
		uint64		any = 0;

		copy[n].dboid = pg_atomic_read_u32(&element->dboid);
		copy[n].reset = (TimestampTz) pg_atomic_read_u64(&counters->reset);
		for (int j = 0; j < PINPOINT_NCOUNTERS; j++)
		{
			copy[n].counts[j] = pg_atomic_read_u64(&element->counts[j]);
			any |= copy[n].counts[j];
		}
		if (copy[n].dboid != InvalidOid || any != 0)
			n++;
	}
	return n;
}

/*
 * Set all counters to 0, and store the time.  Databases keep their elements.
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
