/*-------------------------------------------------------------------------
 *
 * channel_hash.c
 *		Hash values of channel names.
 *
 * The hash values are stored in batches, and all tables of channels use them.  They
 * depend on a random seed, which is new at each server start.  So a user cannot choose
 * names with equal or similar hash values.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"

#include "base/channel_hash.h"

/* Set by the postmaster, and inherited by all processes. */
static uint64 hash_seed = 0;

/*
 * Choose a new seed.  The postmaster calls this at start and at restart after
 * a crash.
 *
 * Errors: FATAL, if there are no random numbers.
 */
void
pinpoint_channel_hash_init(void)
{
	if (!pg_strong_random(&hash_seed, sizeof(hash_seed)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random numbers")));
}

/*
 * Hash value of a channel name, which is terminated by a zero byte.
 */
uint32
pinpoint_channel_hash(const char *channel)
{
	return (uint32) hash_bytes_extended((const unsigned char *) channel,
										(int) strlen(channel), hash_seed);
}

/*
 * Hash value of a channel in a database.
 *
 * hash: pinpoint_channel_hash() of the channel.
 */
uint32
pinpoint_channel_hash_in_database(Oid dboid, uint32 hash)
{
	return hash_combine(hash, murmurhash32((uint32) dboid));
}
