/*-------------------------------------------------------------------------
 *
 * channel_table.c
 *		The hash table of the channel map, in partitions.
 *
 * The table is an array of buckets.  A bucket is a list of entries.  Its size
 * is fixed at server start.  The highest bits of a hash value determine the
 * bucket, and also the partition, whose lock protects the bucket and its
 * entries.
 *
 * An array counts the entries by the highest bits of their hash values, so
 * that a sender does not look up channels without listeners.  It is read
 * without a lock:
 *
 *	LISTEN		count its entry, in pinpoint_channel_table_insert(); then
 *				release the lock of the partition; then commit
 *	sender		commit; then acquire PinpointOrderLock to publish; then read the
 *				counter, in pinpoint_channel_map_lookup()
 *
 * If the LISTEN has committed before the sender, the sender reads a counter
 * that includes its entry.  Without these locks, it could read an older
 * value, 0, and the listener would miss the notification.  (The same applies
 * if the LISTEN read the number of the last publication before the sender took
 * its own; see step 11 in wakeup.c.)  A sender with many channels looks them
 * up before its commit, and a standby before the publication.  The barriers on
 * their side are then in pinpoint_wakeup_find_early() and
 * pinpoint_wakeup_find_replayed(); wakeup.c explains why that is sufficient.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/check.h"
#include "wakeup/channel_table.h"

/*
 * Maximum of a counter of entries: four times the mean when the memory is full,
 * and this number.
 */
#define MAX_ABOVE_MEAN		64

PinpointChannelFilter *PinpointChannelTableFilter = NULL;
ItemNumber *PinpointChannelTableBuckets = NULL;
int			PinpointChannelTableLog2;

/* Maximum of a counter of entries.  Constant. */
static uint32 max_per_counter;

static ChannelEntry *entry_of(ItemNumber number);

/*
 * Create the table, empty.  The postmaster calls this at start and at restart
 * after a crash.
 *
 * nitems: number of items of the map.
 */
void
pinpoint_channel_table_init(PinpointChannelFilter *filter,
							ItemNumber *buckets, int nbuckets_log2,
							Size nitems)
{
	Assert(!IsUnderPostmaster);
	Assert(nbuckets_log2 >= PINPOINT_PARTITIONS_LOG2);

	PinpointChannelTableFilter = filter;
	PinpointChannelTableBuckets = buckets;
	PinpointChannelTableLog2 = nbuckets_log2;
	max_per_counter = MAX_ABOVE_MEAN + 4 * (nitems / PINPOINT_FILTER_SIZE);

	for (int i = 0; i < PINPOINT_FILTER_SIZE; i++)
		pg_atomic_init_u32(&filter->nentries[i], 0);
	memset(buckets, 0, ((Size) 1 << nbuckets_log2) * sizeof(ItemNumber));
}

static ChannelEntry *
entry_of(ItemNumber number)
{
	return pinpoint_channel_item(number);
}

/*
 * Find the entry of a channel.  Returns the address of the link to it, in its
 * bucket or in another entry, or NULL if there is no entry.
 *
 * hash: pinpoint_hash_in_database() of the channel.
 *
 * The caller holds the lock of the partition, shared or exclusive.
 */
ItemNumber *
pinpoint_channel_table_find(Oid dboid, const char *channel, uint32 hash)
{
	ItemNumber *link = pinpoint_bucket_of(hash);

	AssertHeld(pinpoint_partition_lock(hash));
	while (*link != 0)
	{
		ChannelEntry *entry = entry_of(*link);

		Assert(pinpoint_bucket_of(entry->hash) == pinpoint_bucket_of(hash));
		if (entry->hash == hash && entry->dboid == dboid &&
			strcmp(entry->channel, channel) == 0)
			return link;
		link = &entry->next;
	}
	return NULL;
}

/*
 * Create the entry of a channel, which has none.  Returns NULL if there is no
 * item left, or if too many channels have similar hash values.  The caller adds
 * a listener, which fits.
 *
 * The caller holds the lock of the partition exclusively.
 */
ChannelEntry *
pinpoint_channel_table_insert(Oid dboid, const char *channel, uint32 hash)
{
	ItemNumber	number;
	ItemNumber *bucket = pinpoint_bucket_of(hash);
	ChannelEntry *entry;

	AssertHeldExclusive(pinpoint_partition_lock(hash));
	Assert(pinpoint_channel_table_find(dboid, channel, hash) == NULL);

	/* see the top of this file */
	if (pg_atomic_fetch_add_u32(pinpoint_entry_counter(hash), 1) >=
		max_per_counter ||
		!pinpoint_channel_items_take(1, &number))
	{
		pg_atomic_fetch_sub_u32(pinpoint_entry_counter(hash), 1);
		return NULL;
	}

	entry = entry_of(number);
	pinpoint_channel_entry_init(entry, dboid, channel, hash);
	entry->next = *bucket;
	*bucket = number;
	return entry;
}

/*
 * Remove an entry, which has no listener any more.
 *
 * link: result of pinpoint_channel_table_find() under the same hold of the lock
 * of the partition.  The caller holds it exclusively.
 */
void
pinpoint_channel_table_remove(ItemNumber *link)
{
	ItemNumber	number = *link;
	ChannelEntry *entry = entry_of(number);
	uint32		hash = entry->hash;

	AssertHeldExclusive(pinpoint_partition_lock(hash));
	Assert(entry->nlisteners == 0 && entry->nsharers == 0 && entry->depth == 0);
	Assert(pg_atomic_read_u32(pinpoint_entry_counter(hash)) > 0);

	*link = entry->next;
	pinpoint_channel_items_free(number);
	pg_atomic_fetch_sub_u32(pinpoint_entry_counter(hash), 1);
}

#ifdef USE_ASSERT_CHECKING
/*
 * Check the entries of a bucket.  The caller holds the lock of the partition.
 */
void
pinpoint_channel_table_check_bucket(uint32 hash)
{
	for (ItemNumber *link = pinpoint_bucket_of(hash); *link != 0;
		 link = &entry_of(*link)->next)
	{
		ChannelEntry *entry = entry_of(*link);

		Assert(pinpoint_bucket_of(entry->hash) == pinpoint_bucket_of(hash));
		Assert(pinpoint_channel_table_find(entry->dboid, entry->channel,
										   entry->hash) == link);
		pinpoint_channel_entry_check(entry);
	}
}

/*
 * Check all buckets of a partition, and the counters of its entries.  The
 * caller holds its lock.
 */
void
pinpoint_channel_table_check(int partition)
{
#define COUNTERS_PER_PARTITION (PINPOINT_FILTER_SIZE / PINPOINT_PARTITIONS)
	uint32		counted[COUNTERS_PER_PARTITION] = {0};
	uint32		first_hash =
		(uint32) partition << (32 - PINPOINT_PARTITIONS_LOG2);
	ItemNumber *buckets = pinpoint_first_bucket(partition);

	AssertHeld(pinpoint_partition_lock(first_hash));
	for (Size i = 0; i < pinpoint_buckets_per_partition(); i++)
	{
		if (buckets[i] != 0)
			pinpoint_channel_table_check_bucket(entry_of(buckets[i])->hash);
		for (ItemNumber number = buckets[i]; number != 0;
			 number = entry_of(number)->next)
		{
			uint32		hash = entry_of(number)->hash;

			Assert(pinpoint_bucket_of(hash) == &buckets[i]);
			counted[(hash - first_hash) >> (32 - PINPOINT_FILTER_LOG2)]++;
		}
	}
	for (int i = 0; i < COUNTERS_PER_PARTITION; i++)
	{
		uint32		n =
			pg_atomic_read_u32(pinpoint_entry_counter(first_hash) + i);

		Assert(n == counted[i]);
		Assert(n <= max_per_counter);
	}
}
#endif
