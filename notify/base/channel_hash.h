/*-------------------------------------------------------------------------
 *
 * channel_hash.h
 *		Hash values of channel names and payloads.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_CHANNEL_HASH_H
#define PINPOINT_CHANNEL_HASH_H

extern void pinpoint_channel_hash_init(void *memory);
extern uint32 pinpoint_channel_hash(const char *channel);
extern uint32 pinpoint_channel_hash_in_database(Oid dboid, uint32 hash);
extern uint32 pinpoint_payload_hash(const char *payload);

#endif							/* PINPOINT_CHANNEL_HASH_H */
