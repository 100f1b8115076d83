/*-------------------------------------------------------------------------
 *
 * channel_map.c
 *		The listeners of channels: (database, channel) to session slots.
 *
 * The map is a hash table.  An entry contains the listeners of a channel.  Only the
 * owner of a slot adds or removes its number: before the commit of a LISTEN, and after
 * that of an UNLISTEN; see listening.c.  The sender of a notification reads the map to
 * find the sessions to wake.
 *
 * The map is in one piece of main shared memory of fixed size
 * (pinpoint.channel_memory): an array of buckets, and items of ITEM_SIZE bytes.  An
 * entry is an item, with space for two listeners.  Further listeners are in the leaves
 * of a tree of further items, ten in each; a node has 32 children.  So adding a
 * listener takes at most a few items, and removing one takes none.
 *
 * dshash in a DSA area is not suitable, for two reasons.  dshash doubles its table
 * while it holds the locks of all partitions, and senders would wait for that.  And an
 * area of limited size loses some memory with each allocation that fails, so a user
 * could use up all of it permanently.
 *
 * Any user can fill the memory.  Therefore LISTEN does not fail if its channel does
 * not fit: all notifications of the database wake its session instead, see
 * pinpoint_slot_set_wakes_for_all().  A channel does not fit if
 *
 *	- there is no item left;
 *	- its role would have more memory than is then free.  So one role gets at most
 *	  about half of the memory, the next one about half of the rest, and so on;
 *	- too many channels have similar hash values.  That does not happen by chance,
 *	  but this rule limits the time of a look-up for any names.
 *
 * Hash values depend on a random seed (see pinpoint_channel_hash()), so a user cannot
 * choose names with similar ones.
 *
 * An array counts the entries by hash value, so that a sender does not look up
 * channels without listeners.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"

#include "base/channel_hash.h"
#include "base/compat.h"
#include "base/locks.h"
#include "base/settings.h"
#include "queue/batch.h"
#include "wakeup/channel_map.h"

/*
 * Size of the map if pinpoint.channel_memory is -1, in bytes: a constant, and
 * an amount for each possible session.  The latter is sufficient for more than
 * 200 channels per session.
 */
#define DEFAULT_BASE_SIZE			((Size) 16 * 1024 * 1024)
#define DEFAULT_SIZE_PER_SESSION	((Size) 32 * 1024)

/* Size of an item in bytes, and its contents. */
#define ITEM_SIZE			128
#define LISTENERS_INLINE	2
#define LISTENERS_PER_LEAF	10
#define CHILDREN_PER_NODE	32

/*
 * Maximum number of levels of a tree, leaves included: sufficient for 2^24
 * listeners.
 */
#define MAX_DEPTH			6

/*
 * A partition of the map has a lock.  The highest bits of a hash value
 * determine its partition.
 */
#define PARTITION_OF(hash)	((hash) >> (32 - PINPOINT_PARTITIONS_LOG2))

/* Number of counters of entries.  The highest bits also determine these. */
#define FILTER_LOG2			14
#define FILTER_SIZE			(1 << FILTER_LOG2)

/*
 * Maximum of such a counter: four times the mean when the memory is full, and
 * this number.
 */
#define MAX_ABOVE_MEAN		64

/*
 * A sender with many channels looks up at most this many while it holds the
 * lock of a partition, and stops when these have this many listeners.
 */
#define LOOKUPS_PER_LOCK	64
#define LISTENERS_PER_LOCK	1024

/*
 * Bytes that are charged to a listener: for its entry if it was the first one
 * on the channel, otherwise for its part of the tree, approximately.
 */
#define ENTRY_CHARGE		ITEM_SIZE
#define LISTENER_CHARGE		32

/* Number of an item, counted from 1; 0 for none. */
typedef uint32 ItemNumber;

/*
 * Entry of the map.  It and the items of its tree are protected by the lock of
 * its partition, with the exceptions in channel_map.h.
 *
 * The order of the fields avoids padding, and keeps those together that a
 * look-up reads.
 */
typedef struct ChannelEntry
{
	ItemNumber	next;			/* next entry in the same bucket */
	uint32		hash;
	Oid			dboid;
	int			nlisteners;
	int			nsharers;		/* number of those that share the channel */
	uint32		charged:24;		/* slot of the listener to which ENTRY_CHARGE
								 * is charged */
	uint32		depth:8;		/* number of levels of the tree; 0 if there is
								 * none */
	union
	{
		PinpointListener few[LISTENERS_INLINE]; /* while depth is 0 */
		ItemNumber	root;		/* root of the tree */
	};
	char		channel[NAMEDATALEN];	/* zero-terminated */
	pg_atomic_uint64 transactions;	/* see PinpointListeners */
} ChannelEntry;

typedef union Item
{
	ChannelEntry entry;
	PinpointListener listeners[LISTENERS_PER_LEAF]; /* of a leaf */
	ItemNumber	children[CHILDREN_PER_NODE];	/* of a node */
	ItemNumber	next_free;
	char		size[ITEM_SIZE];
} Item;

StaticAssertDecl(NAMEDATALEN != 64 || sizeof(Item) == ITEM_SIZE,
				 "an entry of the channel map fits into an item");

/*
 * Memory of the map that is charged to a session.
 *
 * bytes is changed atomically, by this or another session that holds the lock
 * of the partition of an entry on which this session listens.
 */
typedef struct Account
{
	pg_atomic_uint32 roleid;	/* written by the session */
	pg_atomic_uint64 bytes;
} Account;

/*
 * nentries: numbers of entries, by the highest bits of their hash values.
 * Changed under the lock of the partition of the entry, read without it.  A
 * sender that must find a listener reads a counter that includes its entry:
 * the listener has incremented the counter before its commit, with a full
 * barrier, and the sender has acquired PinpointOrderLock after that commit, or
 * has used the numbers that wakeup.c explains.
 *
 * nsharing: number of listeners that share a channel, over all channels.
 * Changed and read likewise.
 *
 * max_receivers: maximum number of sessions that ever had to receive a
 * notification on one shared channel.
 *
 * first_free, ntaken: protected by items_lock.  Items with a number above
 * ntaken were never in use, so their memory need not be allocated yet.
 *
 * nfree: number of free items.  Changed under items_lock, read without it.
 */
typedef struct ChannelMapControl
{
	pg_atomic_uint32 nsharing;
	pg_atomic_uint32 max_receivers;
	slock_t		items_lock;
	ItemNumber	first_free;
	uint32		ntaken;
	pg_atomic_uint32 nfree;
	pg_atomic_uint32 nentries[FILTER_SIZE];
	Account		accounts[FLEXIBLE_ARRAY_MEMBER];	/* array of MaxBackends
													 * elements */
} ChannelMapControl;

/* Set by the postmaster, and inherited by all processes. */
static ChannelMapControl *map_control = NULL;
static ItemNumber *buckets = NULL;
static Item *items = NULL;
static int	nbuckets_log2;
static uint32 max_same_bits;	/* maximum of an element of nentries */

static Size map_size(void);
static Size control_size(void);
static Size max_items(void);
static pg_atomic_uint32 *entry_counter(uint32 hash);
static LWLock *partition_lock(uint32 hash);
static ItemNumber *bucket_of(uint32 hash);
static Item *item(ItemNumber number);
static bool take_items(int n, ItemNumber *numbers);
static void free_item(ItemNumber number);
static ItemNumber *find(Oid dboid, const char *channel, uint32 hash);
static ChannelEntry *make_entry(const char *channel, uint32 hash);
static bool may_have_more(Oid roleid);
static void charge(int slotno, int64 bytes);
static bool add_listener(ChannelEntry *entry, const PinpointListener *listener,
						 bool may_grow);
static void raise_max_receivers(uint32 receivers);
static void remove_listener(ChannelEntry *entry, int slotno);
static uint32 listeners_below(int depth);
static PinpointListener *listener_at(ChannelEntry *entry, uint32 place);
static bool make_room(ChannelEntry *entry);
static void shrink(ChannelEntry *entry);
static uint32 hash_of_notification(Oid dboid,
								   const PinpointNotification *notification);
static uint32 lookup_in_partition(Oid dboid, const PinpointChannelKey *keys,
								  uint32 n, PinpointListenersVisitor visitor,
								  void *arg);
static int	end_of_group(const PinpointListeners *listeners, Oid group);
static void describe(ChannelEntry *entry, PinpointListeners *listeners);

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
	return CACHELINEALIGN(add_size(offsetof(ChannelMapControl, accounts),
								   mul_size(MaxBackends, sizeof(Account))));
}

/*
 * Number of items in the memory that the buckets leave.
 */
static Size
max_items(void)
{
	Size		size = map_size() -
		((Size) 1 << nbuckets_log2) * sizeof(ItemNumber);

	return Min(size / ITEM_SIZE, PG_INT32_MAX);
}

Size
pinpoint_channel_map_shmem_size(void)
{
	return add_size(control_size() + PG_CACHE_LINE_SIZE, map_size());
}

/*
 * Create the map.  The postmaster calls this at start and at restart after a
 * crash.
 *
 * The map has the same address in each process.  So all processes use the
 * pointers that are set here, and need not attach.
 */
void
pinpoint_channel_map_shmem_init(void)
{
	char	   *place;
	bool		found;

	place = ShmemInitStruct("pg_pinpoint channel map",
							pinpoint_channel_map_shmem_size(), &found);
	Assert(!found);

	map_control = (ChannelMapControl *) CACHELINEALIGN(place);
	nbuckets_log2 = Min(pg_ceil_log2_64(map_size() / ITEM_SIZE), 31);
	Assert(nbuckets_log2 >= PINPOINT_PARTITIONS_LOG2);
	items = (Item *) ((char *) map_control + control_size());
	buckets = (ItemNumber *) (items + max_items());
	max_same_bits = MAX_ABOVE_MEAN + 4 * (max_items() / FILTER_SIZE);

	pg_atomic_init_u32(&map_control->nsharing, 0);
	pg_atomic_init_u32(&map_control->max_receivers, 0);
	SpinLockInit(&map_control->items_lock);
	map_control->first_free = 0;
	map_control->ntaken = 0;
	pg_atomic_init_u32(&map_control->nfree, max_items());
	for (int i = 0; i < FILTER_SIZE; i++)
		pg_atomic_init_u32(&map_control->nentries[i], 0);
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&map_control->accounts[i].roleid, InvalidOid);
		pg_atomic_init_u64(&map_control->accounts[i].bytes, 0);
	}
	memset(buckets, 0, ((Size) 1 << nbuckets_log2) * sizeof(ItemNumber));
}

/*
 * The counter, lock and bucket for a hash value.
 */
static pg_atomic_uint32 *
entry_counter(uint32 hash)
{
	return &map_control->nentries[hash >> (32 - FILTER_LOG2)];
}

static LWLock *
partition_lock(uint32 hash)
{
	return &PinpointChannelMapLocks[PARTITION_OF(hash)].lock;
}

static ItemNumber *
bucket_of(uint32 hash)
{
	return &buckets[hash >> (32 - nbuckets_log2)];
}

static Item *
item(ItemNumber number)
{
	return &items[number - 1];
}

/*
 * Take n items.  Returns false, and takes none, if there are not enough.
 */
static bool
take_items(int n, ItemNumber *numbers)
{
	bool		enough;

	SpinLockAcquire(&map_control->items_lock);
	enough = pg_atomic_read_u32(&map_control->nfree) >= (uint32) n;
	for (int i = 0; enough && i < n; i++)
	{
		numbers[i] = map_control->first_free;
		if (numbers[i] != 0)
			map_control->first_free = item(numbers[i])->next_free;
		else
			numbers[i] = ++map_control->ntaken;
	}
	if (enough)
		pg_atomic_write_u32(&map_control->nfree,
							pg_atomic_read_u32(&map_control->nfree) - n);
	SpinLockRelease(&map_control->items_lock);
	return enough;
}

static void
free_item(ItemNumber number)
{
	SpinLockAcquire(&map_control->items_lock);
	item(number)->next_free = map_control->first_free;
	map_control->first_free = number;
	pg_atomic_write_u32(&map_control->nfree,
						pg_atomic_read_u32(&map_control->nfree) + 1);
	SpinLockRelease(&map_control->items_lock);
}

/*
 * Find the entry of a channel.  Returns the address of the link to it, in its
 * bucket or in another entry, or NULL if there is no entry.
 *
 * hash: pinpoint_channel_hash_in_database() of the channel.
 *
 * The caller holds the lock of the partition, shared or exclusive.
 */
static ItemNumber *
find(Oid dboid, const char *channel, uint32 hash)
{
	ItemNumber *number = bucket_of(hash);

	while (*number != 0)
	{
		ChannelEntry *entry = &item(*number)->entry;

		if (entry->hash == hash && entry->dboid == dboid &&
			strcmp(entry->channel, channel) == 0)
			return number;
		number = &entry->next;
	}
	return NULL;
}

/*
 * Add a slot to the listeners on a channel of this database.  The slot is not
 * one of them yet.
 *
 * hash: pinpoint_channel_hash() of the channel.  roleid: role of the session.
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
	ItemNumber *number;
	ChannelEntry *entry;
	bool		may_grow;
	bool		fits;

	hash = pinpoint_channel_hash_in_database(MyDatabaseId, hash);

	/* The account is empty, or already has this role. */
	pg_atomic_write_u32(&map_control->accounts[slotno].roleid, roleid);
	may_grow = may_have_more(roleid);

	pinpoint_lock_acquire(partition_lock(hash), LW_EXCLUSIVE);
	number = find(MyDatabaseId, channel, hash);
	if (number != NULL)
		entry = &item(*number)->entry;
	else
		entry = may_grow ? make_entry(channel, hash) : NULL;
	fits = entry != NULL && add_listener(entry, &listener, may_grow);
	LWLockRelease(partition_lock(hash));
	return fits;
}

/*
 * Create the entry of a channel.  Returns NULL if it does not fit.
 *
 * The caller holds the lock of the partition exclusively.
 */
static ChannelEntry *
make_entry(const char *channel, uint32 hash)
{
	ItemNumber	number;
	ItemNumber *bucket = bucket_of(hash);
	ChannelEntry *entry;

	if (pg_atomic_fetch_add_u32(entry_counter(hash), 1) >= max_same_bits ||
		!take_items(1, &number))
	{
		pg_atomic_fetch_sub_u32(entry_counter(hash), 1);
		return NULL;
	}

	entry = &item(number)->entry;
	entry->hash = hash;
	entry->dboid = MyDatabaseId;
	strlcpy(entry->channel, channel, NAMEDATALEN);
	entry->nlisteners = 0;
	entry->nsharers = 0;
	entry->depth = 0;
	pg_atomic_init_u64(&entry->transactions, 0);
	entry->next = *bucket;
	*bucket = number;
	return entry;
}

/*
 * May a role use one more item?  Takes no lock: concurrent changes of accounts
 * make the answer slightly inexact.
 */
static bool
may_have_more(Oid roleid)
{
	Size		nfree = pg_atomic_read_u32(&map_control->nfree);
	Size		of_role = 0;

	/* The usual case: all roles together use less than what is free. */
	if (max_items() - nfree < nfree)
		return true;

	for (int i = 0; i < MaxBackends; i++)
	{
		Account    *account = &map_control->accounts[i];

		if (pg_atomic_read_u32(&account->roleid) == roleid)
			of_role += pg_atomic_read_u64(&account->bytes);
	}
	return of_role < nfree * ITEM_SIZE;
}

/*
 * Add bytes, which can be negative, to the account of a session.
 */
static void
charge(int slotno, int64 bytes)
{
	pg_atomic_fetch_add_u64(&map_control->accounts[slotno].bytes, bytes);
}

/*
 * Add a listener to an entry.  Returns false if it does not fit.  The first
 * LISTENERS_INLINE listeners always fit.
 *
 * may_grow: may the entry use more memory?
 *
 * The caller holds the lock of the partition exclusively.
 */
static bool
add_listener(ChannelEntry *entry, const PinpointListener *listener,
			 bool may_grow)
{
	PinpointListeners listeners;
	int			place;

	if (entry->nlisteners >= LISTENERS_INLINE && !may_grow)
		return false;
	if (!make_room(entry))
		return false;

	/* It becomes the last one of its group. */
	describe(entry, &listeners);
	place = OidIsValid(listener->group) ?
		listeners.nslots + end_of_group(&listeners, listener->group) :
		listeners.nslots;
	for (int i = entry->nlisteners; i > place; i--)
		*listener_at(entry, i) = *listener_at(entry, i - 1);
	*listener_at(entry, place) = *listener;

	if (entry->nlisteners == 0)
		entry->charged = listener->slotno;
	charge(listener->slotno,
		   entry->nlisteners == 0 ? ENTRY_CHARGE : LISTENER_CHARGE);
	entry->nlisteners++;

	if (listener->share_limit > 0)
	{
		entry->nsharers++;
		pg_atomic_fetch_add_u32(&map_control->nsharing, 1);
		describe(entry, &listeners);
		raise_max_receivers(pinpoint_listeners_max_receivers(&listeners));
	}
	return true;
}

/*
 * Set max_receivers to a value, unless it is higher.  Other sessions may do
 * this concurrently, for entries of other partitions.
 */
static void
raise_max_receivers(uint32 receivers)
{
	uint32		max = pg_atomic_read_u32(&map_control->max_receivers);

	while (max < receivers &&
		   !pg_atomic_compare_exchange_u32(&map_control->max_receivers,
										   &max, receivers))
	{
	}
}

/*
 * Remove a slot from the listeners on a channel of this database.  Removes the
 * entry together with its last listener.  Does not fail.
 *
 * hash: pinpoint_channel_hash() of the channel.
 */
void
pinpoint_channel_map_remove(const char *channel, uint32 hash, int slotno)
{
	ItemNumber *number;

	hash = pinpoint_channel_hash_in_database(MyDatabaseId, hash);
	pinpoint_lock_acquire(partition_lock(hash), LW_EXCLUSIVE);
	number = find(MyDatabaseId, channel, hash);
	if (number != NULL)
	{
		ItemNumber	found = *number;
		ChannelEntry *entry = &item(found)->entry;

		remove_listener(entry, slotno);
		if (entry->nlisteners == 0)
		{
			*number = entry->next;
			free_item(found);
			pg_atomic_fetch_sub_u32(entry_counter(hash), 1);
		}
	}
	LWLockRelease(partition_lock(hash));
}

static void
remove_listener(ChannelEntry *entry, int slotno)
{
	int			place = 0;
	PinpointListener removed;

	while (place < entry->nlisteners &&
		   listener_at(entry, place)->slotno != slotno)
		place++;
	if (place == entry->nlisteners)
		return;

	removed = *listener_at(entry, place);
	if (removed.share_limit > 0)
	{
		entry->nsharers--;
		pg_atomic_fetch_sub_u32(&map_control->nsharing, 1);
	}

	/* The next member can become the first one, which needs the turn. */
	if (place + 1 < entry->nlisteners &&
		listener_at(entry, place + 1)->group == removed.group)
		listener_at(entry, place + 1)->turn = removed.turn;
	for (int i = place; i + 1 < entry->nlisteners; i++)
		*listener_at(entry, i) = *listener_at(entry, i + 1);
	entry->nlisteners--;
	shrink(entry);

	if (entry->charged != slotno)
		charge(slotno, -LISTENER_CHARGE);
	else
	{
		charge(slotno, -ENTRY_CHARGE);
		if (entry->nlisteners > 0)
		{
			entry->charged = listener_at(entry, 0)->slotno;
			charge(entry->charged, ENTRY_CHARGE - LISTENER_CHARGE);
		}
	}
}

/*
 * Number of listeners that fit into a tree with a number of levels.
 */
static uint32
listeners_below(int depth)
{
	uint32		n = LISTENERS_PER_LEAF;

	if (depth == 0)
		return LISTENERS_INLINE;
	while (--depth > 0)
		n *= CHILDREN_PER_NODE;
	return n;
}

/*
 * The listener at an index, counted from 0.  The items for it exist.
 */
static PinpointListener *
listener_at(ChannelEntry *entry, uint32 place)
{
	ItemNumber	number;

	if (entry->depth == 0)
		return &entry->few[place];

	number = entry->root;
	for (int depth = entry->depth; depth > 1; depth--)
	{
		uint32		below = listeners_below(depth - 1);

		number = item(number)->children[place / below];
		place %= below;
	}
	return &item(number)->listeners[place];
}

/*
 * Make room for one more listener: take the items that it needs.  Returns
 * false, and changes nothing, if there are not enough.
 */
static bool
make_room(ChannelEntry *entry)
{
	uint32		place = entry->nlisteners;
	bool		grows = place == listeners_below(entry->depth);
	int			depth = entry->depth + (grows ? 1 : 0);
	int			nnew = 0;
	int			nused = 0;
	ItemNumber	new_items[MAX_DEPTH + 1];
	ItemNumber *link;

	/* A leaf or node is missing if this is its first listener. */
	for (int level = 1; level <= depth; level++)
	{
		if (place % listeners_below(level) == 0)
			nnew++;
	}
	if (grows)
		nnew++;					/* the new root */
	if (nnew > 0 && !take_items(nnew, new_items))
		return false;

	if (grows && entry->depth == 0)
	{
		ItemNumber	root = new_items[nused++];

		memcpy(item(root)->listeners, entry->few, sizeof(entry->few));
		entry->root = root;
	}
	else if (grows)
	{
		ItemNumber	root = new_items[nused++];

		item(root)->children[0] = entry->root;
		entry->root = root;
	}
	entry->depth = depth;

	link = &entry->root;
	for (int level = depth; level > 0; level--)
	{
		if (place % listeners_below(level) == 0)
			*link = new_items[nused++];
		if (level > 1)
			link = &item(*link)->children[place % listeners_below(level) /
										  listeners_below(level - 1)];
	}
	Assert(nused == nnew);
	return true;
}

/*
 * Free the items that only the last listener needed.  Called after it was
 * removed.
 */
static void
shrink(ChannelEntry *entry)
{
	uint32		place = entry->nlisteners;	/* its index */
	ItemNumber	number = entry->root;

	if (entry->depth == 0)
		return;

	for (int level = entry->depth; level > 0; level--)
	{
		ItemNumber	child = 0;

		if (level > 1)
			child = item(number)->children[place % listeners_below(level) /
										   listeners_below(level - 1)];
		if (place % listeners_below(level) == 0)
			free_item(number);
		number = child;
	}

	/* The other listeners fit into a tree with one level less. */
	if (place == listeners_below(entry->depth - 1))
	{
		ItemNumber	root = entry->root;

		if (entry->depth == 1)
			memcpy(entry->few, item(root)->listeners, sizeof(entry->few));
		else
			entry->root = item(root)->children[0];
		free_item(root);
		entry->depth--;
	}
}

/*
 * Does any session share a channel?  Needs no lock.
 */
bool
pinpoint_channel_map_is_shared(void)
{
	return pg_atomic_read_u32(&map_control->nsharing) > 0;
}

/*
 * Maximum number of sessions that receive a notification on one shared
 * channel.  This is an estimate, to reserve space.  Needs no lock.
 */
int
pinpoint_channel_map_max_receivers(void)
{
	return (int) Min(pg_atomic_read_u32(&map_control->max_receivers),
					 pg_atomic_read_u32(&map_control->nsharing));
}

/*
 * Call visitor with the listeners on a channel, if there are any.  Does not
 * fail.
 *
 * hash: pinpoint_channel_hash() of the channel.
 *
 * The visitor is called while the lock of the partition is held in shared
 * mode.
 */
void
pinpoint_channel_map_lookup(Oid dboid, const char *channel, uint32 hash,
							PinpointListenersVisitor visitor, void *arg)
{
	ItemNumber *number;

	hash = pinpoint_channel_hash_in_database(dboid, hash);
	if (pg_atomic_read_u32(entry_counter(hash)) == 0)
		return;

	pinpoint_lock_acquire(partition_lock(hash), LW_SHARED);
	number = find(dboid, channel, hash);
	if (number != NULL)
	{
		PinpointListeners listeners;

		describe(&item(*number)->entry, &listeners);
		visitor(&listeners, arg);
	}
	LWLockRelease(partition_lock(hash));
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

	for (uint32 i = 0; i < nchannels; i++)
		begins[PARTITION_OF(hash_of_notification(dboid, channels[i]))]++;
	for (int i = 1; i <= PINPOINT_PARTITIONS; i++)
		begins[i] += begins[i - 1];

	/*
	 * begins[] contains the ends now.  Each step decrements one of them, until
	 * all are the beginnings.
	 */
	for (uint32 i = nchannels; i-- > 0;)
	{
		uint32		hash = hash_of_notification(dboid, channels[i]);
		PinpointChannelKey *key = &sorted[--begins[PARTITION_OF(hash)]];

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
	return pinpoint_channel_hash_in_database(dboid, notification->channel_hash);
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

	for (uint32 i = 0; i < n; i++)
	{
		if (pg_atomic_read_u32(entry_counter(keys[i].hash)) == 0)
			continue;
		PINPOINT_PREFETCH(bucket_of(keys[i].hash));
		PINPOINT_PREFETCH(keys[i].channel);
		candidates[ncandidates++] = i;
	}
	if (ncandidates == 0)
		return done;

	pinpoint_lock_acquire(partition_lock(keys[0].hash), LW_SHARED);
	for (uint32 i = 0; i < ncandidates; i++)
	{
		ItemNumber	first = *bucket_of(keys[candidates[i]].hash);

		/* The comparison of names reads many bytes at a time: both halves. */
		if (first != 0)
		{
			PINPOINT_PREFETCH(item(first));
			PINPOINT_PREFETCH((char *) item(first) + ITEM_SIZE / 2);
		}
	}
	for (uint32 i = 0; i < ncandidates; i++)
	{
		const PinpointChannelKey *key = &keys[candidates[i]];
		ItemNumber *number = find(dboid, key->channel, key->hash);
		PinpointListeners listeners;

		if (number == NULL)
			continue;
		describe(&item(*number)->entry, &listeners);
		visitor(&listeners, arg);
		nlisteners += listeners.nslots + listeners.nsharers;
		if (nlisteners >= LISTENERS_PER_LOCK)
		{
			done = candidates[i] + 1;
			break;
		}
	}
	LWLockRelease(partition_lock(keys[0].hash));
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
	Size		per_partition = (Size) 1 << (nbuckets_log2 - PINPOINT_PARTITIONS_LOG2);

	for (int partition = 0; partition < PINPOINT_PARTITIONS; partition++)
	{
		LWLock	   *lock = &PinpointChannelMapLocks[partition].lock;

		LWLockAcquire(lock, LW_SHARED);
		for (Size i = 0; i < per_partition; i++)
		{
			ItemNumber	number = buckets[partition * per_partition + i];

			while (number != 0)
			{
				ChannelEntry *entry = &item(number)->entry;
				PinpointListeners listeners;

				describe(entry, &listeners);
				visitor(entry->dboid, entry->channel, &listeners, arg);
				number = entry->next;
			}
		}
		LWLockRelease(lock);
	}
}

/*
 * Set the argument of a visitor for an entry.
 */
static void
describe(ChannelEntry *entry, PinpointListeners *listeners)
{
	listeners->entry = entry;
	listeners->nslots = entry->nlisteners - entry->nsharers;
	listeners->nsharers = entry->nsharers;
	listeners->transactions = &entry->transactions;
}

/*
 * A listener on a channel, by its index among all listeners or among those
 * that share the channel.  The latter follow the nslots others.
 */
PinpointListener *
pinpoint_listener(const PinpointListeners *listeners, int place)
{
	return listener_at(listeners->entry, place);
}

PinpointListener *
pinpoint_sharer(const PinpointListeners *listeners, int place)
{
	return listener_at(listeners->entry, listeners->nslots + place);
}

/*
 * The index among the sharing listeners after the last member of a group.
 * Without members, the index where they would be.
 */
static int
end_of_group(const PinpointListeners *listeners, Oid group)
{
	int			low = 0;
	int			high = listeners->nsharers;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (pinpoint_sharer(listeners, middle)->group <= group)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Number of members of a group.
 *
 * first: index of its first member among the sharing listeners.
 */
int
pinpoint_listeners_group_size(const PinpointListeners *listeners, int first)
{
	return end_of_group(listeners,
						pinpoint_sharer(listeners, first)->group) - first;
}

/*
 * Index of the first member of a group among the sharing listeners.  *size:
 * set to the number of its members, which can be 0.
 */
int
pinpoint_listeners_find_group(const PinpointListeners *listeners, Oid group,
							  int *size)
{
	int			first = end_of_group(listeners, group - 1);

	*size = end_of_group(listeners, group) - first;
	return first;
}

/*
 * Maximum number of the sharing listeners that receive a notification: the sum
 * over all groups of the share_limit of the newest member.
 */
int
pinpoint_listeners_max_receivers(const PinpointListeners *listeners)
{
	int			receivers = 0;
	int			size;

	for (int first = 0; first < listeners->nsharers; first += size)
	{
		size = pinpoint_listeners_group_size(listeners, first);
		receivers += pinpoint_sharer(listeners, first + size - 1)->share_limit;
	}
	return receivers;
}
