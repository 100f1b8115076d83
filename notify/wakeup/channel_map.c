/*-------------------------------------------------------------------------
 *
 * channel_map.c
 *		The listeners of channels: (database, channel) to session slots.
 *
 * The map is a hash table (channel_table.c).  An entry contains the listeners
 * of a channel (channel_entry.c).  Only the owner of a slot adds or removes
 * its number: before the commit of a LISTEN, and after that of an UNLISTEN;
 * see listening.c.  The sender of a notification reads the map to find the
 * sessions to wake.
 *
 * The map is in one piece of main shared memory of fixed size
 * (pinpoint.channel_memory): an array of buckets, and items (channel_items.c).
 *
 * Any user can fill the memory.  Therefore LISTEN does not fail if its channel
 * does not fit: all notifications of the database wake its session instead,
 * see pinpoint_slot_set_wakes_for_all().  A channel does not fit if
 *
 *	- there is no item left;
 *	- its role would have more memory than is then free, see channel_items.c;
 *	- too many channels have similar hash values.  That does not happen by
 *	  chance, but this rule limits the time of a look-up for any names.
 *
 * Hash values depend on a random seed (see pinpoint_hash_channel()), so a user
 * cannot choose names with similar ones.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/lwlock.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/hash.h"
#include "base/settings.h"
#include "wakeup/channel_map.h"
#include "wakeup/channel_table.h"

/*
 * Size of the map if pinpoint.channel_memory is -1, in bytes: a constant, and
 * an amount for each possible session.  The latter is sufficient for more than
 * 200 channels per session.
 */
#define DEFAULT_BASE_SIZE			((Size) 16 * 1024 * 1024)
#define DEFAULT_SIZE_PER_SESSION	((Size) 32 * 1024)

/*
 * A sender with many channels looks up at most this many while it holds the
 * lock of a partition, and stops when these have this many listeners.
 */
#define LOOKUPS_PER_LOCK	64
#define LISTENERS_PER_LOCK	1024

/*
 * The parts of the map before its items and buckets.
 *
 * The counts over all entries are changed and read like the filter; see
 * channel_table.c.
 */
typedef struct ChannelMapControl
{
	PinpointSharingCounts sharing;
	PinpointChannelFilter filter;
} ChannelMapControl;

static Size map_size(void);
static Size control_size(void);
static int	buckets_log2(void);
static Size max_items(void);
static uint32 hash_of_notification(Oid dboid,
								   const PinpointNotification *notification);
static uint32 lookup_in_partition(Oid dboid, const PinpointChannelKey *keys,
								  uint32 n, PinpointListenersVisitor visitor,
								  void *arg);
static void check_changed(uint32 hash);

/*
 * Size of buckets and items, in bytes.
 */
static Size
map_size(void)
{
	if (pinpoint_channel_memory >= 0)
		return mul_size(pinpoint_channel_memory, 1024);
	return add_size(DEFAULT_BASE_SIZE,
					mul_size(MaxBackends, DEFAULT_SIZE_PER_SESSION));
}

static Size
control_size(void)
{
	return CACHELINEALIGN(sizeof(ChannelMapControl));
}

/*
 * The logarithm of the number of buckets: about one for each item.
 */
static int
buckets_log2(void)
{
	return Min(pg_ceil_log2_64(map_size() / PINPOINT_ITEM_SIZE), 31);
}

/*
 * Number of items in the memory that the buckets leave.
 */
static Size
max_items(void)
{
	Size		size = map_size() -
		((Size) 1 << buckets_log2()) * sizeof(ItemNumber);

	return Min(size / PINPOINT_ITEM_SIZE, PG_INT32_MAX);
}

Size
pinpoint_channel_map_shmem_size(void)
{
	return add_size(add_size(control_size(),
							 pinpoint_channel_items_control_size()),
					map_size());
}

/*
 * Create the map.  The postmaster calls this at start and at restart after a
 * crash.
 *
 * The map has the same address in each process.  So all processes use the
 * pointers that are set here, and need not attach.
 */
void
pinpoint_channel_map_shmem_init(void *memory)
{
	ChannelMapControl *control = memory;
	char	   *items_control = (char *) control + control_size();
	ChannelItem *items;

	pg_atomic_init_u32(&control->sharing.nsharing, 0);
	pg_atomic_init_u32(&control->sharing.max_receivers, 0);
	PinpointChannelEntryCounts = &control->sharing;

	items =
		(ChannelItem *) (items_control + pinpoint_channel_items_control_size());
	pinpoint_channel_items_init(items_control, items, max_items());
	pinpoint_channel_table_init(&control->filter,
								(ItemNumber *) (items + max_items()),
								buckets_log2(), max_items());
}

/*
 * Add a slot to the listeners on a channel of this database.  The slot is not
 * one of them yet.
 *
 * hash: pinpoint_hash_channel() of the channel.  roleid: role of the session.
 * share_limit: number of sessions of this role that receive each notification,
 * if this session shares the channel; otherwise 0.
 *
 * Returns false, and changes nothing, if the channel does not fit; see the top
 * of this file.
 */
bool
pinpoint_channel_map_add(const char *channel, uint32 hash, int slotno,
						 Oid roleid, int share_limit)
{
	PinpointListener listener = {
		.slotno = slotno,
		.share_limit = share_limit,
		.group = share_limit > 0 ? roleid : InvalidOid,
	};
	ItemNumber *link;
	ChannelEntry *entry;
	bool		may_grow;
	bool		fits;

	AssertLocksBelow(PINPOINT_RANK_CHANNEL_MAP);
	Assert(slotno == PINPOINT_MY_SLOT_NUMBER);
	Assert(hash == pinpoint_hash_channel(channel));

	hash = pinpoint_hash_in_database(MyDatabaseId, hash);
	pinpoint_channel_items_set_role(slotno, roleid);
	may_grow = pinpoint_channel_items_role_may_have_more(roleid);

	pinpoint_lock_acquire(pinpoint_partition_lock(hash), LW_EXCLUSIVE);
	link = pinpoint_channel_table_find(MyDatabaseId, channel, hash);
	if (link != NULL)
		entry = pinpoint_channel_item(*link);
	else
		entry = may_grow ?
			pinpoint_channel_table_insert(MyDatabaseId, channel, hash) : NULL;
	fits = entry != NULL &&
		pinpoint_channel_entry_add(entry, &listener, may_grow);
	check_changed(hash);
	LWLockRelease(pinpoint_partition_lock(hash));
	return fits;
}

/*
 * Remove a slot from the listeners on a channel of this database.  Removes the
 * entry together with its last listener.  Does not fail.
 *
 * hash: pinpoint_hash_channel() of the channel.
 */
void
pinpoint_channel_map_remove(const char *channel, uint32 hash, int slotno)
{
	ItemNumber *link;

	AssertLocksBelow(PINPOINT_RANK_CHANNEL_MAP);
	Assert(slotno == PINPOINT_MY_SLOT_NUMBER);
	Assert(hash == pinpoint_hash_channel(channel));

	hash = pinpoint_hash_in_database(MyDatabaseId, hash);
	pinpoint_lock_acquire(pinpoint_partition_lock(hash), LW_EXCLUSIVE);
	link = pinpoint_channel_table_find(MyDatabaseId, channel, hash);
	if (link != NULL)
	{
		ChannelEntry *entry = pinpoint_channel_item(*link);

		pinpoint_channel_entry_remove(entry, slotno);
		if (entry->nlisteners == 0)
			pinpoint_channel_table_remove(link);
	}
	check_changed(hash);
	LWLockRelease(pinpoint_partition_lock(hash));
}

/*
 * Does any session share a channel?  Needs no lock.
 */
bool
pinpoint_channel_map_is_shared(void)
{
	return pg_atomic_read_u32(&PinpointChannelEntryCounts->nsharing) > 0;
}

/*
 * Maximum number of sessions that receive a notification on one shared
 * channel.  This is an estimate, to reserve space.  Needs no lock.
 */
int
pinpoint_channel_map_max_receivers(void)
{
	PinpointSharingCounts *counts = PinpointChannelEntryCounts;

	return (int) Min(pg_atomic_read_u32(&counts->max_receivers),
					 pg_atomic_read_u32(&counts->nsharing));
}

/*
 * Call visitor with the listeners on a channel, if there are any.  Does not
 * fail.
 *
 * hash: pinpoint_hash_channel() of the channel.
 *
 * The visitor is called while the lock of the partition is held in shared
 * mode.
 */
void
pinpoint_channel_map_lookup(Oid dboid, const char *channel, uint32 hash,
							PinpointListenersVisitor visitor, void *arg)
{
	ItemNumber *link;

	AssertLocksBelow(PINPOINT_RANK_CHANNEL_MAP);
	Assert(hash == pinpoint_hash_channel(channel));

	hash = pinpoint_hash_in_database(dboid, hash);
	if (!pinpoint_channel_table_may_contain(hash))
		return;

	pinpoint_lock_acquire(pinpoint_partition_lock(hash), LW_SHARED);
	link = pinpoint_channel_table_find(dboid, channel, hash);
	if (link != NULL)
	{
		PinpointListeners listeners;

		pinpoint_channel_entry_describe(pinpoint_channel_item(*link),
										&listeners);
		visitor(&listeners, arg);
	}
	LWLockRelease(pinpoint_partition_lock(hash));
}

/*
 * The same for very many channels, each given by a notification.  The channels
 * are sorted by partition.  The lock of a partition is held for at most
 * LOOKUPS_PER_LOCK of them at a time.  Does not fail.
 *
 * sorted: an array of nchannels elements, for use by this function.
 */
void
pinpoint_channel_map_lookup_many(Oid dboid,
								 PinpointNotification *const *channels,
								 uint32 nchannels, PinpointChannelKey *sorted,
								 PinpointListenersVisitor visitor, void *arg)
{
	uint32		begins[PINPOINT_PARTITIONS + 1] = {0};
	uint32		from = 0;

	AssertNoLockHeld();
	for (uint32 i = 0; i < nchannels; i++)
		begins[PINPOINT_PARTITION_OF(hash_of_notification(dboid,
														  channels[i]))]++;
	for (int i = 1; i <= PINPOINT_PARTITIONS; i++)
		begins[i] += begins[i - 1];

	/*
	 * begins[] contains the ends now.  Each step decrements one of them,
	 * until all are the beginnings.
	 */
	for (uint32 i = nchannels; i-- > 0;)
	{
		uint32		hash = hash_of_notification(dboid, channels[i]);
		PinpointChannelKey *key =
			&sorted[--begins[PINPOINT_PARTITION_OF(hash)]];

		key->channel = channels[i]->data;
		key->hash = hash;
	}

	for (int i = 0; i < PINPOINT_PARTITIONS; i++)
	{
		while (from < begins[i + 1])
		{
			uint32		n = Min(begins[i + 1] - from, LOOKUPS_PER_LOCK);

			from += lookup_in_partition(dboid, &sorted[from], n, visitor, arg);
		}
	}
}

static uint32
hash_of_notification(Oid dboid, const PinpointNotification *notification)
{
	return pinpoint_hash_in_database(dboid, notification->channel_hash);
}

/*
 * Look up n channels of one partition, at most LOOKUPS_PER_LOCK.  Returns the
 * number of channels that it has processed: less than n, but at least one, if
 * they have very many listeners.
 *
 * Buckets and entries are at random addresses, so most of the time would be
 * spent waiting for memory.  Therefore all of them are prefetched.
 */
static uint32
lookup_in_partition(Oid dboid, const PinpointChannelKey *keys, uint32 n,
					PinpointListenersVisitor visitor, void *arg)
{
	uint32		candidates[LOOKUPS_PER_LOCK];
	uint32		ncandidates = 0;
	uint32		nlisteners = 0;
	uint32		done = n;

	Assert(n >= 1 && n <= LOOKUPS_PER_LOCK);
	for (uint32 i = 0; i < n; i++)
	{
		Assert(PINPOINT_PARTITION_OF(keys[i].hash) ==
			   PINPOINT_PARTITION_OF(keys[0].hash));
		if (!pinpoint_channel_table_may_contain(keys[i].hash))
			continue;
		PINPOINT_PREFETCH(pinpoint_bucket_of(keys[i].hash));
		PINPOINT_PREFETCH(keys[i].channel);
		candidates[ncandidates++] = i;
	}
	if (ncandidates == 0)
		return done;

	pinpoint_lock_acquire(pinpoint_partition_lock(keys[0].hash), LW_SHARED);
	for (uint32 i = 0; i < ncandidates; i++)
	{
		ItemNumber	first = *pinpoint_bucket_of(keys[candidates[i]].hash);

		/* The comparison of names reads many bytes at a time: both halves. */
		if (first != 0)
		{
			PINPOINT_PREFETCH(pinpoint_channel_item(first));
			PINPOINT_PREFETCH((char *) pinpoint_channel_item(first) +
							  PINPOINT_ITEM_SIZE / 2);
		}
	}
	for (uint32 i = 0; i < ncandidates; i++)
	{
		const PinpointChannelKey *key = &keys[candidates[i]];
		ItemNumber *link = pinpoint_channel_table_find(dboid, key->channel,
													   key->hash);
		PinpointListeners listeners;

		if (link == NULL)
			continue;
		pinpoint_channel_entry_describe(pinpoint_channel_item(*link),
										&listeners);
		visitor(&listeners, arg);
		nlisteners += listeners.nslots + listeners.nsharers;
		if (nlisteners >= LISTENERS_PER_LOCK)
		{
			done = candidates[i] + 1;
			break;
		}
	}
	LWLockRelease(pinpoint_partition_lock(keys[0].hash));
	return done;
}

/*
 * Call visitor for every channel of the server.  The visitor is called while
 * the lock of a partition is held in shared mode, so it must be short, and
 * must not fail.
 */
void
pinpoint_channel_map_visit(PinpointChannelVisitor visitor, void *arg)
{
	AssertLocksBelow(PINPOINT_RANK_CHANNEL_MAP);
	for (int partition = 0; partition < PINPOINT_PARTITIONS; partition++)
	{
		LWLock	   *lock = &PinpointChannelMapLocks[partition].lock;
		ItemNumber *buckets = pinpoint_first_bucket(partition);

		pinpoint_lock_acquire(lock, LW_SHARED);
		for (Size i = 0; i < pinpoint_buckets_per_partition(); i++)
		{
			ItemNumber	number = buckets[i];

			while (number != 0)
			{
				ChannelEntry *entry = pinpoint_channel_item(number);
				PinpointListeners listeners;

				pinpoint_channel_entry_describe(entry, &listeners);
				visitor(entry->dboid, entry->channel, &listeners, arg);
				number = entry->next;
			}
		}
		LWLockRelease(lock);
	}
}

/*
 * In a build with assertions: check what a change of the entry with this hash
 * value can have broken.  The caller holds the lock of the partition.
 *
 * Each change checks the bucket, and now and then the partition: so seldom that
 * a change checks a few buckets on average.
 */
static void
check_changed(uint32 hash)
{
#ifdef USE_ASSERT_CHECKING
	static Size nchanges = 0;

	pinpoint_channel_table_check_bucket(hash);
	if (++nchanges % (pinpoint_buckets_per_partition() / 8 + 1) == 0)
		pinpoint_channel_table_check(PINPOINT_PARTITION_OF(hash));
#endif
}

#ifdef USE_ASSERT_CHECKING
/*
 * Check a partition.  The caller holds no lock of a partition.
 */
void
pinpoint_channel_map_check(int partition)
{
	LWLock	   *lock = &PinpointChannelMapLocks[partition].lock;

	AssertLocksBelow(PINPOINT_RANK_CHANNEL_MAP);
	pinpoint_lock_acquire(lock, LW_SHARED);
	pinpoint_channel_table_check(partition);
	LWLockRelease(lock);
}

/* What pinpoint_channel_map_check_memory() finds in the entries. */
typedef struct EntriesUse
{
	uint32		nitems;
	uint32		nsharers;
	int64	   *charges;		/* by slot */
} EntriesUse;

static void
add_use(Oid dboid, const char *channel, const PinpointListeners *listeners,
		void *arg)
{
	EntriesUse *use = arg;

	use->nitems += pinpoint_channel_entry_items(listeners->entry);
	use->nsharers += listeners->nsharers;
	pinpoint_channel_entry_add_charges(listeners->entry, use->charges);
}

/*
 * Check that the entries together use the items that are not free, and what the
 * sessions are charged.  Meanwhile, no session executes LISTEN or UNLISTEN, or
 * ends.
 *
 * Errors: out of memory.
 */
void
pinpoint_channel_map_check_memory(void)
{
	PinpointItemsUse items;
	EntriesUse	entries = {.charges = palloc0_array(int64, MaxBackends)};

	pinpoint_channel_map_visit(add_use, &entries);
	pinpoint_channel_items_check(&items);
	Assert(entries.nitems == items.total - items.free);
	Assert(entries.nsharers ==
		   pg_atomic_read_u32(&PinpointChannelEntryCounts->nsharing));
	for (int i = 0; i < MaxBackends; i++)
		Assert(entries.charges[i] == pinpoint_channel_items_charged(i));
	pfree(entries.charges);
}
#endif
