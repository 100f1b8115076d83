/*-------------------------------------------------------------------------
 *
 * channel_entry.h
 *		An entry of the channel map: a channel and its listeners.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_CHANNEL_ENTRY_H
#define PINPOINT_CHANNEL_ENTRY_H

#include "port/atomics.h"

#include "base/locks.h"
#include "wakeup/channel_items.h"

/*
 * A partition of the map has a lock.  The highest bits of a hash value
 * determine its partition.
 */
#define PINPOINT_PARTITION_OF(hash)	((hash) >> (32 - PINPOINT_PARTITIONS_LOG2))

/*
 * A listener on a channel.
 *
 * The listeners of a channel are sorted by group: first those that do not
 * share the channel, then the members of each sharing group, in the order in
 * which they began to listen.
 *
 * Listeners are protected by the lock of their partition.  "turn" is also
 * written with this lock in shared mode, by sessions that hold
 * PinpointOrderLock exclusively.
 */
typedef struct PinpointListener
{
	uint32		slotno:24;
	uint32		share_limit:8;	/* its pinpoint.share_limit when it began to
								 * share the channel; 0 if it does not share
								 * it */
	Oid			group;			/* role of its session; InvalidOid if it does
								 * not share the channel */
	uint32		turn;			/* valid for the first member of a group:
								 * index of the next member in turn, modulo
								 * the size of the group; at most MaxBackends;
								 * see above */
} PinpointListener;

/* Number of listeners that an entry has room for without further items. */
#define LISTENERS_INLINE	2

/*
 * Entry of the map.  It and the items of its tree are protected by the lock of
 * its partition, except that "turn" (see above) and "transactions" are also
 * written with the lock in shared mode, by sessions that hold PinpointOrderLock
 * exclusively.
 *
 * The order of the fields avoids padding, and keeps those together that a
 * look-up reads.
 */
typedef struct ChannelEntry
{
	ItemNumber	next;			/* next entry in the same bucket */
	uint32		hash;			/* pinpoint_hash_in_database() */
	Oid			dboid;
	int			nlisteners;
	int			nsharers;		/* number of those that share the channel */
	uint32		charged:24;		/* slot of the listener to which the entry is
								 * charged */
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

/* The listeners on a channel, for a visitor. */
typedef struct PinpointListeners
{
	ChannelEntry *entry;		/* for pinpoint_channel_entry_listener() */
	int			nslots;			/* number of those that do not share the
								 * channel */
	int			nsharers;		/* number of those that share it; they follow
								 * the others */
	pg_atomic_uint64 *transactions; /* number of published transactions with
									 * the channel since the entry was made,
									 * without those with more than
									 * PINPOINT_CHANNELS_LOOKED_UP channels;
									 * written under PinpointOrderLock */
} PinpointListeners;

/*
 * Counts over all entries.  Changed by sessions that hold the lock of a
 * partition, read without it.
 */
typedef struct PinpointSharingCounts
{
	pg_atomic_uint32 nsharing;	/* number of listeners that share a channel */
	pg_atomic_uint32 max_receivers; /* maximum number of sessions that ever
									 * had to receive a notification on one
									 * shared channel */
} PinpointSharingCounts;

/* Set by the postmaster, and inherited by all processes. */
extern PinpointSharingCounts *PinpointChannelEntryCounts;

extern void pinpoint_channel_entry_init(ChannelEntry *entry, Oid dboid,
										const char *channel, uint32 hash);
extern bool pinpoint_channel_entry_add(ChannelEntry *entry,
									   const PinpointListener *listener,
									   bool may_grow);
extern void pinpoint_channel_entry_remove(ChannelEntry *entry, int slotno);
extern PinpointListener *pinpoint_channel_entry_listener(const PinpointListeners *listeners,
														 int index);
extern PinpointListener *pinpoint_channel_entry_sharer(const PinpointListeners *listeners,
													   int index);
extern int	pinpoint_channel_entry_group_size(const PinpointListeners *listeners,
											  int first);
extern int	pinpoint_channel_entry_find_group(const PinpointListeners *listeners,
											  Oid group, int *size);
extern int	pinpoint_channel_entry_max_receivers(const PinpointListeners *listeners);
#ifdef USE_ASSERT_CHECKING
extern void pinpoint_channel_entry_check(ChannelEntry *entry);
extern uint32 pinpoint_channel_entry_items(const ChannelEntry *entry);
extern void pinpoint_channel_entry_add_charges(ChannelEntry *entry,
											   int64 *charges);
#endif

/*
 * The argument of a visitor for an entry.
 */
static inline void
pinpoint_channel_entry_describe(ChannelEntry *entry,
								PinpointListeners *listeners)
{
	listeners->entry = entry;
	listeners->nslots = entry->nlisteners - entry->nsharers;
	listeners->nsharers = entry->nsharers;
	listeners->transactions = &entry->transactions;
}

#endif							/* PINPOINT_CHANNEL_ENTRY_H */
