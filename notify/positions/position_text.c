/*-------------------------------------------------------------------------
 *
 * position_text.c
 *		The text of a position.
 *
 * It has five hexadecimal numbers, with hyphens in between:
 *
 *	system identifier
 *	incarnation		a random number that is chosen when the shared memory is
 *					created
 *	counter			see positions.c
 *	database		its OID
 *	signature		a keyed hash value of counter and database
 *
 * A position is valid only in its database, on the server that returned it,
 * until the shared memory of this server is created again.  Any other text of
 * the same form is the text of a position that is not known here, for which
 * all channels have changed.  So is the form of version 1.0, which had the
 * first three numbers only: clients may have stored such a text before the
 * upgrade.
 *
 * The signature.  A client stores the position of a heartbeat.  Any role can
 * send a notification on the channel of heartbeats through PostgreSQL's own
 * queue, for example with pg_notify() in a CHECK constraint.  If that role
 * could choose the position, it would choose a later one than the server has
 * given, and the client would miss changes.  The key of the hash is random,
 * and is only in shared memory, so no role can compute the signature of
 * another position.
 *
 * Why a notification with a position that this server has really given does no
 * harm.
 *
 *	1. A role can obtain a position Q of this database only if the server has
 *	   given it: with the counter at Q or above.
 *	2. It sends Q through PostgreSQL's own queue, in a transaction F.  F begins
 *	   to send after Q was given.  When F is visible, the place of the database
 *	   is set to the next value of the counter, which is above Q.
 *	3. A client that stores Q, and asks later, is told that all channels of the
 *	   database have changed, because the place of the database is above Q.  So
 *	   it does not matter which notifications it had not received when it
 *	   stored Q.
 *	4. A client receives F only when F is visible.  If it asks between the
 *	   visibility of F and the step that counts F, the answer can omit a
 *	   channel.  F is counted by the next step of its commit, which waits for
 *	   nothing but PinpointOrderLock.  A client receives F after this step,
 *	   unless it reads PostgreSQL's queue in just this moment because of
 *	   another notification.
 *	5. The next true heartbeat replaces Q.  Its position states what this
 *	   session has received, independent of Q.
 *
 * On a standby, no notification arrives through PostgreSQL's own queue.
 *
 * The hash is SipHash-2-4 of the counter and the database, which determine the
 * rest of the text while the key exists.  It was made for this: a code for a
 * short message that nobody can compute without the key, whatever other
 * messages and codes are known.  A role that guesses is right once in 2^64
 * times, and each guess is a statement.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"

#include "base/siphash.h"
#include "positions/position_text.h"

/* The length in version 1.0. */
#define OLD_LENGTH		50

/* Both are constant. */
typedef struct PositionKey
{
	uint64		incarnation;
	uint64		key[2];
} PositionKey;

static PositionKey *position_key = NULL;

static uint64 signature(uint64 counter, Oid dboid);
#ifdef USE_ASSERT_CHECKING
static bool hash_is_right(void);
#endif
static void write_hex(char **cursor, int ndigits, uint64 number);
static bool read_hex(const char **cursor, int ndigits, uint64 *number);

Size
pinpoint_position_text_shmem_size(void)
{
	return MAXALIGN(sizeof(PositionKey));
}

/*
 * Choose incarnation and key.  The postmaster calls this at start and at
 * restart after a crash.
 *
 * Errors: FATAL, if there are no random numbers.
 */
void
pinpoint_position_text_shmem_init(void *memory)
{
	Assert(hash_is_right());

	position_key = memory;
	if (!pg_strong_random(&position_key->incarnation,
						  sizeof(position_key->incarnation)) ||
		!pg_strong_random(position_key->key, sizeof(position_key->key)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
}

/*
 * Write the text of a position of this server.
 *
 * text: an array of PINPOINT_POSITION_LENGTH + 1 bytes.
 */
void
pinpoint_position_text_format(uint64 counter, Oid dboid, char *text)
{
	char	   *cursor = text;

	write_hex(&cursor, 16, GetSystemIdentifier());
	*cursor++ = '-';
	write_hex(&cursor, 16, position_key->incarnation);
	*cursor++ = '-';
	write_hex(&cursor, 16, counter);
	*cursor++ = '-';
	write_hex(&cursor, 8, dboid);
	*cursor++ = '-';
	write_hex(&cursor, 16, signature(counter, dboid));
	*cursor = '\0';
	Assert(cursor - text == PINPOINT_POSITION_LENGTH);
}

/*
 * Parse the text of a position.  Returns false if it is not valid.
 *
 * *counter: set to its counter.  *known: set to true if this server has given
 * it in this database since its shared memory was created, otherwise to false.
 */
bool
pinpoint_position_text_parse(const char *text, uint64 *counter, bool *known)
{
	const char *cursor = text;
	Size		length = strlen(text);
	uint64		system;
	uint64		incarnation;
	uint64		dboid;
	uint64		signed_with;

	*known = false;
	if ((length != PINPOINT_POSITION_LENGTH && length != OLD_LENGTH) ||
		!read_hex(&cursor, 16, &system) || *cursor++ != '-' ||
		!read_hex(&cursor, 16, &incarnation) || *cursor++ != '-' ||
		!read_hex(&cursor, 16, counter))
		return false;
	if (length == OLD_LENGTH)
		return true;
	if (*cursor++ != '-' || !read_hex(&cursor, 8, &dboid) ||
		*cursor++ != '-' || !read_hex(&cursor, 16, &signed_with))
		return false;

	*known = system == GetSystemIdentifier() &&
		incarnation == position_key->incarnation &&
		dboid == MyDatabaseId &&
		signed_with == signature(*counter, MyDatabaseId);
	return true;
}

/*
 * The signature of a position of this server.
 */
static uint64
signature(uint64 counter, Oid dboid)
{
	return pinpoint_siphash(position_key->key, counter, dboid);
}

#ifdef USE_ASSERT_CHECKING

/*
 * The expected code is that of "openssl mac -macopt size:8 SipHash".
 */
static bool
hash_is_right(void)
{
	uint64		key[2] = {UINT64CONST(0x0706050403020100),
	UINT64CONST(0x0f0e0d0c0b0a0908)};

	return pinpoint_siphash(key, UINT64CONST(0x0706050403020100), 0x0b0a0908) ==
		UINT64CONST(0x751e8fbc860ee5fb);
}

#endif

/*
 * Write a hexadecimal number, and move the cursor after it.  Clients may ask
 * for positions very often, and snprintf() costs each of them 1,800
 * instructions more.
 */
static void
write_hex(char **cursor, int ndigits, uint64 number)
{
	for (int i = ndigits - 1; i >= 0; i--)
	{
		(*cursor)[i] = "0123456789abcdef"[number & 0xf];
		number >>= 4;
	}
	*cursor += ndigits;
}

/*
 * Parse a hexadecimal number, and move the cursor after it.  Returns false if
 * it is not valid.
 */
static bool
read_hex(const char **cursor, int ndigits, uint64 *number)
{
	*number = 0;
	for (int i = 0; i < ndigits; i++)
	{
		char		c = *(*cursor)++;

		if (c >= '0' && c <= '9')
			*number = *number * 16 + (c - '0');
		else if (c >= 'a' && c <= 'f')
			*number = *number * 16 + (c - 'a' + 10);
		else
			return false;
	}
	return true;
}
