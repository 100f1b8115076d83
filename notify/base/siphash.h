/*-------------------------------------------------------------------------
 *
 * siphash.h
 *		SipHash-2-4 of one 64-bit and one 32-bit number, with a key of 128
 *		bits.
 *
 * The result is a message authentication code: without the key, nobody can
 * compute it for other numbers.  It allocates nothing and cannot fail.
 *
 * The rule is in "SipHash: a fast short-input PRF" by Aumasson and Bernstein.
 * The input here has always 12 bytes: both numbers, the lowest byte first.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_BASE_SIPHASH_H
#define PINPOINT_BASE_SIPHASH_H

/* The number of bytes of the input, in the highest byte of the last block. */
#define PINPOINT_SIPHASH_LENGTH		(UINT64CONST(12) << 56)

static inline uint64
pinpoint_siphash_rotate(uint64 word, int nbits)
{
	return word << nbits | word >> (64 - nbits);
}

static inline void
pinpoint_siphash_rounds(uint64 *v, int nrounds)
{
	for (int i = 0; i < nrounds; i++)
	{
		v[0] += v[1];
		v[2] += v[3];
		v[1] = pinpoint_siphash_rotate(v[1], 13) ^ v[0];
		v[3] = pinpoint_siphash_rotate(v[3], 16) ^ v[2];
		v[0] = pinpoint_siphash_rotate(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = pinpoint_siphash_rotate(v[1], 17) ^ v[2];
		v[3] = pinpoint_siphash_rotate(v[3], 21) ^ v[0];
		v[2] = pinpoint_siphash_rotate(v[2], 32);
	}
}

/*
 * Returns the code of "first" and "second".
 *
 * key: random numbers that only the server knows.
 */
static inline uint64
pinpoint_siphash(const uint64 key[2], uint64 first, uint32 second)
{
	uint64		blocks[2] = {first, second | PINPOINT_SIPHASH_LENGTH};
	uint64		v[4] = {
		key[0] ^ UINT64CONST(0x736f6d6570736575),
		key[1] ^ UINT64CONST(0x646f72616e646f6d),
		key[0] ^ UINT64CONST(0x6c7967656e657261),
		key[1] ^ UINT64CONST(0x7465646279746573)
	};

	for (int i = 0; i < 2; i++)
	{
		v[3] ^= blocks[i];
		pinpoint_siphash_rounds(v, 2);
		v[0] ^= blocks[i];
	}
	v[2] ^= 0xff;
	pinpoint_siphash_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif							/* PINPOINT_BASE_SIPHASH_H */
