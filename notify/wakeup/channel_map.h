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
 * A listener on a channel.  The listeners of a channel are sorted by group: those
 * that do not share the channel come first, then the members of each sharing group,
 * in the order in which they began to listen.
 */
typedef struct PinpointListener
{
	uint32		slotno:24;
	uint32		share_limit:8;	/* its pinpoint.share_limit; 0 if it does not
								 * share the channel */
	Oid			group;			/* role of its session; InvalidOid if it does not
								 * share the channel */
	uint32		turn;			/* of the first member of a group: which member is
								 * to get the next notification; written under
								 * PinpointOrderLock and the lock of the entry's
								 * partition */
} PinpointListener;

/* The listeners on a channel. */
typedef struct PinpointListeners
{
	struct ChannelEntry *entry;	/* for pinpoint_listener() */
	int			nslots;			/* those that do not share the channel */
	int			nsharers;		/* those that share it; they follow the others */
	pg_atomic_uint64 *transactions; /* how many were published with the
									 * channel since its entry was made, as
									 * far as it was looked up for that;
									 * written under PinpointOrderLock */
} PinpointListeners;

/* A channel to look up, and its hash value in its database. */
typedef struct PinpointChannelKey
{
	const char *channel;
	uint32		hash;
} PinpointChannelKey;

/* What is done with them. */
typedef void (*PinpointListenersVisitor) (const PinpointListeners *listeners,
										  void *arg);

/* What is done with each channel. */
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
