/*-------------------------------------------------------------------------
 *
 * channel_table.h
 *		The hash table of the channel map, in partitions.
 *
 * Only the files of the channel map include this header.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_CHANNEL_TABLE_H
#define PINPOINT_CHANNEL_TABLE_H

#include "wakeup/channel_entry.h"

/* Number of counters of entries.  The highest bits also determine these. */
#define PINPOINT_FILTER_LOG2	14
#define PINPOINT_FILTER_SIZE	(1 << PINPOINT_FILTER_LOG2)

/*
 * nentries: numbers of entries, by the highest bits of their hash values.
 * Changed under the lock of the partition of the entry, read without it; see
 * channel_table.c.
 */
typedef struct PinpointChannelFilter
{
	pg_atomic_uint32 nentries[PINPOINT_FILTER_SIZE];
} PinpointChannelFilter;

/* Set by the postmaster, and inherited by all processes. */
extern PinpointChannelFilter *PinpointChannelTableFilter;
extern ItemNumber *PinpointChannelTableBuckets;
extern int	PinpointChannelTableLog2;

extern void pinpoint_channel_table_init(PinpointChannelFilter *filter,
										ItemNumber *buckets, int nbuckets_log2,
										Size nitems);
extern ItemNumber *pinpoint_channel_table_find(Oid dboid, const char *channel,
											   uint32 hash);
extern ChannelEntry *pinpoint_channel_table_insert(Oid dboid,
												   const char *channel,
												   uint32 hash);
extern void pinpoint_channel_table_remove(ItemNumber *link);
#ifdef USE_ASSERT_CHECKING
extern void pinpoint_channel_table_check_bucket(uint32 hash);
extern void pinpoint_channel_table_check(int partition);
#endif

/*
 * The lock and the bucket for a hash value.
 */
static inline LWLock *
pinpoint_partition_lock(uint32 hash)
{
	return &PinpointChannelMapLocks[PINPOINT_PARTITION_OF(hash)].lock;
}

static inline ItemNumber *
pinpoint_bucket_of(uint32 hash)
{
	return PinpointChannelTableBuckets +
		(hash >> (32 - PinpointChannelTableLog2));
}

/*
 * The buckets of a partition: they are one behind the other.
 */
static inline Size
pinpoint_buckets_per_partition(void)
{
	return (Size) 1 << (PinpointChannelTableLog2 -
						PINPOINT_PARTITIONS_LOG2);
}

static inline ItemNumber *
pinpoint_first_bucket(int partition)
{
	return PinpointChannelTableBuckets +
		partition * pinpoint_buckets_per_partition();
}

static inline pg_atomic_uint32 *
pinpoint_entry_counter(uint32 hash)
{
	uint32		i = hash >> (32 - PINPOINT_FILTER_LOG2);

	return &PinpointChannelTableFilter->nentries[i];
}

/*
 * Can there be an entry with this hash value?  Needs no lock; see
 * channel_table.c.
 */
static inline bool
pinpoint_channel_table_may_contain(uint32 hash)
{
	return pg_atomic_read_u32(pinpoint_entry_counter(hash)) != 0;
}

#endif							/* PINPOINT_CHANNEL_TABLE_H */
