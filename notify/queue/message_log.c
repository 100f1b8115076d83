/*-------------------------------------------------------------------------
 *
 * message_log.c
 *		The queue: committed batches, in the order in which they are read.
 *
 * The log is one contiguous address range, identical in all processes (see
 * log_storage.c), so plain pointers link the batches.  The sender reserves and
 * writes a batch before its commit.  This is the only step that can report a
 * full queue.  Publication links the batch to the end of the list of published
 * batches: a few stores, which cannot fail.  blocks.c determines the address
 * of a batch.
 *
 * Lifetime.  Publications are grouped into epochs: a new epoch begins when the
 * publications of the current one have as many bytes as a block.  A listener
 * with unread batches pins the epoch of the first one.  A listener without
 * unread batches refers to no batch of the log.  An epoch is kept while it or
 * an earlier one is pinned.  If no epoch is pinned, no published batch is
 * kept, and a new epoch begins.  A batch without listeners is never added to
 * the list.
 *
 * The pins are counters in main shared memory, like all other data that is
 * needed to free the space of an epoch.  Freeing an epoch reads none of its
 * batches, whether it has ten or millions.  So any session that holds
 * PinpointOrderLock can do it for all others.
 *
 * Readers follow the list without a lock.  They begin at a batch of an epoch
 * that they have pinned, and end at a batch that was the last one when they
 * held PinpointOrderLock.  The batches in between do not change and are not
 * freed.  The lock is also the memory barrier: pinpoint_message_log_append()
 * sets the links before the publisher releases the lock, and
 * pinpoint_message_log_after() reads them after the reader has acquired it, in
 * pinpoint_slot_begin_reading().  Without it, a reader could find a NULL link,
 * or a batch whose contents are not there yet.
 *
 * The pages of old batches may be on disk only.  Therefore a session that
 * publishes reads no published batch except the last one while it holds
 * PinpointOrderLock.  A PinpointBatchRef contains everything else that needs to
 * be known about a batch.  A session that reassigns a notification changes its
 * batch under the lock; it has read the batch just before.
 *
 * See batch.c for the contents of a batch.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"

#include "base/check.h"
#include "base/first_number.h"
#include "queue/blocks.h"
#include "queue/log_storage.h"
#include "queue/message_log.h"

/* Disk space is freed in steps of this many bytes. */
#ifndef SHRINK_STEP
#define SHRINK_STEP			((Size) 1024 * 1024)
#endif

/*
 * pins: number of references in slots that pin this epoch; a slot has up to
 * three, see slot_private.h.  Changed under PinpointOrderLock, shared or
 * exclusive.  Epochs are freed under the exclusive lock.
 *
 * The other fields are protected by PinpointOrderLock.
 */
typedef struct Epoch
{
	pg_atomic_uint32 pins;
	uint64		bytes;			/* MessageLog.bytes when the epoch began */
	uint64		batches;		/* MessageLog.batches when the epoch began */
} Epoch;

/* All fields are protected by PinpointOrderLock, with the exceptions below. */
typedef struct MessageLog
{
	char	   *start;			/* the range; constant */
	Size		capacity;		/* its size in bytes; constant */
	Size		memory;			/* bytes at its beginning that need no file;
								 * constant */
	Size		epoch_size;		/* bytes; constant */
	uint32		nepochs;		/* length of epochs[]; constant */

	/*
	 * Bytes that can be used without new disk space.  Written under both
	 * PinpointStorageLock and PinpointOrderLock, read under either.
	 * pinpoint_message_log_has_spare_file() reads it without a lock.
	 */
	Size		usable;

	PinpointBatch *last;		/* last batch of the list; NULL if none is
								 * kept */
	uint64		epoch;			/* number of the current epoch.  That of the
								 * oldest one that is kept is in blocks.c */
	uint64		bytes;			/* total size of all batches ever added to the
								 * list */
	uint64		batches;		/* number of these batches */
	Size		kept;			/* bytes added in the epochs that are kept;
								 * also read without the lock */

	/*
	 * Number of the last publication, including batches without listeners,
	 * which are not added to the list.  Written under PinpointOrderLock, also
	 * read without it.
	 */
	pg_atomic_uint64 sequence;

#ifdef USE_ASSERT_CHECKING
	uint64		nchanges;		/* see check_changed_log() */
#endif

	Epoch		epochs[FLEXIBLE_ARRAY_MEMBER];	/* index: number of the epoch
												 * modulo nepochs */
} MessageLog;

static MessageLog *message_log = NULL;

static Epoch *epoch_at(uint64 epoch);
static void begin_epoch(void);
static bool reserve_space(Size size, Size *offset, int *error);
static int	grow(Size wanted);
static Size offset_of(PinpointBatch *batch);
static void check_changed_log(void);
#ifdef USE_ASSERT_CHECKING
static bool is_in_log(PinpointBatch *batch);
static bool any_pin_until(uint64 epoch);
static void check_fields(void);
static void check_last(void);
static void check_epochs(void);
#endif

/*
 * Of the log without its blocks, which follow it.
 */
static Size
log_size(void)
{
	return CACHELINEALIGN(add_size(offsetof(MessageLog, epochs),
								   mul_size(pinpoint_blocks_max_epochs(),
											sizeof(Epoch))));
}

Size
pinpoint_message_log_shmem_size(void)
{
	return add_size(log_size(), pinpoint_blocks_shmem_size());
}

void
pinpoint_message_log_shmem_init(void *memory)
{
	message_log = memory;
	message_log->start = pinpoint_log_storage_create(pinpoint_blocks_size());
	message_log->capacity = pinpoint_log_storage_size();
	message_log->memory = pinpoint_log_storage_memory_size();
	message_log->epoch_size = pinpoint_blocks_size();
	message_log->nepochs = pinpoint_blocks_max_epochs();
	message_log->usable = message_log->memory;
	message_log->epoch = PINPOINT_FIRST_NUMBER;
	message_log->bytes = PINPOINT_FIRST_NUMBER;
	message_log->batches = PINPOINT_FIRST_NUMBER;
	pg_atomic_init_u64(&message_log->sequence, PINPOINT_FIRST_NUMBER);
	for (uint32 i = 0; i < message_log->nepochs; i++)
		pg_atomic_init_u32(&message_log->epochs[i].pins, 0);
	pinpoint_blocks_shmem_init((char *) memory + log_size(),
							   PINPOINT_FIRST_NUMBER + 1);
	begin_epoch();
}

static Epoch *
epoch_at(uint64 epoch)
{
	return &message_log->epochs[epoch % message_log->nepochs];
}

/*
 * End the current epoch, and begin the next one.  The ended epoch has at least
 * as many bytes as a block, or is not kept.
 */
static void
begin_epoch(void)
{
	Epoch	   *epoch = epoch_at(++message_log->epoch);

	AssertHeldExclusive(PinpointOrderLock);
	Assert(pg_atomic_read_u32(&epoch->pins) == 0);
	Assert(message_log->epoch - pinpoint_blocks_oldest_epoch() <
		   message_log->nepochs);

	epoch->bytes = message_log->bytes;
	epoch->batches = message_log->batches;
}

static Size
offset_of(PinpointBatch *batch)
{
	return (char *) batch - message_log->start;
}

/*
 * Reserve space for a batch, and set its size.  The caller then writes the
 * rest of the batch.
 *
 * size: bytes, MAXALIGNed.
 *
 * Returns NULL if there is no space.  *error is then 0 if the log is full, or
 * an errno value if the file could not grow.
 *
 * The caller holds neither PinpointStorageLock nor PinpointOrderLock.
 */
PinpointBatch *
pinpoint_message_log_reserve(Size size, int *error)
{
	PinpointBatch *batch = NULL;
	Size		offset;

	AssertNoLockHeld();
	Assert(size > sizeof(PinpointBatch) && size == MAXALIGN(size));

	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	if (reserve_space(size, &offset, error))
		batch = (PinpointBatch *) (message_log->start + offset);
	LWLockRelease(PinpointOrderLock);

	/* Without the lock: this page may have to be read from disk. */
	if (batch != NULL)
		batch->size = size;
	return batch;
}

/*
 * The same for an offset.  The caller holds PinpointOrderLock exclusively.
 * The lock may be released and acquired again.
 */
static bool
reserve_space(Size size, Size *offset, int *error)
{
	AssertHeldExclusive(PinpointOrderLock);
	while (!pinpoint_blocks_reserve(size, message_log->usable, offset))
	{
		Size		wanted;

		/* A session may have removed a pin without calling this yet. */
		pinpoint_message_log_trim();
		if (pinpoint_blocks_reserve(size, message_log->usable, offset))
			break;

		*error = 0;
		wanted = pinpoint_blocks_needed(size);
		if (wanted == 0)
			return false;
		LWLockRelease(PinpointOrderLock);
		*error = grow(wanted);
		pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
		if (*error != 0)
			return false;
	}
	return true;
}

/*
 * Make at least "wanted" bytes usable.  Returns 0, or an errno value.
 *
 * The caller does not hold PinpointOrderLock.
 */
static int
grow(Size wanted)
{
	int			error = 0;

	AssertNoLockHeld();
	Assert(wanted <= message_log->capacity);

	pinpoint_lock_acquire(PinpointStorageLock, LW_EXCLUSIVE);
	if (message_log->usable < wanted)
	{
		Size		usable = message_log->usable;

		error = pinpoint_log_storage_grow(&usable, wanted);

		pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
		message_log->usable = usable;
		check_changed_log();
		LWLockRelease(PinpointOrderLock);
	}
	LWLockRelease(PinpointStorageLock);
	return error;
}

/*
 * Has the log allocated disk space that it does not need any more?  This reads
 * without a lock.  The answer is nearly always no.
 */
bool
pinpoint_message_log_has_spare_file(void)
{
	return *(volatile Size *) &message_log->usable != message_log->memory &&
		!pinpoint_blocks_use_file();
}

/*
 * Free some of this disk space.  Returns whether there is more.
 *
 * The kernel frees much space without a pause, and other processes would wait
 * for a core.  A commit that needs space waits for one step at most.
 *
 * The caller does not hold PinpointOrderLock.
 */
bool
pinpoint_message_log_give_back(void)
{
	MessageLog *log = message_log;
	Size		usable;
	bool		shrink = false;

	AssertNoLockHeld();
	if (!pinpoint_message_log_has_spare_file())
		return false;

	/* Another session that holds it needs the space, or frees it. */
	if (!LWLockConditionalAcquire(PinpointStorageLock, LW_EXCLUSIVE))
		return false;
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	usable = log->usable;
	if (usable > log->memory && !pinpoint_blocks_use_file())
	{
		usable -= Min(usable - log->memory, SHRINK_STEP);
		log->usable = usable;
		shrink = true;
		check_changed_log();
	}
	LWLockRelease(PinpointOrderLock);
	if (shrink)
		pinpoint_log_storage_shrink(usable);
	LWLockRelease(PinpointStorageLock);
	return shrink && usable > log->memory;
}

/*
 * Size of the log in bytes.
 */
Size
pinpoint_message_log_capacity(void)
{
	return message_log->capacity;
}

/*
 * Returns the number of bytes that a listener may keep before this has an
 * effect on others: a warning, or the end of a session.
 *
 * max_lag: pinpoint.max_listener_lag, in kB; -1: no limit
 */
Size
pinpoint_message_log_lag_limit(int max_lag)
{
	Size		half = pinpoint_message_log_capacity() / 2;

	Assert(max_lag >= -1);
	return max_lag < 0 ? half : Min(half, (Size) max_lag * 1024);
}

/*
 * Number of the last publication.  Needs no lock.
 */
uint64
pinpoint_message_log_sequence(void)
{
	return pg_atomic_read_u64(&message_log->sequence);
}

/*
 * The number for a new publication.  After this call, the caller looks up the
 * listeners, or completes an earlier look-up.
 *
 * The callers of this function and of those below hold PinpointOrderLock
 * exclusively, unless the comment of a function says otherwise.
 */
uint64
pinpoint_message_log_next_sequence(void)
{
	uint64		sequence = pg_atomic_read_u64(&message_log->sequence) + 1;

	AssertHeldExclusive(PinpointOrderLock);
	pg_atomic_write_u64(&message_log->sequence, sequence);

	/*
	 * Partner: the barrier at the end of pinpoint_slot_join().  Without this,
	 * a session that executes LISTEN could read the number from before this
	 * hold of the lock, although the first batch of the hold has found the
	 * session and the second has not.
	 */
	pg_memory_barrier();
	return sequence;
}

/*
 * Add a batch that has become PUBLISHED to the end of the list.  After that,
 * the caller pins its epoch for a listener, unless a listener has pinned an
 * epoch that is kept.
 */
void
pinpoint_message_log_append(PinpointBatch *batch)
{
	MessageLog *log = message_log;
	PinpointBatchPublished *published = pinpoint_batch_published(batch);

	AssertHeldExclusive(PinpointOrderLock);
	Assert(is_in_log(batch));

	if (log->bytes - epoch_at(log->epoch)->bytes >= log->epoch_size)
		begin_epoch();

	published->epoch = log->epoch;
	published->bytes = log->bytes;
	published->next = NULL;
	if (log->last != NULL)
		pinpoint_batch_published(log->last)->next = batch;
	log->last = batch;

	log->bytes += batch->size;
	log->batches++;
	log->kept = log->bytes - epoch_at(pinpoint_blocks_oldest_epoch())->bytes;
	pinpoint_blocks_publish(offset_of(batch), batch->size, log->epoch);
	check_changed_log();
#ifdef USE_ASSERT_CHECKING
	check_last();
#endif
}

/*
 * Free the space of a batch that is not published.
 */
void
pinpoint_message_log_withdraw(PinpointBatch *batch)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(is_in_log(batch));
	pinpoint_blocks_withdraw(offset_of(batch), batch->size);
}

/*
 * The batch published last, NULL if none is kept.  The caller holds
 * PinpointOrderLock, shared or exclusive.
 */
PinpointBatch *
pinpoint_message_log_last(void)
{
	AssertHeld(PinpointOrderLock);
	Assert((message_log->last == NULL) == (message_log->kept == 0));
	return message_log->last;
}

/*
 * The batch published after a given one.  Needs no lock if the reader has
 * pinned the given batch, and if it is not the one that was the last when the
 * reader held PinpointOrderLock.
 */
PinpointBatch *
pinpoint_message_log_after(PinpointBatch *batch)
{
	const PinpointBatchPublished *published = pinpoint_batch_published(batch);

	Assert(is_in_log(batch));
	Assert(is_in_log(published->next) &&
		   pinpoint_batch_published(published->next)->sequence >
		   published->sequence);
	return published->next;
}

/*
 * A reference to a published batch.  Needs no lock if the batch is pinned.
 * This reads the batch, and so possibly from disk: a reader calls it before it
 * acquires PinpointOrderLock.
 */
PinpointBatchRef
pinpoint_message_log_ref(PinpointBatch *batch)
{
	const PinpointBatchPublished *published = pinpoint_batch_published(batch);
	PinpointBatchRef ref = {
		.batch = batch,
		.sequence = published->sequence,
		.epoch = published->epoch,
		.bytes = published->bytes,
		.published_at = published->published_at,
	};

	/* What was freed would not be below these. */
	Assert(is_in_log(batch));
	Assert(ref.sequence <= pinpoint_message_log_sequence() &&
		   ref.epoch <= *(volatile uint64 *) &message_log->epoch);
	return ref;
}

/*
 * Pin an epoch: it and all later epochs are kept.  The caller holds
 * PinpointOrderLock, in shared mode if it has already pinned this epoch or an
 * earlier one, otherwise exclusively.
 */
void
pinpoint_message_log_pin(uint64 epoch)
{
	AssertHeld(PinpointOrderLock);
	Assert(epoch >= pinpoint_blocks_oldest_epoch() &&
		   epoch <= message_log->epoch);
	Assert(LWLockHeldByMeInMode(PinpointOrderLock, LW_EXCLUSIVE) ||
		   any_pin_until(epoch));

	pg_atomic_fetch_add_u32(&epoch_at(epoch)->pins, 1);
}

/*
 * Remove a pin of an epoch.  The caller holds PinpointOrderLock, shared or
 * exclusive.  Returns true if no pin is left and the epoch is the oldest one.
 * The caller must then call pinpoint_message_log_trim().
 */
bool
pinpoint_message_log_unpin(uint64 epoch)
{
	uint32		pins;

	AssertHeld(PinpointOrderLock);
	Assert(epoch >= pinpoint_blocks_oldest_epoch() &&
		   epoch <= message_log->epoch);

	pins = pg_atomic_sub_fetch_u32(&epoch_at(epoch)->pins, 1);
	Assert(pins != PG_UINT32_MAX);
	return pins == 0 && epoch == pinpoint_blocks_oldest_epoch();
}

/*
 * Free the space of the epochs that are no longer kept.
 *
 * The work is proportional to the number of epochs and blocks that become
 * free.  It is bounded by the number of blocks: all of them took half a
 * millisecond in a measurement.
 */
void
pinpoint_message_log_trim(void)
{
	MessageLog *log = message_log;
	uint64		former = pinpoint_blocks_oldest_epoch();
	uint64		oldest = former;

	AssertHeldExclusive(PinpointOrderLock);
	while (oldest < log->epoch &&
		   pg_atomic_read_u32(&epoch_at(oldest)->pins) == 0)
		oldest++;

	/* No epoch is pinned, so no batch is kept. */
	if (oldest == log->epoch && log->last != NULL &&
		pg_atomic_read_u32(&epoch_at(oldest)->pins) == 0)
	{
		/* begin_epoch() may reuse an element of the earlier epochs. */
		pinpoint_blocks_release_before(oldest);
		begin_epoch();
		oldest = log->epoch;
		log->last = NULL;
	}

	if (oldest != former)
	{
		log->kept = log->bytes - epoch_at(oldest)->bytes;
		pinpoint_blocks_release_before(oldest);
	}
	check_changed_log();
}

/*
 * Total size of all batches ever added to the list, in bytes.  The caller
 * holds PinpointOrderLock, shared or exclusive.
 */
uint64
pinpoint_message_log_bytes(void)
{
	AssertHeld(PinpointOrderLock);
	return message_log->bytes;
}

/*
 * Size of all batches that are kept, in bytes.  This is at least the backlog
 * of each listener.  It is 0 if no batch is kept.  Needs no lock.
 */
Size
pinpoint_message_log_kept(void)
{
	return *(volatile Size *) &message_log->kept;
}

/*
 * Data for pinpoint.stat_queue.  The caller holds PinpointOrderLock, shared or
 * exclusive.
 */
void
pinpoint_message_log_stats(PinpointLogStats *stats)
{
	MessageLog *log = message_log;

	AssertHeld(PinpointOrderLock);
	stats->size = log->capacity;
	stats->used = pinpoint_blocks_used();
	stats->file = log->usable - log->memory;
	stats->batches = log->batches -
		epoch_at(pinpoint_blocks_oldest_epoch())->batches;
}

/*
 * In a build with assertions: check what a change of the log can have broken.
 * The caller holds PinpointOrderLock exclusively.
 *
 * Each change checks the fields of the log, and now and then all epochs: so
 * seldom that a change checks a few epochs on average.
 */
static void
check_changed_log(void)
{
#ifdef USE_ASSERT_CHECKING
	check_fields();
	if (++message_log->nchanges % (message_log->nepochs / 64 + 1) == 0)
		check_epochs();
#endif
}

#ifdef USE_ASSERT_CHECKING
/*
 * Is a batch where a batch can be?  Needs no lock.
 */
static bool
is_in_log(PinpointBatch *batch)
{
	return batch != NULL && (char *) batch >= message_log->start &&
		offset_of(batch) + batch->size <= message_log->capacity &&
		offset_of(batch) == MAXALIGN(offset_of(batch)) &&
		batch->size > sizeof(PinpointBatch);
}

/*
 * Is an epoch up to this one pinned?
 */
static bool
any_pin_until(uint64 epoch)
{
	for (uint64 i = pinpoint_blocks_oldest_epoch(); i <= epoch; i++)
	{
		if (pg_atomic_read_u32(&epoch_at(i)->pins) > 0)
			return true;
	}
	return false;
}

static void
check_fields(void)
{
	MessageLog *log = message_log;
	uint64		oldest = pinpoint_blocks_oldest_epoch();

	Assert(log->usable >= log->memory && log->usable <= log->capacity);
	Assert(log->epoch >= oldest && log->epoch - oldest < log->nepochs);
	Assert(log->kept == log->bytes - epoch_at(oldest)->bytes);
	Assert((log->last == NULL) == (log->kept == 0));
	Assert(log->bytes >= epoch_at(log->epoch)->bytes);
	Assert(log->batches >= epoch_at(log->epoch)->batches);
	Assert(log->batches <= pinpoint_message_log_sequence());
}

/*
 * Check the last batch of the list, if there is one.
 */
static void
check_last(void)
{
	PinpointBatch *last = message_log->last;
	PinpointBatchRef ref;

	if (last == NULL)
		return;
	ref = pinpoint_message_log_ref(last);
	Assert(ref.epoch >= pinpoint_blocks_oldest_epoch());
	Assert(ref.epoch <= message_log->epoch);
	Assert(ref.bytes + last->size == message_log->bytes);
}

static void
check_epochs(void)
{
	MessageLog *log = message_log;
	uint64		oldest = pinpoint_blocks_oldest_epoch();

	/* Epochs that are kept have ended because they were full. */
	for (uint64 i = oldest; i < log->epoch; i++)
	{
		Assert(epoch_at(i + 1)->bytes - epoch_at(i)->bytes >= log->epoch_size);
		Assert(epoch_at(i + 1)->batches > epoch_at(i)->batches);
	}

	/* No other epoch is pinned. */
	for (uint64 i = log->epoch + 1; i < oldest + log->nepochs; i++)
		Assert(pg_atomic_read_u32(&epoch_at(i)->pins) == 0);
}

/*
 * Check the log and its blocks.  The caller holds PinpointOrderLock.
 */
void
pinpoint_message_log_check(void)
{
	AssertHeld(PinpointOrderLock);
	check_fields();
	check_last();
	check_epochs();
	pinpoint_blocks_check();
}
#endif
