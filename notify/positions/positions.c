/*-------------------------------------------------------------------------
 *
 * positions.c
 *		Positions: which channels were notified since a given time.
 *
 * A client that has stored a position can query later which of its channels
 * were notified since then.  It needs no connection in between, and the server
 * keeps no data for it.
 *
 * Shared memory contains a counter, and an array of places.  The hash value of
 * database and channel determines the place of a channel.  Each transaction
 * that notifies is counted once, under PinpointOrderLock, when it is visible
 * to all new snapshots: the places of its channels are set to the next value
 * of the counter, and then the counter is set to that value.  A position is a
 * value of the counter.  A channel has changed since a position if its place
 * is above the position.
 *
 * The answer may be "changed" for a channel that was not notified, because
 * channels share places.  An answer "unchanged" is always correct.  Let a
 * client get position P, from either function, then take a snapshot S, and
 * then query the channels that have changed since P, with the answer and the
 * next position Q.  Let T be a transaction that notifies channel c and is not
 * visible in S, and k its number.
 *
 *	1. T is counted after it became visible, so after S was taken, so after P
 *	   was read.
 *	2. The counter only grows.  So k > P.
 *	3. The place of c is set to k before the counter is.
 *	4. Q is read from the counter before the place of c is read.
 *	5. If k <= Q, then Q was read after step 3, and between the two accesses of
 *	   steps 3 and 4 there are barriers.  So the place is at least k, and c is
 *	   reported.
 *	6. If k > Q, then T was not counted when Q was read, so its COMMIT had not
 *	   returned.  The next query begins at Q, and the same argument holds for
 *	   it.
 *
 * The client must take S after P is read: it reads the tables in a later
 * statement, not in the same one.  A transaction above READ COMMITTED has only
 * one snapshot, so the functions fail there.
 *
 * Why transactions are counted when they are ready, and not when they are
 * published.  A slower commit can hold back the publication for as long as it
 * takes.  The COMMIT of the transaction has already returned then, and the
 * answer must include it.
 *
 * Why the places are set while the lock is held.  If a place were set before
 * that, to the expected next value of the counter, other transactions could
 * overtake it: the counter would be above that value when T becomes visible, a
 * client would get it as its position, with a snapshot without T, and T's
 * channel would never look changed.  If a place were set after the counter, a
 * client could read the new counter and the old place.  Therefore both are set
 * in one step.  The work is bounded: the places are determined before the
 * commit, and there are at most NPLACES, which took 0.05 ms in a measurement.
 * No data is looked up, allocated, or read from the batch.
 *
 * Parts of one transaction could also be counted one after the other, each
 * with a separate number: the argument above is about one channel.  But
 * heartbeats state that all counted batches are published, and that needs one
 * number for each batch.
 *
 * Positions of another server, of another database, or of this server before
 * its shared memory was created again, are not valid here; see
 * position_text.c.  For an invalid position, all channels have changed.  So a
 * client detects a restart, a crash and a failover to another server, and
 * reads its data once.
 *
 * PostgreSQL's own queue.  Notifications in PostgreSQL's queue have no batch,
 * and their channels are unknown.  Therefore a transaction that has used that
 * queue is counted at a place of its database, which is compared for each
 * channel of the database.  The transaction is recognized by a lock that it
 * holds (see own_queue.c).  This covers all ways to notify, with and without
 * the extension.  PostgreSQL delivers the notification.
 *
 * The floor.  If transactions may have committed without being counted, the
 * counter is set to its next value, which becomes the floor: all channels have
 * changed since positions below it.  This is done after the last such
 * transaction is visible.  If it is done late, the effect is that of a
 * transaction that is counted late.  It is done
 *
 *	- on a standby, at the commit of a transaction whose notifications are
 *	  incomplete there, and of a transaction that executes CREATE EXTENSION:
 *	  earlier notifications in the database used PostgreSQL's own queue, so
 *	  they are not in the WAL;
 *	- on a standby, when it begins to know that its primary replicates;
 *	- at the end of recovery.  Positions that a standby gave are unknown on the
 *	  primary that it has become.  They would be exact if all committed
 *	  notifications had been replicated, but the server cannot know this.
 *
 * Standbys.  The startup process counts a replayed transaction after
 * PostgreSQL has made it visible.  A standby receives only the notifications
 * that the primary has replicated.  While it does not know that it receives
 * all, all channels have changed, and there are no heartbeats; see
 * primary_status.c.
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

#include "base/check.h"
#include "base/first_number.h"
#include "base/hash.h"
#include "base/settings.h"
#include "positions/positions.h"
#include "positions/waiters.h"

#define NPLACES			PINPOINT_NPLACES

/* The first places are for channels, the others for databases. */
#define NCHANNEL_PLACES	(NPLACES - PINPOINT_NDATABASE_PLACES)

/*
 * The places of a transaction are stored as a list if it has at most this many
 * channels, otherwise as a bitmap.
 */
#define MAX_LISTED		64

/*
 * counter, floor and places are written under PinpointOrderLock, and read
 * without it.
 *
 * replicates is written by the startup process, and read without a lock.  It
 * is 1 if pinpoint.replicate is on in the configuration of this standby, and
 * the primary has reported that it replicates; see primary_status.c.
 */
typedef struct Positions
{
	pg_atomic_uint64 counter;
	pg_atomic_uint64 floor;
	pg_atomic_uint32 replicates;
	pg_atomic_uint64 places[NPLACES];
} Positions;

static Positions *positions = NULL;

/*
 * The places of the transaction that this process will count next: the first
 * nlisted elements of listed[], or, if nlisted is -1, the bits that are set in
 * place_bits.
 */
static int	nlisted = 0;
static uint16 listed[MAX_LISTED];
static uint64 place_bits[NPLACES / 64];

#ifdef USE_ASSERT_CHECKING
/* Are these the places of a batch that is not counted yet? */
static bool prepared = false;
#endif

/* The list of the sessions that each transaction of its database wakes. */
static int	database_list = -1;

/* The sessions to wake; see pinpoint_positions_wake(). */
static enum
{
	WAKE_NONE,
	WAKE_PLACES,				/* of listed[] or place_bits, and
								 * database_list */
	WAKE_ALL
}			to_wake = WAKE_NONE;

static int	place_of(Oid dboid, uint32 hash);
static int	place_of_database(Oid dboid);
static int	list_of_database(Oid dboid);
static void begin_places(Oid dboid, uint32 n);
static void add_place(int place);
static void end_places(void);
static void touch_places(void);
static uint64 next_number(void);
static void set_counter(uint64 number);
static void set_places(uint64 number);
static void take_lists(void);

Size
pinpoint_positions_shmem_size(void)
{
	return MAXALIGN(sizeof(Positions));
}

/*
 * Create the positions.  The postmaster calls this at start and at restart
 * after a crash.
 */
void
pinpoint_positions_shmem_init(void *memory)
{
	positions = memory;

	pg_atomic_init_u64(&positions->counter, PINPOINT_FIRST_NUMBER);

	/* No client has a valid position yet. */
	pg_atomic_init_u64(&positions->floor, 0);

	pg_atomic_init_u32(&positions->replicates, 0);
	for (int i = 0; i < NPLACES; i++)
		pg_atomic_init_u64(&positions->places[i], 0);
}

/*
 * The place of a channel in a database.
 *
 * hash: pinpoint_hash_channel() of the channel.
 */
static int
place_of(Oid dboid, uint32 hash)
{
	return pinpoint_hash_in_database(dboid, hash) % NCHANNEL_PLACES;
}

/*
 * The place of a database.  No channel has it: if one had, each of its
 * notifications would change all channels of the database.
 */
static int
place_of_database(Oid dboid)
{
	uint32		hash = pinpoint_hash_in_database(dboid,
												 pinpoint_hash_channel(""));

	return NCHANNEL_PLACES + hash % PINPOINT_NDATABASE_PLACES;
}

/*
 * The list of the sessions in pinpoint.wait() that each transaction of a
 * database wakes.  Databases with the same place have the same list.
 */
static int
list_of_database(Oid dboid)
{
	return PINPOINT_NDATABASE_PLACES + place_of_database(dboid);
}

/*
 * Compute the places of a batch that this process will count.  Called before
 * the commit of its transaction or, on a standby, before PinpointOrderLock is
 * acquired.  Does not fail.
 */
void
pinpoint_positions_compute(PinpointBatch *batch)
{
	const char *channel = pinpoint_batch_first_channel(batch);

	Assert(batch->nchannels > 0);

	begin_places(batch->dboid, batch->nchannels);
	for (uint32 i = 0; i < batch->nchannels; i++)
	{
		add_place(place_of(batch->dboid, pinpoint_batch_channel_hash(channel)));
		channel = pinpoint_batch_next_channel(channel);
	}
	end_places();
}

/*
 * The same for channels of this database.
 *
 * channels: a list of char *.
 */
void
pinpoint_positions_compute_channels(List *channels)
{
	ListCell   *lc;

	begin_places(MyDatabaseId, list_length(channels));
	foreach(lc, channels)
		add_place(place_of(MyDatabaseId, pinpoint_hash_channel(lfirst(lc))));
	end_places();
}

/*
 * n: number of channels.
 */
static void
begin_places(Oid dboid, uint32 n)
{
	if (!PINPOINT_FAULT(COUNT_LATE))
		AssertNotHeld(PinpointOrderLock);

	database_list = list_of_database(dboid);
	nlisted = n <= MAX_LISTED ? 0 : -1;
	if (nlisted < 0)
		memset(place_bits, 0, sizeof(place_bits));
}

static void
add_place(int place)
{
	Assert(place >= 0 && place < NCHANNEL_PLACES);

	if (nlisted < 0)
	{
		place_bits[place / 64] |= UINT64CONST(1) << (place % 64);
		return;
	}
	Assert(nlisted < MAX_LISTED);
	listed[nlisted++] = (uint16) place;

	/* See touch_places(). */
	(void) pg_atomic_read_u64(&positions->places[place]);
}

static void
end_places(void)
{
	if (nlisted < 0)
		touch_places();
#ifdef USE_ASSERT_CHECKING
	prepared = true;
#endif
}

/*
 * Read one place on each page that contains places of the transaction.  The
 * first access of a process to a page is a page fault, which must not happen
 * while the lock is held.  The 64 places of a word of the bitmap are on at
 * most two pages.
 */
static void
touch_places(void)
{
	for (int i = 0; i < (int) lengthof(place_bits); i++)
	{
		uint64		bits = place_bits[i];
		pg_atomic_uint64 *places = &positions->places[i * 64];

		if (bits == 0)
			continue;
		(void) pg_atomic_read_u64(&places[pg_rightmost_one_pos64(bits)]);
		(void) pg_atomic_read_u64(&places[pg_leftmost_one_pos64(bits)]);
	}
}

/*
 * Count the transaction whose places were computed last.  It is visible to all
 * new snapshots.  The caller holds PinpointOrderLock exclusively, and calls
 * pinpoint_positions_wake() when it has released it.
 */
void
pinpoint_positions_count(void)
{
	uint64		number = next_number(); /* steps 1 and 2 */

	Assert(prepared);
#ifdef USE_ASSERT_CHECKING
	prepared = false;
#endif

	if (PINPOINT_FAULT(COUNTER_FIRST))
	{
		pg_atomic_write_u64(&positions->counter, number);
		pg_usleep(100000);
	}

	set_places(number);
	set_counter(number);
	to_wake = Max(to_wake, WAKE_PLACES);
}

/*
 * The number of the next transaction.  The caller holds PinpointOrderLock
 * exclusively, and calls set_counter() before it releases it.
 */
static uint64
next_number(void)
{
	uint64		counter = pg_atomic_read_u64(&positions->counter);

	AssertHeldExclusive(PinpointOrderLock);
	Assert(pg_atomic_read_u64(&positions->floor) <= counter);

	return counter + 1;
}

/*
 * Advance the counter, after the places or the floor were set to the number.
 * This is the end of step 3.
 */
static void
set_counter(uint64 number)
{
	AssertHeldExclusive(PinpointOrderLock);

	/*
	 * Partner: the last barrier of pinpoint_positions_begin_look().  Without
	 * this, a client could get the new counter as its position, and an answer
	 * from the old places: it would miss the transaction for ever.
	 */
	pg_write_barrier();
	pg_atomic_write_u64(&positions->counter, number);
}

/*
 * Count a transaction of this database that has used PostgreSQL's own queue:
 * all channels of the database have changed.  The transaction is visible to
 * all new snapshots.  Does not fail.
 */
void
pinpoint_positions_count_database(void)
{
	pg_atomic_uint64 *place =
		&positions->places[place_of_database(MyDatabaseId)];
	uint64		number;

	AssertNoLockHeld();
	AssertInterruptsHeld();

	(void) pg_atomic_read_u64(place);
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	number = next_number();
	pg_atomic_write_u64(place, number);
	set_counter(number);
	LWLockRelease(PinpointOrderLock);

	if (!pinpoint_waiters_exist())
		return;
	pinpoint_waiters_take(place_of_database(MyDatabaseId));
	pinpoint_waiters_take(list_of_database(MyDatabaseId));
	pinpoint_waiters_wake();
}

/*
 * Count a transaction of a database whose channels are not known, for instance
 * one that was not replicated in full: all channels of the database have
 * changed.  The caller holds PinpointOrderLock exclusively, and calls
 * pinpoint_positions_wake() when it has released it.
 */
void
pinpoint_positions_count_all_of(Oid dboid)
{
	AssertHeldExclusive(PinpointOrderLock);

	nlisted = 1;
	listed[0] = (uint16) place_of_database(dboid);
	database_list = list_of_database(dboid);
#ifdef USE_ASSERT_CHECKING
	prepared = true;
#endif
	pinpoint_positions_count();
}

static void
set_places(uint64 number)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(nlisted >= -1 && nlisted <= MAX_LISTED);

	if (PINPOINT_FAULT(MISSING_PLACE) && nlisted != 0)
		return;

	for (int i = 0; i < nlisted; i++)
		pg_atomic_write_u64(&positions->places[listed[i]], number);
	if (nlisted >= 0)
		return;

	for (int i = 0; i < (int) lengthof(place_bits); i++)
	{
		for (uint64 bits = place_bits[i]; bits != 0; bits &= bits - 1)
		{
			int			place = i * 64 + pg_rightmost_one_pos64(bits);

			pg_atomic_write_u64(&positions->places[place], number);
		}
	}
}

/*
 * The number of the last counted transaction.  Needs no lock.
 */
uint64
pinpoint_positions_counter(void)
{
	return pg_atomic_read_u64(&positions->counter);
}

/*
 * Raise the floor: all channels have changed since all positions that were
 * given until now.  Called after transactions that may not have been counted
 * are visible.  Does not fail.
 */
void
pinpoint_positions_raise_floor(void)
{
	AssertNoLockHeld();
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_positions_raise_floor_locked();
	LWLockRelease(PinpointOrderLock);
	pinpoint_positions_wake();
}

/*
 * The same.  The caller holds PinpointOrderLock exclusively, and calls
 * pinpoint_positions_wake() when it has released it.
 */
void
pinpoint_positions_raise_floor_locked(void)
{
	uint64		number = next_number();

	pg_atomic_write_u64(&positions->floor, number);
	set_counter(number);
	to_wake = WAKE_ALL;
}

/*
 * Wake the sessions in pinpoint.wait() that wait for what this process has
 * counted.  The caller has released PinpointOrderLock since.  Does not fail.
 */
void
pinpoint_positions_wake(void)
{
	/* Setting latches takes long. */
	AssertLocksBelow(PINPOINT_RANK_ORDER);

	if (to_wake != WAKE_NONE && pinpoint_waiters_exist())
	{
		if (to_wake == WAKE_ALL)
		{
			for (int i = 0; i < PINPOINT_NWAIT_LISTS; i++)
				pinpoint_waiters_take(i);
		}
		else
			take_lists();
		pinpoint_waiters_wake();
	}
	to_wake = WAKE_NONE;
}

/*
 * Take the entries of the sessions that wait for the transaction that this
 * process has counted last.
 */
static void
take_lists(void)
{
	for (int i = 0; i < nlisted; i++)
		pinpoint_waiters_take(listed[i]);
	for (int i = 0; nlisted < 0 && i < NPLACES; i++)
	{
		if ((place_bits[i / 64] & (UINT64CONST(1) << (i % 64))) != 0)
			pinpoint_waiters_take(i);
	}
	pinpoint_waiters_take(database_list);
}

/*
 * On a standby: are all notifications of the primary counted here, as far as
 * this server can know?  Needs no lock.
 */
bool
pinpoint_positions_replicates(void)
{
	return pg_atomic_read_u32(&positions->replicates) != 0;
}

/*
 * Set the result of pinpoint_positions_replicates().  The startup process
 * calls this.  It raises the floor before it sets "true".
 */
void
pinpoint_positions_set_replicates(bool replicates)
{
	AssertNoLockHeld();

	/*
	 * Partner: the first barrier of pinpoint_positions_begin_look().  Without
	 * this, a client could see "true" before the floor is raised, and would
	 * miss what was not replicated before.
	 */
	pg_write_barrier();
	pg_atomic_write_u32(&positions->replicates, replicates ? 1 : 0);
	to_wake = WAKE_ALL;
	pinpoint_positions_wake();
}

/*
 * Enter this session into the lists of sessions to wake, for some channels of
 * this database; see waiters.c.
 */
void
pinpoint_positions_enter_waiter(char (*channels)[NAMEDATALEN], int nchannels)
{
	int			lists[PINPOINT_MAX_WAIT_CHANNELS + 1];
	int			n = 0;

	if (nchannels > PINPOINT_MAX_WAIT_CHANNELS)
		lists[n++] = list_of_database(MyDatabaseId);
	else
	{
		for (int i = 0; i < nchannels; i++)
			lists[n++] = place_of(MyDatabaseId,
								  pinpoint_hash_channel(channels[i]));
		lists[n++] = place_of_database(MyDatabaseId);
	}
	pinpoint_waiters_enter(lists, n);
}

/*
 * Begin to query which channels have changed.  This reads the next position,
 * which must be read before any place.
 */
void
pinpoint_positions_begin_look(PinpointLook *look)
{
	AssertNoLockHeld();

	/*
	 * The end of recovery raises the floor before RecoveryInProgress()
	 * returns false.  The startup process raises it before it sets
	 * "replicates".
	 */
	look->all = RecoveryInProgress() && !pinpoint_positions_replicates();

	/* Partner: pinpoint_positions_set_replicates(). */
	pg_read_barrier();
	look->counter = pinpoint_positions_counter();	/* step 4 */

	/*
	 * Partner: set_counter().  Without this, the places and the floor could
	 * be read before the counter.
	 *
	 * It is a full barrier, and not a read barrier, for two reasons.  A
	 * session in pinpoint.wait() has stored its entries before, and these
	 * must be visible before the places are read; see waiters.c.  And the
	 * snapshots that the client takes with this position must not be older
	 * than it; see pinpoint_position().
	 */
	pg_memory_barrier();
}

/*
 * Have all channels of this database changed since a position with this
 * counter?  Called after pinpoint_positions_begin_look().
 */
bool
pinpoint_positions_all_changed(uint64 counter)
{
	AssertNoLockHeld();

	return counter < pg_atomic_read_u64(&positions->floor) ||
		counter <
		pg_atomic_read_u64(&positions->places[place_of_database(MyDatabaseId)]);
}

/*
 * Has this channel changed since a position with this counter?  Called if
 * pinpoint_positions_all_changed() returns false.
 */
bool
pinpoint_positions_changed(const char *channel, uint64 counter)
{
	int			place = place_of(MyDatabaseId, pinpoint_hash_channel(channel));

	AssertNoLockHeld();

	/* step 5 */
	return counter < pg_atomic_read_u64(&positions->places[place]);
}
