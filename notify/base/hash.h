/*-------------------------------------------------------------------------
 *
 * hash.h
 *		Hash values of channel names and payloads.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_HASH_H
#define PINPOINT_HASH_H

extern void pinpoint_hash_init(void *memory);
extern uint32 pinpoint_hash_channel(const char *channel);
extern uint32 pinpoint_hash_in_database(Oid dboid, uint32 hash);
extern uint32 pinpoint_hash_payload(const char *payload);

#endif							/* PINPOINT_HASH_H */
