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
 * Memory for the map if pinpoint.channel_memory leaves it to us: so many bytes,
 * and so many more for each possible session.  That is some hundred channels
 * for each session that nobody else listens on.
 */
#define DEFAULT_BASE_SIZE			((Size) 16 * 1024 * 1024)
#define DEFAULT_SIZE_PER_SESSION	((Size) 32 * 1024)

/* Bytes of an item, and what fits into one. */
#define ITEM_SIZE			128
#define LISTENERS_INLINE	2
#define LISTENERS_PER_LEAF	10
#define CHILDREN_PER_NODE	32

/* Levels of nodes and leaves of the tree for 2^24 listeners, which is enough. */
#define MAX_DEPTH			6

/* Partitions of the map, each with a lock: by the highest bits of the hash value. */
#define PARTITION_OF(hash)	((hash) >> (32 - PINPOINT_PARTITIONS_LOG2))

/* Counters of entries, likewise. */
#define FILTER_LOG2			14
#define FILTER_SIZE			(1 << FILTER_LOG2)

/*
 * Entries that one of these may count: four times the mean when the memory is full, and
 * so many more.
 */
#define MAX_ABOVE_MEAN		64

/*
 * A sender with many channels looks up so many of them without letting go of the lock
 * of a partition, and fewer if they have so many listeners.
 */
#define LOOKUPS_PER_LOCK	64
#define LISTENERS_PER_LOCK	1024

/*
 * Bytes that are charged to the role of a listener: for the first one on a channel
 * its entry, for each other one its part of the tree, roughly.
 */
#define ENTRY_CHARGE		ITEM_SIZE
#define LISTENER_CHARGE		32

/* Number of an item, counted from 1; 0 for none. */
typedef uint32 ItemNumber;

/*
 * Entry of the map.  Protected by the lock of its partition, but for transactions
 * and turns, see channel_map.h; so are the items of its tree.
 *
 * The fields are in this order to leave no holes, and so that what a look-up reads is
 * close together.
 */
typedef struct ChannelEntry
{
	ItemNumber	next;			/* in the same bucket */
	uint32		hash;
	Oid			dboid;
	int			nlisteners;
	int			nsharers;		/* the last ones of them */
	uint32		charged:24;		/* slot of the listener that ENTRY_CHARGE is
								 * charged to */
	uint32		depth:8;		/* levels of the tree; 0 if there is none */
	union
	{
		PinpointListener few[LISTENERS_INLINE]; /* while depth is 0 */
		ItemNumber	root;		/* of the tree */
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
 * Memory of the map that is charged to a session.  bytes: changed by the session
 * itself, or under the lock of the partition of an entry that it listens on.
 */
typedef struct Account
{
	pg_atomic_uint32 roleid;	/* written by the session */
	pg_atomic_uint64 bytes;
} Account;

/*
 * nentries: how many entries there are whose hash values begin with these bits.
 * Changed under the lock of the entry's partition, read without.  A sender that
 * must find a listener sees its entry counted: the listener has counted it
 * before its commit, with a full barrier, and the sender has taken
 * PinpointOrderLock after that commit.
 *
 * nsharing: how often a session shares a channel, likewise.
 *
 * max_receivers: how many sessions were to get a notification on a shared channel
 * at most, ever.
 *
 * first_free, ntaken: protected by items_lock.  Items from number ntaken + 1 on were
 * never in use, so their memory need not exist yet.
 *
 * nfree: changed under items_lock, read without.
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
	Account		accounts[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends of them */
} ChannelMapControl;

/* Set by the postmaster, and inherited by all processes. */
static ChannelMapControl *map_control = NULL;
static ItemNumber *buckets = NULL;
static Item *items = NULL;
static int	nbuckets_log2;
static uint32 max_same_bits;	/* entries that one of nentries may count */

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
 * Bytes for buckets and items.
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
 * Items for which there is room, beside the buckets.
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
 * In the postmaster, at start and at restart after a crash: create the map.
 *
 * The map is at the same address in every process, so all use what is made here to
 * look into it, and need not attach to anything.
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
 * What belongs to a hash value.
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
 * Take n items, or none if there are not so many.
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
 * Find the entry of a channel.  Returns where its number is: in the bucket, or in
 * another entry; NULL if there is none.  hash: pinpoint_channel_hash_in_database() of
 * the channel.  The caller holds the lock of the partition.
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
 * Add a slot to the listeners on a channel of this database, where it is not
 * yet.
 *
 * hash: pinpoint_channel_hash() of the channel.  roleid: the role of its session.
 * share_limit: how many sessions of this role get each notification, if this one is to
 * share the channel; 0 if not.
 *
 * Returns false if the channel does not fit, see above.  The map is as it was then.
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

	/* Nothing is charged to this session yet, or it has the same role. */
	pg_atomic_write_u32(&map_control->accounts[slotno].roleid, roleid);
	may_grow = may_have_more(roleid);

	LWLockAcquire(partition_lock(hash), LW_EXCLUSIVE);
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
 * Make the entry of a channel.  NULL if it does not fit.
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
 * May a role have an item more?
 *
 * Takes no lock.  Accounts that change meanwhile make the answer a little less
 * exact.
 */
static bool
may_have_more(Oid roleid)
{
	Size		nfree = pg_atomic_read_u32(&map_control->nfree);
	Size		of_role = 0;

	/* The usual case: not even all roles together have that much. */
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
 * Charge a session with so many bytes more, or less.
 */
static void
charge(int slotno, int64 bytes)
{
	pg_atomic_fetch_add_u64(&map_control->accounts[slotno].bytes, bytes);
}

/*
 * Add a listener to an entry that is locked exclusively.  Returns false if it does
 * not fit.  (The first two always do.)  may_grow: may the entry take more memory?
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
 * Others may do the same at this moment, for channels of other partitions.
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
 * Remove a slot from the listeners on a channel of this database, and the entry
 * with its last listener.  Does not fail.
 *
 * hash: pinpoint_channel_hash() of the channel.
 */
void
pinpoint_channel_map_remove(const char *channel, uint32 hash, int slotno)
{
	ItemNumber *number;

	hash = pinpoint_channel_hash_in_database(MyDatabaseId, hash);
	LWLockAcquire(partition_lock(hash), LW_EXCLUSIVE);
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

	/* If it was the first member of its group, the next one is that now. */
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
 * Listeners for which there is room in a tree of so many levels.
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
 * The listener at a place, counted from 0, for which there is room.
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
 * Make room for one more listener: the items on the way to it that are not there yet.
 * False if there are not enough of them; then nothing has changed.
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
 * The last listener was removed: give back the items that were there for it only.
 */
static void
shrink(ChannelEntry *entry)
{
	uint32		place = entry->nlisteners;	/* where it was */
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

	/* What is left fits into a tree with a level less. */
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
 * How many sessions get a notification on a shared channel at most.  Needs no lock,
 * and is exact enough to make room by it.
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
 * hash: pinpoint_channel_hash() of the channel.  The visitor is called with the
 * lock of a partition held.
 */
void
pinpoint_channel_map_lookup(Oid dboid, const char *channel, uint32 hash,
							PinpointListenersVisitor visitor, void *arg)
{
	ItemNumber *number;

	hash = pinpoint_channel_hash_in_database(dboid, hash);
	if (pg_atomic_read_u32(entry_counter(hash)) == 0)
		return;

	LWLockAcquire(partition_lock(hash), LW_SHARED);
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
 * The same for very many channels, each given by a notification.  They are sorted by
 * partition, and the lock of a partition is taken for up to LOOKUPS_PER_LOCK of them.
 * The channels are visited in no particular order.
 *
 * sorted: room for nchannels elements.
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

	/* So far these are the ends; each step moves one towards its beginning. */
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
 * Look up n channels of one partition, LOOKUPS_PER_LOCK at most.  Returns how many of
 * them it has looked up: fewer, but one at least, if there are very many listeners.
 *
 * Most of the time would be spent waiting for memory, as each bucket and each entry is
 * somewhere else.  So the processor is asked to fetch all of them first.
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

	LWLockAcquire(partition_lock(keys[0].hash), LW_SHARED);
	for (uint32 i = 0; i < ncandidates; i++)
	{
		ItemNumber	first = *bucket_of(keys[candidates[i]].hash);

		/* Names are compared many bytes at a time, so both halves are read. */
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
 * Call visitor for every channel of the server.  The visitor is called with
 * the lock of a partition held, so it must be short, and must not fail.
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
 * What a visitor gets to know of an entry.
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
 * One of the listeners on a channel.  Those that share it come behind the nslots
 * others.
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
 * Where the members of a group end among the sharers, or would.
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
 * How many members the group has whose first member is at this place among the
 * sharers.
 */
int
pinpoint_listeners_group_size(const PinpointListeners *listeners, int first)
{
	return end_of_group(listeners,
						pinpoint_sharer(listeners, first)->group) - first;
}

/*
 * Where the first member of a group is among the sharers.  *size is set to the number
 * of its members, which may be 0.
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
 * How many of the sharers get a notification: of each group as many as
 * its newest member says.
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
