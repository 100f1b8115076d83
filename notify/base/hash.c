/*-------------------------------------------------------------------------
 *
 * hash.c
 *		Hash values of channel names and payloads.
 *
 * The hash values of channel names are stored in batches, and all tables of
 * channels use them.  Those of payloads are for pinpoint.fold.  All depend on
 * a random seed, which is new at each server start.  So a user cannot choose
 * names or payloads with equal or similar hash values.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"

#include "base/hash.h"

/* Set by the postmaster, and inherited by all processes. */
static uint64 hash_seed = 0;

static uint32 string_hash_with_seed(const char *string);

/*
 * Choose a new seed.  The postmaster calls this at start and at restart after
 * a crash.
 *
 * Errors: FATAL, if there are no random numbers.
 */
void
pinpoint_hash_init(void *memory)
{
	if (!pg_strong_random(&hash_seed, sizeof(hash_seed)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
}

static uint32
string_hash_with_seed(const char *string)
{
	return (uint32) hash_bytes_extended((const unsigned char *) string,
										(int) strlen(string), hash_seed);
}

/*
 * Hash value of a channel name, which is terminated by a zero byte.
 */
uint32
pinpoint_hash_channel(const char *channel)
{
	return string_hash_with_seed(channel);
}

/*
 * Hash value of a payload, which is terminated by a zero byte.
 */
uint32
pinpoint_hash_payload(const char *payload)
{
	return string_hash_with_seed(payload);
}

/*
 * Hash value of a channel in a database.
 *
 * hash: pinpoint_hash_channel() of the channel.
 */
uint32
pinpoint_hash_in_database(Oid dboid, uint32 hash)
{
	return hash_combine(hash, murmurhash32((uint32) dboid));
}
