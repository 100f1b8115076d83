/*-------------------------------------------------------------------------
 *
 * positions.c
 *		Positions: which channels were notified since a moment.
 *
 * A client that holds a position can ask later which of its channels were notified
 * since.  It needs no connection in between, and the server keeps nothing for it.
 *
 * Shared memory has a counter, and an array of places.  A channel of a database has
 * the place that the hash of both says.  Each transaction that notifies is counted
 * once, under PinpointOrderLock, when it is visible to all new snapshots: the
 * places of its channels are set to the next value of the counter, and then the
 * counter takes that value.  A position is a value of the counter.  A channel has
 * changed since a position if its place is above it.
 *
 * The answer may say "changed" for a channel that was not notified, as channels
 * share places.  It never says "unchanged" wrongly.  Let a client get position P,
 * from either function, then take a snapshot S, and then ask for the channels that
 * have changed since P, with the answer and the next position Q.  Let T be a
 * transaction that notifies channel c and is not visible in S, and k its number.
 *
 *	- T is counted after it became visible, so after S was taken, so after P was
 *	  read.  The counter only grows.  So k > P.
 *	- If k <= Q, then Q was read after T had been counted.  The place of c was set
 *	  before the counter, and is read after it, with barriers on both sides.  So
 *	  the place is at least k, and c is reported.
 *	- If k > Q, then T was not counted when Q was read, so its COMMIT had not
 *	  returned.  The next question begins at Q, and the same holds for it.
 *
 * That S is taken after P is read is up to the client: the tables are read in a later
 * statement, not in the same one.  A transaction above READ COMMITTED has one
 * snapshot, and the functions refuse to run there.
 *
 * Why transactions are counted when they are ready, and not when they are published.
 * Publication can be held back by a slower commit, for as long as that takes.  The
 * COMMIT of the transaction has returned by then, and whoever asks has to be told.
 *
 * Why the places are set while the lock is held.  A place that is set before, to
 * the value that the counter is going to have, may be overtaken by other transactions:
 * the counter is beyond that value when T becomes visible, a client takes that as its
 * position, with a snapshot without T, and T's channel does not look changed ever
 * after.  A place that is set after the counter leaves a gap in which a client reads
 * the new counter and the old place.  So both are done in one step.  The work is
 * bounded: which places these are is found out before the commit, and there are
 * NPLACES at most, for which 0.05 ms were measured.  Nothing is looked up, allocated,
 * or read from the batch.
 *
 * Parts of one transaction could as well be counted one after the other, each with a
 * number of its own: the argument above is about one channel.  But heartbeats claim
 * that all that is counted is published, and that needs one number for each batch.
 *
 * Positions of another server, or of this one before its shared memory was created
 * anew, mean nothing here.  The text of a position has the system identifier and the
 * incarnation, a random number that is drawn with the shared memory.  What is not
 * known has changed.  A restart, a crash and a failover to another server are
 * noticed by that, and each client looks once.
 *
 * PostgreSQL's own way.  What goes through PostgreSQL's queue has no batch here, and its
 * channels are not known.  So a transaction that has used it is counted at a place that
 * belongs to its database, which is compared for each channel of the database.  It is
 * recognised by a lock that it holds (see pg_pinpoint.c), so none is left out, whatever
 * has sent it, and whether or not the extension is there.  PostgreSQL delivers it, and a
 * heartbeat may come before it.
 *
 * The floor.  Where transactions may have gone by uncounted, the counter takes its next
 * value and becomes the floor: all channels have changed since positions below it.
 * That is done after the last such transaction is visible, and if it comes late it is
 * like a transaction that is counted late.  It is done
 *
 *	- on a standby, at the commit of a transaction that could not be told in full,
 *	  and of one that executes CREATE EXTENSION: what was notified in the database
 *	  before went PostgreSQL's own way, and so is not in the WAL;
 *	- on a standby, when pinpoint.replicate is switched on in its configuration;
 *	- at the end of recovery.  Positions that a standby gave are unknown on the
 *	  primary that it has become.  They would be exact if all that was committed
 *	  was replicated, but the server cannot know whether it was.
 *
 * Standbys.  What is replayed is counted by the startup process, after PostgreSQL has
 * made the transaction visible.  A standby sees only what the primary has
 * replicated, and cannot know what it has not.  pinpoint.replicate in the
 * configuration of the standby is what the administrator says about that; it is read
 * by the startup process, as a session may have another value.  Where it is off all
 * channels have changed, always, and there are no heartbeats.  Heartbeats from above the
 * floor must not go to those that have listened for them before, as these may have missed
 * something: they are disconnected.  Where it is switched on while WAL is still to be
 * replayed that the primary wrote without it, the floor comes too early; so the
 * documentation says in which order to do that.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/shmem.h"

#include "base/channel_hash.h"
#include "base/locks.h"
#include "base/settings.h"
#include "commit/positions.h"
#include "wakeup/channel_map.h"

/* Places of channels; a power of two. */
#define NPLACES			65536

/*
 * Up to so many channels of a transaction are kept as a list of places, more as a set
 * of bits.
 */
#define MAX_LISTED		64

/*
 * counter, floor and places are written under PinpointOrderLock, and read without.
 * incarnation is constant.  replicates is written by the startup process: is
 * pinpoint.replicate on in the configuration of this standby, and has the primary not
 * said that it is off there?
 */
typedef struct Positions
{
	uint64		incarnation;
	pg_atomic_uint64 counter;
	pg_atomic_uint64 floor;
	pg_atomic_uint32 replicates;
	pg_atomic_uint64 places[NPLACES];
} Positions;

static Positions *positions = NULL;

/*
 * The places of the transaction that this process is going to count: nlisted in
 * listed[], or if that is -1, those whose bits are set.
 */
static int	nlisted = 0;
static uint16 listed[MAX_LISTED];
static uint64 place_bits[NPLACES / 64];

static int	place_of(Oid dboid, uint32 hash);
static int	place_of_database(void);
static void touch_places(void);
static void set_places(uint64 number);
static bool read_hex(const char **cursor, uint64 *number);

Size
pinpoint_positions_shmem_size(void)
{
	return MAXALIGN(sizeof(Positions));
}

/*
 * In the postmaster, at start and at restart after a crash.
 */
void
pinpoint_positions_shmem_init(void)
{
	bool		found;

	positions = ShmemInitStruct("pg_pinpoint positions",
								pinpoint_positions_shmem_size(), &found);
	Assert(!found);

	if (!pg_strong_random(&positions->incarnation,
						  sizeof(positions->incarnation)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random number for the positions of pg_pinpoint")));
	pg_atomic_init_u64(&positions->counter, 0);
	pg_atomic_init_u64(&positions->floor, 0);

	/* The floor need not be raised, as nobody has got a position yet. */
	pg_atomic_init_u32(&positions->replicates,
					   pinpoint_replicate_notifications ? 1 : 0);
	for (int i = 0; i < NPLACES; i++)
		pg_atomic_init_u64(&positions->places[i], 0);
}

/*
 * The place of a channel.  hash: pinpoint_channel_hash().
 */
static int
place_of(Oid dboid, uint32 hash)
{
	return pinpoint_channel_hash_in_database(dboid, hash) % NPLACES;
}

/*
 * The place of this database as a whole: that of the empty name, which no channel has.
 */
static int
place_of_database(void)
{
	return place_of(MyDatabaseId, pinpoint_channel_hash(""));
}

/*
 * Find out the places of a batch that this process is going to count, before its
 * transaction commits or, on a standby, before PinpointOrderLock is taken.
 */
void
pinpoint_positions_prepare(PinpointBatch *batch)
{
	const char *channel = pinpoint_batch_first_channel(batch);
	bool		is_list = batch->nchannels <= MAX_LISTED;

	if (is_list)
		nlisted = batch->nchannels;
	else
	{
		nlisted = -1;
		memset(place_bits, 0, sizeof(place_bits));
	}

	for (uint32 i = 0; i < batch->nchannels; i++)
	{
		int			place = place_of(batch->dboid,
									 pinpoint_batch_channel_hash(channel));

		if (is_list)
		{
			listed[i] = (uint16) place;

			/* For the same reason as in touch_places(). */
			(void) pg_atomic_read_u64(&positions->places[place]);
		}
		else
			place_bits[place / 64] |= UINT64CONST(1) << (place % 64);
		channel = pinpoint_batch_next_channel(channel);
	}
	if (!is_list)
		touch_places();
}

/*
 * The first access of a process to a page is a page fault: not with the lock held.  So
 * the pages of all places whose bits are set are touched before.  The 64 places of a
 * word are on two pages at most.
 */
static void
touch_places(void)
{
	for (int i = 0; i < (int) lengthof(place_bits); i++)
	{
		uint64		bits = place_bits[i];

		if (bits == 0)
			continue;
		(void) pg_atomic_read_u64(&positions->places[i * 64 +
													 pg_rightmost_one_pos64(bits)]);
		(void) pg_atomic_read_u64(&positions->places[i * 64 +
													 pg_leftmost_one_pos64(bits)]);
	}
}

/*
 * Count the transaction that was prepared.  It is visible to all new snapshots.  The
 * caller holds PinpointOrderLock.
 */
void
pinpoint_positions_count(void)
{
	uint64		number = pg_atomic_read_u64(&positions->counter) + 1;

	if (pinpoint_fault == PINPOINT_FAULT_COUNTER_FIRST)
	{
		pg_atomic_write_u64(&positions->counter, number);
		pg_usleep(100000);
	}

	set_places(number);
	pg_write_barrier();
	pg_atomic_write_u64(&positions->counter, number);
}

/*
 * A transaction of this database, which is visible to all new snapshots, has notified
 * PostgreSQL's own way: all channels of the database have changed.  Does not fail.
 */
void
pinpoint_positions_count_database(void)
{
	pg_atomic_uint64 *place = &positions->places[place_of_database()];
	uint64		number;

	(void) pg_atomic_read_u64(place);
	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	number = pg_atomic_read_u64(&positions->counter) + 1;
	pg_atomic_write_u64(place, number);
	pg_write_barrier();
	pg_atomic_write_u64(&positions->counter, number);
	LWLockRelease(PinpointOrderLock);
}

static void
set_places(uint64 number)
{
	if (pinpoint_fault == PINPOINT_FAULT_MISSING_PLACE && nlisted != 0)
		return;

	for (int i = 0; i < nlisted; i++)
		pg_atomic_write_u64(&positions->places[listed[i]], number);
	if (nlisted >= 0)
		return;

	for (int i = 0; i < (int) lengthof(place_bits); i++)
	{
		for (uint64 bits = place_bits[i]; bits != 0; bits &= bits - 1)
			pg_atomic_write_u64(&positions->places[i * 64 +
												   pg_rightmost_one_pos64(bits)],
								number);
	}
}

/*
 * The number of the last transaction that was counted.  Needs no lock.
 */
uint64
pinpoint_positions_counter(void)
{
	return pg_atomic_read_u64(&positions->counter);
}

/*
 * Transactions that are visible by now may not have been counted: since positions
 * that were given before, all channels have changed.  Does not fail.
 */
void
pinpoint_positions_raise_floor(void)
{
	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_positions_raise_floor_locked();
	LWLockRelease(PinpointOrderLock);
}

/*
 * The same.  The caller holds PinpointOrderLock.
 */
void
pinpoint_positions_raise_floor_locked(void)
{
	uint64		number = pg_atomic_read_u64(&positions->counter) + 1;

	pg_atomic_write_u64(&positions->floor, number);
	pg_write_barrier();
	pg_atomic_write_u64(&positions->counter, number);
}

/*
 * On a standby: is all that is replayed counted?  Needs no lock.
 */
bool
pinpoint_positions_replicates(void)
{
	return pg_atomic_read_u32(&positions->replicates) != 0;
}

/*
 * On a standby, in the startup process: from now on it is, or is not.  If it is, the
 * caller has raised the floor.
 */
void
pinpoint_positions_set_replicates(bool replicates)
{
	pg_write_barrier();
	pg_atomic_write_u32(&positions->replicates, replicates ? 1 : 0);
}

/*
 * The text of a position of this server.
 *
 * text: PINPOINT_POSITION_LENGTH + 1 bytes.
 */
void
pinpoint_positions_format(uint64 counter, char *text)
{
	snprintf(text, PINPOINT_POSITION_LENGTH + 1,
			 "%016llx-%016llx-%016llx",
			 (unsigned long long) GetSystemIdentifier(),
			 (unsigned long long) positions->incarnation,
			 (unsigned long long) counter);
}

/*
 * Read the text of a position.  Returns false if it is none.
 *
 * counter: its counter.  known: is it a position of this server since its start?
 */
bool
pinpoint_positions_parse(const char *text, uint64 *counter, bool *known)
{
	uint64		system;
	uint64		incarnation;

	if (strlen(text) != PINPOINT_POSITION_LENGTH ||
		!read_hex(&text, &system) || *text++ != '-' ||
		!read_hex(&text, &incarnation) || *text++ != '-' ||
		!read_hex(&text, counter))
		return false;

	*known = system == GetSystemIdentifier() &&
		incarnation == positions->incarnation;
	return true;
}

/*
 * A number of 16 hexadecimal digits.
 */
static bool
read_hex(const char **cursor, uint64 *number)
{
	*number = 0;
	for (int i = 0; i < 16; i++)
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

/*
 * Begin to look which channels have changed: read the next position, which has to
 * come before all places.
 */
void
pinpoint_positions_begin_look(PinpointLook *look)
{
	/*
	 * The end of recovery raises the floor before it is seen here, and so does
	 * the startup process before it sets replicates.
	 */
	look->all = RecoveryInProgress() && !pinpoint_positions_replicates();
	pg_read_barrier();
	look->counter = pinpoint_positions_counter();
	pg_memory_barrier();
}

/*
 * Have all channels of this database changed since a position with this counter?  The
 * caller has begun to look.
 */
bool
pinpoint_positions_all_changed(uint64 counter)
{
	return counter < pg_atomic_read_u64(&positions->floor) ||
		counter < pg_atomic_read_u64(&positions->places[place_of_database()]);
}

/*
 * If not, was this one notified since then?
 */
bool
pinpoint_positions_changed(const char *channel, uint64 counter)
{
	int			place = place_of(MyDatabaseId, pinpoint_channel_hash(channel));

	return counter < pg_atomic_read_u64(&positions->places[place]);
}
