/*-------------------------------------------------------------------------
 *
 * channel_map.h
 *		Who listens: (database, channel) to session slots.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_CHANNEL_MAP_H
#define PINPOINT_CHANNEL_MAP_H

#include "port/atomics.h"

/* Who listens on a channel, by slot number. */
typedef struct PinpointListeners
{
	const int  *slots;			/* those who get every notification */
	int			nslots;
	const int  *sharers;		/* those of whom some get it; see sharing.c */
	int			nsharers;
	int			share_limit;	/* how many of them */
	uint32	   *turn;			/* whose turn it is; protected by
								 * PinpointOrderLock */
	pg_atomic_uint64 *transactions; /* how many were published with the
									 * channel since its entry was made, as
									 * far as it was looked up for that;
									 * written under PinpointOrderLock */
} PinpointListeners;

/* What is done with them. */
typedef void (*PinpointListenersVisitor) (const PinpointListeners *listeners,
										  void *arg);

/* What is done with each channel. */
typedef void (*PinpointChannelVisitor) (Oid dboid, const char *channel,
										const PinpointListeners *listeners,
										void *arg);

extern Size pinpoint_channel_map_shmem_size(void);
extern void pinpoint_channel_map_shmem_init(void);
extern uint32 pinpoint_channel_map_hash(Oid dboid, uint32 hash);
extern void pinpoint_channel_map_add(const char *channel, int slotno,
									 int share_limit);
extern void pinpoint_channel_map_remove(const char *channel, int slotno);
extern bool pinpoint_channel_map_is_shared(void);
extern int	pinpoint_channel_map_max_share_limit(void);
extern void pinpoint_channel_map_lookup(Oid dboid, const char *channel,
										uint32 hash,
										PinpointListenersVisitor visitor,
										void *arg);
extern void pinpoint_channel_map_visit(PinpointChannelVisitor visitor,
									   void *arg);

#endif							/* PINPOINT_CHANNEL_MAP_H */
