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

#include "base/request.h"
#include "wakeup/channel_entry.h"

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
extern void pinpoint_channel_map_shmem_init(void *memory);
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
#ifdef USE_ASSERT_CHECKING
extern void pinpoint_channel_map_check(int partition);
extern void pinpoint_channel_map_check_memory(void);
#endif

#endif							/* PINPOINT_CHANNEL_MAP_H */
