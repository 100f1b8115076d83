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
} PinpointListeners;

/* What is done with them. */
typedef void (*PinpointListenersVisitor) (const PinpointListeners *listeners,
										  void *arg);

/*
 * What is done with each channel.  Its nlisteners slots are first those that do not
 * share it, and then the nsharers that do.
 */
typedef void (*PinpointChannelVisitor) (Oid dboid, const char *channel,
										const int *slots, int nlisteners,
										int nsharers, void *arg);

extern Size pinpoint_channel_map_shmem_size(void);
extern void pinpoint_channel_map_shmem_init(void);
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
