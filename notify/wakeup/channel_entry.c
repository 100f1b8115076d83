/*-------------------------------------------------------------------------
 *
 * channel_entry.c
 *		An entry of the channel map: a channel and its listeners.
 *
 * An entry is an item of channel_items.c, with space for two listeners.
 * Further listeners are in the leaves of a tree of further items, ten in each;
 * a node has 32 children.  So adding a listener takes at most a few items, and
 * removing one takes none.
 *
 * The functions that change an entry are called with the lock of its partition
 * in exclusive mode, the others with the lock in shared mode at least.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/check.h"
#include "base/hash.h"
#include "wakeup/channel_entry.h"

/* Contents of an item of a tree. */
#define LISTENERS_PER_LEAF	10
#define CHILDREN_PER_NODE	32

/*
 * Maximum number of levels of a tree, leaves included: sufficient for 2^24
 * listeners.
 */
#define MAX_DEPTH			6

/*
 * Bytes that are charged to a listener: for its entry if it was the first one
 * on the channel, otherwise for its part of the tree, approximately.
 */
#define ENTRY_CHARGE		PINPOINT_ITEM_SIZE
#define LISTENER_CHARGE		32

StaticAssertDecl(sizeof(ChannelEntry) <= PINPOINT_ITEM_SIZE,
				 "an entry of the channel map fits into an item");
StaticAssertDecl(LISTENERS_PER_LEAF * sizeof(PinpointListener) <=
				 PINPOINT_ITEM_SIZE,
				 "a leaf of listeners fits into an item");
StaticAssertDecl(CHILDREN_PER_NODE * sizeof(ItemNumber) <= PINPOINT_ITEM_SIZE,
				 "a node of a tree of listeners fits into an item");

/* Does this process hold the lock of the partition of an entry? */
#define AssertEntryHeld(entry) \
	AssertHeld(&PinpointChannelMapLocks[PINPOINT_PARTITION_OF((entry)->hash)].lock)
#define AssertEntryHeldExclusive(entry) \
	AssertHeldExclusive(&PinpointChannelMapLocks[PINPOINT_PARTITION_OF((entry)->hash)].lock)

PinpointSharingCounts *PinpointChannelEntryCounts = NULL;

static void raise_max_receivers(uint32 receivers);
static uint32 listeners_below(int depth);
static PinpointListener *leaf(ItemNumber number);
static ItemNumber *node(ItemNumber number);
static PinpointListener *listener_at(ChannelEntry *entry, uint32 index);
static bool make_room(ChannelEntry *entry);
static void shrink(ChannelEntry *entry);
static int	end_of_group(const PinpointListeners *listeners, Oid group);
#ifdef USE_ASSERT_CHECKING
static void check_listener(ChannelEntry *entry, int index);
#endif

/*
 * Initialize an entry, without listeners.  The caller holds the lock of the
 * partition exclusively.
 *
 * hash: pinpoint_hash_in_database() of the channel.
 */
void
pinpoint_channel_entry_init(ChannelEntry *entry, Oid dboid,
							const char *channel, uint32 hash)
{
	entry->next = 0;
	entry->hash = hash;
	AssertEntryHeldExclusive(entry);
	Assert(strlen(channel) > 0 && strlen(channel) < NAMEDATALEN);

	entry->dboid = dboid;
	strlcpy(entry->channel, channel, NAMEDATALEN);
	entry->nlisteners = 0;
	entry->nsharers = 0;
	entry->depth = 0;
	pg_atomic_init_u64(&entry->transactions, 0);
}

/*
 * Add a listener to an entry.  Returns false if it does not fit.  The first
 * LISTENERS_INLINE listeners always fit.
 *
 * may_grow: may the entry use more memory?
 *
 * The caller holds the lock of the partition exclusively.
 */
bool
pinpoint_channel_entry_add(ChannelEntry *entry,
						   const PinpointListener *listener, bool may_grow)
{
	PinpointListeners listeners;
	int			index;

	AssertEntryHeldExclusive(entry);
	Assert((listener->share_limit > 0) == OidIsValid(listener->group));

	if (entry->nlisteners >= LISTENERS_INLINE && !may_grow)
		return false;
	if (!make_room(entry))
		return false;

	/* It becomes the last one of its group. */
	pinpoint_channel_entry_describe(entry, &listeners);
	index = OidIsValid(listener->group) ?
		listeners.nslots + end_of_group(&listeners, listener->group) :
		listeners.nslots;
	for (int i = entry->nlisteners; i > index; i--)
		*listener_at(entry, i) = *listener_at(entry, i - 1);
	*listener_at(entry, index) = *listener;

	if (entry->nlisteners == 0)
		entry->charged = listener->slotno;
	pinpoint_channel_items_charge(listener->slotno,
								  entry->nlisteners == 0 ?
								  ENTRY_CHARGE : LISTENER_CHARGE);
	entry->nlisteners++;

	if (listener->share_limit > 0)
	{
		entry->nsharers++;
		pg_atomic_fetch_add_u32(&PinpointChannelEntryCounts->nsharing, 1);
		pinpoint_channel_entry_describe(entry, &listeners);
		raise_max_receivers(pinpoint_channel_entry_max_receivers(&listeners));
	}
#ifdef USE_ASSERT_CHECKING
	pinpoint_channel_entry_check(entry);
#endif
	return true;
}

/*
 * Set max_receivers to a value, unless it is higher.  Other sessions may do
 * this concurrently, for entries of other partitions.
 */
static void
raise_max_receivers(uint32 receivers)
{
	pg_atomic_uint32 *current = &PinpointChannelEntryCounts->max_receivers;
	uint32		max = pg_atomic_read_u32(current);

	while (max < receivers &&
		   !pg_atomic_compare_exchange_u32(current, &max, receivers))
	{
	}
}

/*
 * Remove a slot from the listeners of an entry, if it is one of them.  The
 * caller holds the lock of the partition exclusively, and removes the entry if
 * no listener is left.
 */
void
pinpoint_channel_entry_remove(ChannelEntry *entry, int slotno)
{
	int			index = 0;
	PinpointListener removed;

	AssertEntryHeldExclusive(entry);
	Assert(entry->nlisteners > 0);

	while (index < entry->nlisteners &&
		   listener_at(entry, index)->slotno != slotno)
		index++;
	if (index == entry->nlisteners)
		return;

	removed = *listener_at(entry, index);
	if (removed.share_limit > 0)
	{
		entry->nsharers--;
		Assert(pg_atomic_read_u32(&PinpointChannelEntryCounts->nsharing) > 0);
		pg_atomic_fetch_sub_u32(&PinpointChannelEntryCounts->nsharing, 1);
	}

	/* The next member can become the first one, which needs the turn. */
	if (index + 1 < entry->nlisteners &&
		listener_at(entry, index + 1)->group == removed.group)
		listener_at(entry, index + 1)->turn = removed.turn;
	for (int i = index; i + 1 < entry->nlisteners; i++)
		*listener_at(entry, i) = *listener_at(entry, i + 1);
	entry->nlisteners--;
	shrink(entry);

	if (entry->charged != slotno)
		pinpoint_channel_items_charge(slotno, -LISTENER_CHARGE);
	else
	{
		pinpoint_channel_items_charge(slotno, -ENTRY_CHARGE);
		if (entry->nlisteners > 0)
		{
			entry->charged = listener_at(entry, 0)->slotno;
			pinpoint_channel_items_charge(entry->charged,
										  ENTRY_CHARGE - LISTENER_CHARGE);
		}
	}
#ifdef USE_ASSERT_CHECKING
	if (entry->nlisteners > 0)
		pinpoint_channel_entry_check(entry);
#endif
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
 * The contents of an item of a tree: a leaf, or a node above the leaves.
 */
static PinpointListener *
leaf(ItemNumber number)
{
	return pinpoint_channel_item(number);
}

static ItemNumber *
node(ItemNumber number)
{
	return pinpoint_channel_item(number);
}

/*
 * The listener at an index, counted from 0.  The items for it exist.
 */
static PinpointListener *
listener_at(ChannelEntry *entry, uint32 index)
{
	ItemNumber	number;

	AssertEntryHeld(entry);
	Assert(index < listeners_below(entry->depth));

	if (entry->depth == 0)
		return &entry->few[index];

	number = entry->root;
	for (int depth = entry->depth; depth > 1; depth--)
	{
		uint32		below = listeners_below(depth - 1);

		number = node(number)[index / below];
		index %= below;
	}
	return &leaf(number)[index];
}

/*
 * Make room for one more listener: take the items that it needs.  Returns
 * false, and changes nothing, if there are not enough.
 */
static bool
make_room(ChannelEntry *entry)
{
	uint32		index = entry->nlisteners;	/* of the new listener */
	bool		grows = index == listeners_below(entry->depth);
	int			depth = entry->depth + (grows ? 1 : 0);
	int			nnew = 0;
	int			nused = 0;
	ItemNumber	new_items[MAX_DEPTH + 1];
	ItemNumber *link;

	Assert(depth <= MAX_DEPTH);

	/* A leaf or node is missing if this is its first listener. */
	for (int level = 1; level <= depth; level++)
	{
		if (index % listeners_below(level) == 0)
			nnew++;
	}
	if (grows)
		nnew++;					/* the new root */
	if (nnew > 0 && !pinpoint_channel_items_take(nnew, new_items))
		return false;

	if (grows && entry->depth == 0)
	{
		ItemNumber	root = new_items[nused++];

		memcpy(leaf(root), entry->few, sizeof(entry->few));
		entry->root = root;
	}
	else if (grows)
	{
		ItemNumber	root = new_items[nused++];

		node(root)[0] = entry->root;
		entry->root = root;
	}
	entry->depth = depth;

	link = &entry->root;
	for (int level = depth; level > 0; level--)
	{
		if (index % listeners_below(level) == 0)
			*link = new_items[nused++];
		if (level > 1)
			link = &node(*link)[index % listeners_below(level) /
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
	uint32		index = entry->nlisteners;	/* of the removed listener */
	ItemNumber	number = entry->root;

	if (entry->depth == 0)
		return;

	for (int level = entry->depth; level > 0; level--)
	{
		ItemNumber	child = 0;

		if (level > 1)
			child = node(number)[index % listeners_below(level) /
								 listeners_below(level - 1)];
		if (index % listeners_below(level) == 0)
			pinpoint_channel_items_free(number);
		number = child;
	}

	/* The other listeners fit into a tree with one level less. */
	if (index == listeners_below(entry->depth - 1))
	{
		ItemNumber	root = entry->root;

		if (entry->depth == 1)
			memcpy(entry->few, leaf(root), sizeof(entry->few));
		else
			entry->root = node(root)[0];
		pinpoint_channel_items_free(root);
		entry->depth--;
	}
}

/*
 * A listener on a channel, by its index among all listeners or among those
 * that share the channel.  The latter follow the nslots others.
 */
PinpointListener *
pinpoint_channel_entry_listener(const PinpointListeners *listeners, int index)
{
	Assert(index >= 0 && index < listeners->nslots + listeners->nsharers);
	return listener_at(listeners->entry, index);
}

PinpointListener *
pinpoint_channel_entry_sharer(const PinpointListeners *listeners, int index)
{
	Assert(index >= 0 && index < listeners->nsharers);
	return listener_at(listeners->entry, listeners->nslots + index);
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

		if (pinpoint_channel_entry_sharer(listeners, middle)->group <= group)
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
pinpoint_channel_entry_group_size(const PinpointListeners *listeners, int first)
{
	Oid			group = pinpoint_channel_entry_sharer(listeners, first)->group;
	int			size = end_of_group(listeners, group) - first;

	Assert(size > 0);
	return size;
}

/*
 * Index of the first member of a group among the sharing listeners.  *size:
 * set to the number of its members, which can be 0.
 */
int
pinpoint_channel_entry_find_group(const PinpointListeners *listeners, Oid group,
								  int *size)
{
	int			first;

	AssertEntryHeld(listeners->entry);
	Assert(OidIsValid(group));

	first = end_of_group(listeners, group - 1);
	*size = end_of_group(listeners, group) - first;
	return first;
}

/*
 * Maximum number of the sharing listeners that receive a notification: the sum
 * over all groups of the share_limit of the newest member.
 */
int
pinpoint_channel_entry_max_receivers(const PinpointListeners *listeners)
{
	int			receivers = 0;
	int			size;

	AssertEntryHeld(listeners->entry);
	for (int first = 0; first < listeners->nsharers; first += size)
	{
		size = pinpoint_channel_entry_group_size(listeners, first);
		receivers += pinpoint_channel_entry_sharer(listeners, first + size -
												   1)->share_limit;
	}
	return receivers;
}

#ifdef USE_ASSERT_CHECKING
/* In entries with more listeners, no slot is searched for a second time. */
#define MAX_COMPARED	32

/*
 * Check an entry, which has a listener.
 */
void
pinpoint_channel_entry_check(ChannelEntry *entry)
{
	bool		charged = false;

	AssertEntryHeld(entry);
	Assert(OidIsValid(entry->dboid));
	Assert(entry->channel[0] != '\0' &&
		   memchr(entry->channel, '\0', NAMEDATALEN) != NULL);
	Assert(entry->hash ==
		   pinpoint_hash_in_database(entry->dboid,
									 pinpoint_hash_channel(entry->channel)));
	Assert(entry->nlisteners > 0 && entry->nsharers >= 0 &&
		   entry->nsharers <= entry->nlisteners);

	/* The tree has as many levels as the listeners need, and no more. */
	Assert((uint32) entry->nlisteners <= listeners_below(entry->depth));
	Assert(entry->depth == 0 ||
		   (uint32) entry->nlisteners > listeners_below(entry->depth - 1));

	for (int i = 0; i < entry->nlisteners; i++)
	{
		check_listener(entry, i);
		charged = charged || listener_at(entry, i)->slotno == entry->charged;
	}
	Assert(charged);
}

static void
check_listener(ChannelEntry *entry, int index)
{
	PinpointListener *listener = listener_at(entry, index);
	int			nslots = entry->nlisteners - entry->nsharers;

	Assert((int) listener->slotno < MaxBackends);
	Assert(listener->turn <= (uint32) MaxBackends);
	Assert(OidIsValid(listener->group) == (index >= nslots));
	Assert((listener->share_limit > 0) == (index >= nslots));
	Assert(index == 0 ||
		   listener->group >= listener_at(entry, index - 1)->group);
	for (int i = 0; i < index && index < MAX_COMPARED; i++)
		Assert(listener_at(entry, i)->slotno != listener->slotno);
}

/*
 * The number of items of an entry and its tree.
 */
uint32
pinpoint_channel_entry_items(const ChannelEntry *entry)
{
	uint32		n = 1;

	for (int level = 1; level <= entry->depth; level++)
	{
		uint32		below = listeners_below(level);

		n += (entry->nlisteners + below - 1) / below;
	}
	return n;
}

/*
 * Add to charges[], by slot, what the listeners of an entry are charged for it.
 */
void
pinpoint_channel_entry_add_charges(ChannelEntry *entry, int64 *charges)
{
	for (int i = 0; i < entry->nlisteners; i++)
	{
		uint32		slotno = listener_at(entry, i)->slotno;

		charges[slotno] += slotno == entry->charged ?
			ENTRY_CHARGE : LISTENER_CHARGE;
	}
}
#endif
