/*-------------------------------------------------------------------------
 *
 * channel_map.c
 *		Who listens: (database, channel) to session slots.
 *
 * The map is a dshash table.  An entry holds an array of slot numbers.  Only
 * the owner of a slot adds or removes its number: before the commit of a
 * LISTEN, and after that of an UNLISTEN; see listening.c.  The sender of a
 * notification reads the map to learn whom to wake.
 *
 * All of it lives in one piece of main shared memory of fixed size
 * (pinpoint.channel_memory).  It could grow into dynamic shared memory, but a
 * segment of that has to be mapped by every process that comes across it, which
 * may fail, and the map is read and changed after commit, where nothing may.
 * With all of it mapped from the start, adding to the map is the only thing
 * that can fail, and that is done before commit.
 *
 * In front of the map is an array that counts its entries by hash, so that a
 * sender does not look for channels that nobody listens on.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/dshash.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/dsa.h"
#include "utils/memutils.h"

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

/*
 * Listeners that an entry holds by itself.  Most channels have one or two, and
 * with the first one inside, making an entry is one allocation: there is no
 * half-made entry to clean up if a second one failed.
 */
#define LISTENERS_INLINE	2

typedef struct ChannelKey
{
	Oid			dboid;
	char		channel[NAMEDATALEN];	/* zero-terminated */
} ChannelKey;

/*
 * Entry of the map.  Protected by the lock of its partition, but for turn and
 * transactions; so is the array of slot numbers that it may point to.  Those who
 * share the channel are the last nsharers of them.  They are in no order otherwise.
 *
 * The fields are in this order to leave no holes: see ITEM_SIZE.
 */
typedef struct ChannelEntry
{
	ChannelKey	key;			/* must be first */
	int			nlisteners;
	int			length;			/* elements that fit where they are now */
	int			few[LISTENERS_INLINE];	/* while length is LISTENERS_INLINE */
	int			nsharers;
	int			share_limit;	/* of the one who began to share it last */
	uint32		turn;			/* see PinpointListeners, */
	pg_atomic_uint64 transactions;	/* likewise */
	dsa_pointer many;			/* array of int, when length is more */
} ChannelEntry;

/*
 * With what dshash puts in front of it, an entry fits into what DSA hands out for 113
 * to 128 bytes.  The next size is 160.
 */
#define ITEM_SIZE			(sizeof(ChannelEntry) + 16)
StaticAssertDecl(NAMEDATALEN != 64 || ITEM_SIZE <= 128,
				 "an entry of the channel map takes 128 bytes");

/* Counters of entries; a power of two. */
#define FILTER_SIZE		16384

/*
 * nentries: how many entries there are with a hash value of this remainder.
 * Changed under the lock of the entry's partition, read without.  A sender that
 * must find a listener sees its entry counted: the listener has counted it
 * before its commit, with a full barrier, and the sender has taken
 * PinpointOrderLock after that commit.
 *
 * nsharing: how often a session shares a channel, likewise.
 *
 * max_share_limit: the largest limit with which a channel was ever shared.
 */
typedef struct ChannelMapControl
{
	pg_atomic_uint32 nsharing;
	pg_atomic_uint32 max_share_limit;
	pg_atomic_uint32 nentries[FILTER_SIZE];
} ChannelMapControl;

static ChannelMapControl *map_control = NULL;
static dsa_area *map_area = NULL;
static dshash_table *channel_map = NULL;

static Size map_size(void);
static uint32 combined_hash(Oid dboid, uint32 hash);
static pg_atomic_uint32 *entry_counter(Oid dboid, uint32 hash);
static uint32 key_hash(const void *key, size_t size, void *arg);
static int	key_compare(const void *a, const void *b, size_t size, void *arg);
static void make_key(ChannelKey *key, Oid dboid, const char *channel);
static void describe(ChannelEntry *entry, PinpointListeners *listeners);
static int *listeners_of(ChannelEntry *entry);
static void add(const char *channel, int slotno, int share_limit);
static void raise_max_share_limit(uint32 share_limit);
static void remove_listener(ChannelEntry *entry, int slotno);
static void resize_listeners(ChannelEntry *entry, int length, int flags);
static void explain_full(void *arg);

static const dshash_parameters map_parameters = {
	.key_size = sizeof(ChannelKey),
	.entry_size = sizeof(ChannelEntry),
	.compare_function = key_compare,
	.hash_function = key_hash,
#if PG_VERSION_NUM >= 170000
	.copy_function = dshash_memcpy,
#endif
};

/*
 * Bytes for the map itself.
 */
static Size
map_size(void)
{
	if (pinpoint_channel_memory >= 0)
		return mul_size(pinpoint_channel_memory, 1024);
	return add_size(DEFAULT_BASE_SIZE,
					mul_size(MaxBackends, DEFAULT_SIZE_PER_SESSION));
}

/*
 * Hash of a key, from pinpoint_channel_hash() of its channel.
 */
static uint32
combined_hash(Oid dboid, uint32 hash)
{
	return hash_combine(hash, murmurhash32((uint32) dboid));
}

/*
 * Hash of a channel of a database.  hash: pinpoint_channel_hash().
 */
uint32
pinpoint_channel_map_hash(Oid dboid, uint32 hash)
{
	return combined_hash(dboid, hash);
}

/*
 * The counter of entries like that of a channel.  hash: pinpoint_channel_hash().
 */
static pg_atomic_uint32 *
entry_counter(Oid dboid, uint32 hash)
{
	return &map_control->nentries[combined_hash(dboid, hash) % FILTER_SIZE];
}

/*
 * Keys are compared up to the terminating zero, so the rest of the array need
 * not be cleared.
 */
static uint32
key_hash(const void *key, size_t size, void *arg)
{
	const ChannelKey *k = key;

	return combined_hash(k->dboid, pinpoint_channel_hash(k->channel));
}

static int
key_compare(const void *a, const void *b, size_t size, void *arg)
{
	const ChannelKey *ka = a;
	const ChannelKey *kb = b;

	if (ka->dboid != kb->dboid)
		return ka->dboid < kb->dboid ? -1 : 1;
	return strcmp(ka->channel, kb->channel);
}

static void
make_key(ChannelKey *key, Oid dboid, const char *channel)
{
	memset(key, 0, sizeof(ChannelKey));
	key->dboid = dboid;
	strlcpy(key->channel, channel, NAMEDATALEN);
}

Size
pinpoint_channel_map_shmem_size(void)
{
	return add_size(MAXALIGN(sizeof(ChannelMapControl)), map_size());
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
	MemoryContext oldcontext;
	void	   *place;
	dshash_parameters parameters = map_parameters;
	bool		found;

	map_control = ShmemInitStruct("pg_pinpoint channel map",
								  pinpoint_channel_map_shmem_size(), &found);
	Assert(!found);

	pg_atomic_init_u32(&map_control->nsharing, 0);
	pg_atomic_init_u32(&map_control->max_share_limit, 0);
	for (int i = 0; i < FILTER_SIZE; i++)
		pg_atomic_init_u32(&map_control->nentries[i], 0);

	/* It is not to grow beyond its place, ever. */
	oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	place = (char *) map_control + MAXALIGN(sizeof(ChannelMapControl));
	parameters.tranche_id = pinpoint_channel_map_tranche();
	map_area = dsa_create_in_place(place, map_size(), parameters.tranche_id,
								   NULL);
	dsa_pin(map_area);
	dsa_pin_mapping(map_area);
	dsa_set_size_limit(map_area, map_size());
	channel_map = dshash_create(map_area, &parameters, NULL);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Add a slot to the listeners on a channel of this database, where it is not
 * yet.
 *
 * share_limit: how many of those who share the channel get each notification, if
 * this one is to share it; 0 if not.
 *
 * The array of listeners grows by doubling, and shrinks here as well when it
 * has become far too large: removal comes after commit, where nothing may be
 * allocated.
 *
 * Errors: ERRCODE_OUT_OF_MEMORY, if the memory for channels is full.  The map is
 * as it was then.  PostgreSQL reports an error to the client before it releases the
 * locks that are held, and waits for that client; so they are released here.  The
 * caller holds none.
 */
void
pinpoint_channel_map_add(const char *channel, int slotno, int share_limit)
{
	ErrorContextCallback context;

	context.callback = explain_full;
	context.arg = NULL;
	context.previous = error_context_stack;
	error_context_stack = &context;

	PG_TRY();
	{
		add(channel, slotno, share_limit);
	}
	PG_CATCH();
	{
		LWLockReleaseAll();
		PG_RE_THROW();
	}
	PG_END_TRY();

	error_context_stack = context.previous;
}

static void
add(const char *channel, int slotno, int share_limit)
{
	ChannelKey	key;
	ChannelEntry *entry;
	int		   *listeners;
	bool		found;

	make_key(&key, MyDatabaseId, channel);
	entry = dshash_find_or_insert(channel_map, &key, &found);
	if (!found)
	{
		entry->nlisteners = 0;
		entry->length = LISTENERS_INLINE;
		entry->many = InvalidDsaPointer;
		entry->nsharers = 0;
		entry->share_limit = 0;
		entry->turn = 0;
		pg_atomic_init_u64(&entry->transactions, 0);
		pg_atomic_fetch_add_u32(entry_counter(MyDatabaseId,
											  pinpoint_channel_hash(channel)),
								1);
	}

	if (entry->nlisteners == entry->length)
		resize_listeners(entry, 2 * entry->length, 0);
	else if (entry->length > LISTENERS_INLINE &&
			 entry->nlisteners < entry->length / 4)
		resize_listeners(entry, entry->length / 2, DSA_ALLOC_NO_OOM);

	listeners = listeners_of(entry);
	if (share_limit > 0)
	{
		listeners[entry->nlisteners] = slotno;
		entry->nsharers++;
		entry->share_limit = share_limit;
		pg_atomic_fetch_add_u32(&map_control->nsharing, 1);
		raise_max_share_limit(share_limit);
	}
	else
	{
		/* the first of those who share it makes way */
		int			place = entry->nlisteners - entry->nsharers;

		listeners[entry->nlisteners] = listeners[place];
		listeners[place] = slotno;
	}
	entry->nlisteners++;
	dshash_release_lock(channel_map, entry);
}

/*
 * Others may do the same at this moment, for channels of other partitions.
 */
static void
raise_max_share_limit(uint32 share_limit)
{
	uint32		max = pg_atomic_read_u32(&map_control->max_share_limit);

	while (max < share_limit &&
		   !pg_atomic_compare_exchange_u32(&map_control->max_share_limit,
										   &max, share_limit))
	{
	}
}

/*
 * Remove a slot from the listeners on a channel of this database, and the entry
 * with its last listener.  Does not fail.
 */
void
pinpoint_channel_map_remove(const char *channel, int slotno)
{
	ChannelKey	key;
	ChannelEntry *entry;

	make_key(&key, MyDatabaseId, channel);
	entry = dshash_find(channel_map, &key, true);
	if (entry == NULL)
		return;

	remove_listener(entry, slotno);
	if (entry->nlisteners > 0)
	{
		dshash_release_lock(channel_map, entry);
		return;
	}

	if (DsaPointerIsValid(entry->many))
		dsa_free(map_area, entry->many);
	dshash_delete_entry(channel_map, entry);
	pg_atomic_fetch_sub_u32(entry_counter(MyDatabaseId,
										  pinpoint_channel_hash(channel)),
							1);
}

static void
remove_listener(ChannelEntry *entry, int slotno)
{
	int		   *listeners = listeners_of(entry);
	int			first_sharer = entry->nlisteners - entry->nsharers;
	int			last = entry->nlisteners - 1;

	for (int i = 0; i <= last; i++)
	{
		if (listeners[i] != slotno)
			continue;

		if (i >= first_sharer)
		{
			entry->nsharers--;
			pg_atomic_fetch_sub_u32(&map_control->nsharing, 1);
		}
		else
		{
			/* one of its kind takes its place, and leaves a gap */
			listeners[i] = listeners[first_sharer - 1];
			i = first_sharer - 1;
		}
		listeners[i] = listeners[last];
		entry->nlisteners--;
		return;
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
 * The largest limit with which a channel may be shared.  Needs no lock, and is
 * exact enough to make room by it.
 */
int
pinpoint_channel_map_max_share_limit(void)
{
	return pinpoint_channel_map_is_shared() ?
		(int) pg_atomic_read_u32(&map_control->max_share_limit) : 0;
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
	ChannelKey	key;
	ChannelEntry *entry;
	PinpointListeners listeners;

	if (pg_atomic_read_u32(entry_counter(dboid, hash)) == 0)
		return;

	make_key(&key, dboid, channel);
	entry = dshash_find(channel_map, &key, false);
	if (entry == NULL)
		return;

	describe(entry, &listeners);
	visitor(&listeners, arg);
	dshash_release_lock(channel_map, entry);
}

/*
 * Call visitor for every channel of the server.  The visitor is called with
 * the lock of a partition held, so it must be short, and must not fail.
 */
void
pinpoint_channel_map_visit(PinpointChannelVisitor visitor, void *arg)
{
	dshash_seq_status seq;
	ChannelEntry *entry;

	dshash_seq_init(&seq, channel_map, false);
	while ((entry = dshash_seq_next(&seq)) != NULL)
	{
		PinpointListeners listeners;

		describe(entry, &listeners);
		visitor(entry->key.dboid, entry->key.channel, &listeners, arg);
	}
	dshash_seq_term(&seq);
}

/*
 * What a visitor gets to know of an entry.
 */
static void
describe(ChannelEntry *entry, PinpointListeners *listeners)
{
	listeners->slots = listeners_of(entry);
	listeners->nslots = entry->nlisteners - entry->nsharers;
	listeners->sharers = listeners->slots + listeners->nslots;
	listeners->nsharers = entry->nsharers;
	listeners->share_limit = entry->share_limit;
	listeners->turn = &entry->turn;
	listeners->transactions = &entry->transactions;
}

/*
 * Where the slot numbers of an entry are.
 */
static int *
listeners_of(ChannelEntry *entry)
{
	return entry->length == LISTENERS_INLINE ? entry->few :
		dsa_get_address(map_area, entry->many);
}

/*
 * Move the slot numbers of an entry to a place for so many of them.  When there
 * is no memory the entry stays as it was; flags says if that is an error.
 */
static void
resize_listeners(ChannelEntry *entry, int length, int flags)
{
	int		   *old_place = listeners_of(entry);
	dsa_pointer old_many = entry->many;
	dsa_pointer new_many = InvalidDsaPointer;
	int		   *new_place = entry->few;

	Assert(length >= LISTENERS_INLINE && length >= entry->nlisteners);

	if (length > LISTENERS_INLINE)
	{
		new_many = dsa_allocate_extended(map_area, length * sizeof(int),
										 flags);
		if (!DsaPointerIsValid(new_many))
			return;
		new_place = dsa_get_address(map_area, new_many);
	}
	memcpy(new_place, old_place, entry->nlisteners * sizeof(int));
	entry->many = new_many;
	entry->length = length;
	if (DsaPointerIsValid(old_many))
		dsa_free(map_area, old_many);
}

/*
 * The memory allocator says that it has none left, but not what to do about it.
 */
static void
explain_full(void *arg)
{
	if (geterrcode() == ERRCODE_OUT_OF_MEMORY)
		errhint("The shared memory for channels that sessions listen on is full. Increase \"pinpoint.channel_memory\".");
}
