/*-------------------------------------------------------------------------
 *
 * channel_map.h
 *		The listeners of channels: (database, channel) to session slots.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_CHANNEL_MAP_H
#define PINPOINT_CHANNEL_MAP_H

#include "port/atomics.h"

#include "base/request.h"

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
	uint32		turn;			/* valid for the first member of a group: index
								 * of the next member in turn, modulo the size
								 * of the group; see above */
} PinpointListener;

/* The listeners on a channel, for a visitor. */
typedef struct PinpointListeners
{
	struct ChannelEntry *entry;	/* for pinpoint_listener() */
	int			nslots;			/* number of those that do not share the
								 * channel */
	int			nsharers;		/* number of those that share it; they follow
								 * the others */
	pg_atomic_uint64 *transactions;	/* number of published transactions with
									 * the channel since the entry was made,
									 * without those with more than
									 * PINPOINT_CHANNELS_LOOKED_UP channels;
									 * written under PinpointOrderLock */
} PinpointListeners;

/* A channel to look up, and its hash value with the database. */
typedef struct PinpointChannelKey
{
	const char *channel;
	uint32		hash;
} PinpointChannelKey;

/* Callback of a look-up, for one channel. */
typedef void (*PinpointListenersVisitor) (const PinpointListeners *listeners,
										  void *arg);

/* Callback of pinpoint_channel_map_visit(), for each channel. */
typedef void (*PinpointChannelVisitor) (Oid dboid, const char *channel,
										const PinpointListeners *listeners,
										void *arg);

extern Size pinpoint_channel_map_shmem_size(void);
extern void pinpoint_channel_map_shmem_init(void);
extern bool pinpoint_channel_map_add(const char *channel, uint32 hash,
									 int slotno, Oid roleid, int share_limit);
extern void pinpoint_channel_map_remove(const char *channel, uint32 hash,
										int slotno);
extern bool pinpoint_channel_map_is_shared(void);
extern int	pinpoint_channel_map_max_receivers(void);
extern void pinpoint_channel_map_lookup(Oid dboid, const char *channel,
										uint32 hash,
										PinpointListenersVisitor visitor,
										void *arg);
extern void pinpoint_channel_map_lookup_many(Oid dboid,
											 PinpointNotification *const *channels,
											 uint32 nchannels,
											 PinpointChannelKey *sorted,
											 PinpointListenersVisitor visitor,
											 void *arg);
extern void pinpoint_channel_map_visit(PinpointChannelVisitor visitor,
									   void *arg);
extern PinpointListener *pinpoint_listener(const PinpointListeners *listeners,
										   int place);
extern PinpointListener *pinpoint_sharer(const PinpointListeners *listeners,
										 int place);
extern int	pinpoint_listeners_group_size(const PinpointListeners *listeners,
										  int first);
extern int	pinpoint_listeners_find_group(const PinpointListeners *listeners,
										  Oid group, int *size);
extern int	pinpoint_listeners_max_receivers(const PinpointListeners *listeners);

#endif							/* PINPOINT_CHANNEL_MAP_H */
