/*-------------------------------------------------------------------------
 *
 * channel_map.c
 *		Who listens: (database, channel) to session slots.
 *
 * There are two tables.
 *
 * The shared map is a dshash table in a DSA area created in place, so that it
 * starts in main shared memory and grows beyond it when it must.  An entry
 * holds an array of slot numbers.  Only the owner of a slot adds or removes
 * its number.  The sender of a notification reads the map once, at
 * publication, to learn whom to wake.
 *
 * The local table holds the channels of this session.  It is the filter on
 * delivery, and the list of what to take out of the shared map when the
 * session ends, so that no one ever scans the map.
 *
 * In front of the shared map is an array that counts its entries by hash, so
 * that a sender does not look for channels that nobody listens on.
 *
 * LISTEN in three steps:
 *
 *	prepare		before commit, may fail: enter all new channels into both
 *				tables.  From here on publications find this session, and may
 *				wake it in vain.
 *	commit		after commit, allocates nothing: the new channels become valid
 *				for batches published from now on, which is exactly what a
 *				client that looks at the database after its LISTEN has not
 *				seen.  UNLISTENed channels leave both tables.
 *	abort		take back what prepare did.
 *
 * Taking an entry out of the shared map can, in theory, fail, since it may
 * have to map a segment of dynamic shared memory.  After commit that must not
 * be an error: the channel is then remembered as "mapped, but not listening",
 * costs a vain wakeup at worst, and goes when the session ends.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "lib/dshash.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/dsa.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "compat.h"
#include "pinpoint.h"

/*
 * Main shared memory given to the map.  A few thousand channels fit; beyond
 * that DSA adds segments of dynamic shared memory.
 */
#define CHANNEL_MAP_INITIAL_SIZE	(512 * 1024)

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
 * Entry of the shared map.  Protected by the lock of its partition; so is the
 * array of slot numbers that it may point to.  The numbers are in no order.
 */
typedef struct ChannelEntry
{
	ChannelKey	key;			/* must be first */
	int			nlisteners;
	int			length;			/* elements that fit where they are now */
	int			few[LISTENERS_INLINE];	/* while length is LISTENERS_INLINE */
	dsa_pointer many;			/* array of int, when length is more */
} ChannelEntry;

/* Counters of entries; a power of two. */
#define FILTER_SIZE		16384

/*
 * handle: where the map is; set up by the postmaster, constant afterwards.
 *
 * nentries: how many entries there are with a hash value of this remainder.
 * Changed under the lock of the entry's partition, read without.  A sender that
 * must find a listener sees its entry counted: the listener has had
 * PinpointOrderLock in the commit of its LISTEN, after it made the entry, and the
 * sender has got it since then.
 */
typedef struct ChannelMapControl
{
	dshash_table_handle handle;
	pg_atomic_uint32 nentries[FILTER_SIZE];
} ChannelMapControl;

/* Entry of the local table. */
typedef struct LocalChannel
{
	char		channel[NAMEDATALEN];	/* hash key, must be first */
	bool		listening;		/* as of the last commit */
	bool		wanted;			/* as the current transaction will have it;
								 * the same as listening between two */
	bool		mapped;			/* in the shared map */
	uint64		since;			/* deliver batches with a higher sequence */
} LocalChannel;

static ChannelMapControl *control = NULL;
static void *area_place = NULL;
static dsa_area *area = NULL;
static dshash_table *channel_map = NULL;

static HTAB *local_channels = NULL;
static uint32 nlistening = 0;	/* local channels with listening set */
static bool prepared = false;	/* between prepare and commit or abort */

static uint32 combined_hash(Oid dboid, uint32 hash);
static pg_atomic_uint32 *entry_counter(Oid dboid, uint32 hash);
static uint32 key_hash(const void *key, size_t size, void *arg);
static int	key_compare(const void *a, const void *b, size_t size, void *arg);
static void make_key(ChannelKey *key, Oid dboid, const char *channel);
static int *listeners_of(ChannelEntry *entry);
static void resize_listeners(ChannelEntry *entry, int length);
static void add_to_map(LocalChannel *local);
static void remove_from_map(void *arg);
static void remove_all_from_map(void *arg);
static void forget_channel(LocalChannel *local);
static void reset_wanted(LocalChannel *local);

static dshash_parameters map_parameters = {
	.key_size = sizeof(ChannelKey),
	.entry_size = sizeof(ChannelEntry),
	.compare_function = key_compare,
	.hash_function = key_hash,
#if PG_VERSION_NUM >= 170000
	.copy_function = dshash_memcpy,
#endif
};

/*
 * Hash of a key, from pinpoint_channel_hash() of its channel.
 */
static uint32
combined_hash(Oid dboid, uint32 hash)
{
	return hash_combine(hash, murmurhash32((uint32) dboid));
}

/*
 * The counter of entries like that of a channel.  hash: pinpoint_channel_hash().
 */
static pg_atomic_uint32 *
entry_counter(Oid dboid, uint32 hash)
{
	return &control->nentries[combined_hash(dboid, hash) % FILTER_SIZE];
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

/*
 * Hash of a channel name, as stored in batches and used by the local table.
 */
uint32
pinpoint_channel_hash(const char *channel)
{
	return string_hash(channel, NAMEDATALEN);
}

Size
pinpoint_channel_map_shmem_size(void)
{
	return add_size(MAXALIGN(sizeof(ChannelMapControl)),
					CHANNEL_MAP_INITIAL_SIZE);
}

/*
 * Find the shared structures; when they are new (postmaster start, or restart
 * after a crash), create the map in them.
 */
void
pinpoint_channel_map_shmem_init(void)
{
	bool		found;

	control = ShmemInitStruct("pg_pinpoint channel map",
							  pinpoint_channel_map_shmem_size(), &found);
	area_place = (char *) control + MAXALIGN(sizeof(ChannelMapControl));
	map_parameters.tranche_id =
		GetNamedLWLockTranche("PinpointChannelMap")->lock.tranche;

	if (!found)
	{
		dsa_area   *new_area;
		dshash_table *new_map;

		new_area = dsa_create_in_place(area_place, CHANNEL_MAP_INITIAL_SIZE,
									   map_parameters.tranche_id, NULL);
		dsa_pin(new_area);

		/*
		 * The postmaster must not be left with segments of its own, so what
		 * is allocated here has to fit into the place given.
		 */
		dsa_set_size_limit(new_area, CHANNEL_MAP_INITIAL_SIZE);
		new_map = dshash_create(new_area, &map_parameters, NULL);
		dsa_set_size_limit(new_area, (size_t) -1);

		control->handle = dshash_get_hash_table_handle(new_map);
		for (int i = 0; i < FILTER_SIZE; i++)
			pg_atomic_init_u32(&control->nentries[i], 0);

		dshash_detach(new_map);
		dsa_detach(new_area);
	}
}

/*
 * Make the shared map accessible to this process.  May fail, so it has to be
 * called before the commit of a transaction that listens or notifies.
 */
void
pinpoint_channel_map_attach(void)
{
	MemoryContext oldcontext;

	if (channel_map != NULL)
		return;

	oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	if (area == NULL)
	{
		area = dsa_attach_in_place(area_place, NULL);
		dsa_pin_mapping(area);
		on_shmem_exit(dsa_on_shmem_exit_release_in_place,
					  PointerGetDatum(area_place));
	}
	channel_map = dshash_attach(area, &map_parameters, control->handle, NULL);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Before commit: enter the channels that the actions add.
 *
 * Errors: out of memory, locally or in shared memory.  The transaction then
 * aborts and pinpoint_channel_map_abort() cleans up.
 */
void
pinpoint_channel_map_prepare(List *actions)
{
	ListCell   *lc;

	if (local_channels == NULL)
	{
		HASHCTL		ctl;

		ctl.keysize = NAMEDATALEN;
		ctl.entrysize = sizeof(LocalChannel);
		ctl.hcxt = TopMemoryContext;
		local_channels = hash_create("pg_pinpoint local channels", 16, &ctl,
									 HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	}

	pinpoint_channel_map_attach();
	prepared = true;

	/* First the net effect, ... */
	foreach(lc, actions)
	{
		PinpointAction *action = lfirst(lc);
		LocalChannel *local;
		HASH_SEQ_STATUS seq;
		bool		found;

		switch (action->kind)
		{
			case PINPOINT_LISTEN:
				local = hash_search(local_channels, action->channel,
									HASH_ENTER, &found);
				if (!found)
				{
					local->listening = false;
					local->mapped = false;
				}
				local->wanted = true;
				break;
			case PINPOINT_UNLISTEN:
				local = hash_search(local_channels, action->channel,
									HASH_FIND, NULL);
				if (local != NULL)
					local->wanted = false;
				break;
			case PINPOINT_UNLISTEN_ALL:
				hash_seq_init(&seq, local_channels);
				while ((local = hash_seq_search(&seq)) != NULL)
					local->wanted = false;
				break;
		}
	}

	/* ... then the map, so that LISTEN and UNLISTEN of one channel is free */
	foreach(lc, actions)
	{
		PinpointAction *action = lfirst(lc);
		LocalChannel *local;

		if (action->kind != PINPOINT_LISTEN)
			continue;
		local = hash_search(local_channels, action->channel, HASH_FIND, NULL);
		if (local->wanted && !local->listening)
		{
			pinpoint_wakeup_register();
			if (!local->mapped)
				add_to_map(local);
		}
	}
}

/*
 * After commit: carry out the actions.  Does not fail and allocates nothing.
 */
void
pinpoint_channel_map_commit(List *actions)
{
	uint64		now = pinpoint_message_log_sequence();
	ListCell   *lc;

	foreach(lc, actions)
	{
		PinpointAction *action = lfirst(lc);
		LocalChannel *local;
		HASH_SEQ_STATUS seq;

		switch (action->kind)
		{
			case PINPOINT_LISTEN:
			case PINPOINT_UNLISTEN:
				local = hash_search(local_channels, action->channel,
									HASH_FIND, NULL);
				if (local == NULL)
					break;
				if (!local->wanted)
					forget_channel(local);
				else if (!local->listening)
				{
					local->listening = true;
					local->since = now;
					nlistening++;
				}
				break;
			case PINPOINT_UNLISTEN_ALL:
				hash_seq_init(&seq, local_channels);
				while ((local = hash_seq_search(&seq)) != NULL)
				{
					if (!local->wanted)
						forget_channel(local);
				}
				break;
		}
	}

	prepared = false;
	if (nlistening == 0)
		pinpoint_wakeup_unregister();
	else
		pinpoint_wakeup_set_channels(nlistening);
}

/*
 * Abort: take back what was prepared, if anything was.  Does not fail.
 */
void
pinpoint_channel_map_abort(List *actions)
{
	ListCell   *lc;

	if (!prepared)
		return;

	foreach(lc, actions)
	{
		PinpointAction *action = lfirst(lc);
		LocalChannel *local;
		HASH_SEQ_STATUS seq;

		if (action->kind == PINPOINT_UNLISTEN_ALL)
		{
			hash_seq_init(&seq, local_channels);
			while ((local = hash_seq_search(&seq)) != NULL)
				reset_wanted(local);
		}
		else
		{
			local = hash_search(local_channels, action->channel,
								HASH_FIND, NULL);
			if (local != NULL)
				reset_wanted(local);
		}
	}

	prepared = false;
	if (nlistening == 0)
		pinpoint_wakeup_unregister();
}

/*
 * The session ends: leave all channels.  Its slot has been given up before, so
 * whatever cannot be removed wakes nobody.
 */
void
pinpoint_channel_map_at_exit(void)
{
	if (local_channels != NULL)
		pinpoint_guard(remove_all_from_map, NULL,
					   "some channels of this session stay in the channel map");
}

/*
 * Has this session ever prepared a LISTEN?  (If not, it cannot have anything
 * to UNLISTEN.)
 */
bool
pinpoint_channel_map_used(void)
{
	return local_channels != NULL;
}

/*
 * Whom to wake: add the listeners on a channel to slots[].
 *
 * mark: number of the publication, so that each slot is found once however
 * many channels of the batch it listens on.  nslots: elements of slots[] in
 * use; there is room for all.  Returns the new number.
 *
 * The caller holds PinpointOrderLock.  May fail where a segment of dynamic
 * shared memory cannot be mapped, so it has to be called through
 * pinpoint_guard().
 */
int
pinpoint_channel_map_lookup(Oid dboid, const char *channel, uint32 hash,
							uint64 mark, int *slots, int nslots)
{
	ChannelKey	key;
	ChannelEntry *entry;
	int		   *listeners;

	if (pg_atomic_read_u32(entry_counter(dboid, hash)) == 0)
		return nslots;

	make_key(&key, dboid, channel);
	entry = dshash_find(channel_map, &key, false);
	if (entry == NULL)
		return nslots;

	listeners = listeners_of(entry);
	for (int i = 0; i < entry->nlisteners; i++)
	{
		if (pinpoint_wakeup_mark(listeners[i], dboid, mark))
			slots[nslots++] = listeners[i];
	}
	dshash_release_lock(channel_map, entry);

	return nslots;
}

/*
 * Is a notification on this channel, published under this number, for this
 * session?  hash: pinpoint_channel_hash() of the channel.
 */
bool
pinpoint_is_listening(const char *channel, uint32 hash, uint64 sequence)
{
	LocalChannel *local;

	if (local_channels == NULL)
		return false;

	local = hash_search_with_hash_value(local_channels, channel, hash,
										HASH_FIND, NULL);
	return local != NULL && local->listening && sequence > local->since;
}

/*
 * Call visitor for every channel of the server.  The visitor is called with
 * the lock of a partition held, so it must be short.
 */
void
pinpoint_channel_map_visit(PinpointChannelVisitor visitor, void *arg)
{
	dshash_seq_status seq;
	ChannelEntry *entry;

	pinpoint_channel_map_attach();

	dshash_seq_init(&seq, channel_map, false);
	while ((entry = dshash_seq_next(&seq)) != NULL)
		visitor(entry->key.dboid, entry->key.channel, entry->nlisteners, arg);
	dshash_seq_term(&seq);
}

/*
 * Where the slot numbers of an entry are.
 */
static int *
listeners_of(ChannelEntry *entry)
{
	return entry->length == LISTENERS_INLINE ? entry->few :
		dsa_get_address(area, entry->many);
}

/*
 * Move the slot numbers of an entry to a place for so many of them.  When this
 * fails the entry is as it was.
 */
static void
resize_listeners(ChannelEntry *entry, int length)
{
	int		   *old_place = listeners_of(entry);
	dsa_pointer old_many = entry->many;
	dsa_pointer new_many = InvalidDsaPointer;
	int		   *new_place = entry->few;

	Assert(length >= LISTENERS_INLINE && length >= entry->nlisteners);

	if (length > LISTENERS_INLINE)
	{
		new_many = dsa_allocate(area, length * sizeof(int));
		new_place = dsa_get_address(area, new_many);
	}
	memcpy(new_place, old_place, entry->nlisteners * sizeof(int));
	entry->many = new_many;
	entry->length = length;
	if (DsaPointerIsValid(old_many))
		dsa_free(area, old_many);
}

/*
 * Add this session to the listeners on a channel.
 *
 * The array grows by doubling, and shrinks here as well when it has become far
 * too large: removal comes after commit, where nothing may be allocated.
 */
static void
add_to_map(LocalChannel *local)
{
	ChannelKey	key;
	ChannelEntry *entry;
	bool		found;

	make_key(&key, MyDatabaseId, local->channel);
	entry = dshash_find_or_insert(channel_map, &key, &found);
	if (!found)
	{
		entry->nlisteners = 0;
		entry->length = LISTENERS_INLINE;
		entry->many = InvalidDsaPointer;
		pg_atomic_fetch_add_u32(entry_counter(MyDatabaseId,
											  pinpoint_channel_hash(local->channel)),
								1);
	}

	if (entry->nlisteners == entry->length)
		resize_listeners(entry, 2 * entry->length);
	else if (entry->length > LISTENERS_INLINE &&
			 entry->nlisteners < entry->length / 4)
		resize_listeners(entry, entry->length / 2);

	listeners_of(entry)[entry->nlisteners++] = PINPOINT_MY_SLOT_NUMBER;
	local->mapped = true;
	dshash_release_lock(channel_map, entry);
}

/*
 * Remove this session from the listeners on a channel (a LocalChannel), and
 * the entry with its last listener.
 */
static void
remove_from_map(void *arg)
{
	LocalChannel *local = arg;
	ChannelKey	key;
	ChannelEntry *entry;
	int		   *listeners;

	make_key(&key, MyDatabaseId, local->channel);
	entry = dshash_find(channel_map, &key, true);
	if (entry != NULL)
	{
		listeners = listeners_of(entry);
		for (int i = 0; i < entry->nlisteners; i++)
		{
			if (listeners[i] == PINPOINT_MY_SLOT_NUMBER)
			{
				listeners[i] = listeners[--entry->nlisteners];
				break;
			}
		}

		/* What comes now is cleaning up, and may fail. */
		local->mapped = false;
		if (entry->nlisteners == 0)
		{
			dsa_pointer many = entry->many;

			entry->many = InvalidDsaPointer;
			entry->length = LISTENERS_INLINE;
			if (DsaPointerIsValid(many))
				dsa_free(area, many);
			dshash_delete_entry(channel_map, entry);
			pg_atomic_fetch_sub_u32(entry_counter(MyDatabaseId,
												  pinpoint_channel_hash(local->channel)),
									1);
		}
		else
			dshash_release_lock(channel_map, entry);
	}
	local->mapped = false;
}

static void
remove_all_from_map(void *arg)
{
	HASH_SEQ_STATUS seq;
	LocalChannel *local;

	hash_seq_init(&seq, local_channels);
	while ((local = hash_seq_search(&seq)) != NULL)
	{
		if (local->mapped)
			remove_from_map(local);
	}
}

/*
 * Stop listening on a channel, in both tables.  Called after commit or abort.
 */
static void
forget_channel(LocalChannel *local)
{
	if (local->listening)
	{
		local->listening = false;
		nlistening--;
	}
	if (!local->mapped ||
		pinpoint_guard(remove_from_map, local,
					   "this session may be woken in vain until it ends"))
		(void) hash_search(local_channels, local->channel, HASH_REMOVE, NULL);
}

static void
reset_wanted(LocalChannel *local)
{
	local->wanted = local->listening;
	if (!local->listening)
		forget_channel(local);
}
