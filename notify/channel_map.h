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

/* What is done with each listener on a channel; false to stop. */
typedef bool (*PinpointListenerVisitor) (int slotno, void *arg);

/* What is done with each channel. */
typedef void (*PinpointChannelVisitor) (Oid dboid, const char *channel,
										int nlisteners, void *arg);

extern Size pinpoint_channel_map_shmem_size(void);
extern void pinpoint_channel_map_shmem_init(void);
extern void pinpoint_channel_map_attach(void);
extern void pinpoint_channel_map_add(const char *channel, int slotno);
extern void pinpoint_channel_map_remove(const char *channel, int slotno);
extern bool pinpoint_channel_map_lookup(Oid dboid, const char *channel,
										uint32 hash,
										PinpointListenerVisitor visitor,
										void *arg);
extern void pinpoint_channel_map_visit(PinpointChannelVisitor visitor,
									   void *arg);

#endif							/* PINPOINT_CHANNEL_MAP_H */
