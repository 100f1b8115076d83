/*-------------------------------------------------------------------------
 *
 * message_log.c
 *		Committed batches, in the order in which they are to be read.
 *
 * The log is one contiguous range of addresses, the same in every process (see
 * log_storage.c), so that batches are linked by plain pointers.  A batch is
 * reserved and written by its sender before commit; that is the only place
 * that may say "queue full".  Publishing links it at the end of the list of
 * published batches: a few stores, which cannot fail.
 *
 * Space.  Batches are laid out one behind the other, in the order of their
 * reservation.  That is not quite the order of publication, so a batch that is
 * done with is marked free first, and its space is used again once all batches
 * reserved before it are free too.  When the last batch goes, the next one
 * starts at the beginning of the range, so a healthy system touches the same
 * few pages all the time.
 *
 * What is in use is a queue of a few segments.  New batches extend the last
 * segment.  Where this is not possible, a new segment is begun: at the beginning
 * of the range if there is room by now, else above all others.  The range grows
 * into its file only if neither is possible.
 *
 * Lifetime.  A published batch is kept while it or a batch published before it
 * is pinned.  A listener with unread batches pins the first one of them; one
 * without has no position in the log at all.  Hence a batch that nobody
 * listens to is never published into the list, and there is nothing to advance
 * for those who are not interested.
 *
 * Readers follow the list without a lock, from a batch that they have pinned
 * to one that was the last when they held PinpointOrderLock: nothing in
 * between can change or go away.
 *
 * See batch.c for what a batch contains.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "port/atomics.h"
#include "storage/shmem.h"

#include "base/locks.h"
#include "queue/log_storage.h"
#include "queue/message_log.h"

/*
 * How many batches one call gives back at most, to bound the time for which
 * PinpointOrderLock is held.
 */
#define MAX_BATCHES_PER_TRIM	256

/*
 * More are not needed to use the range well; it is a limit on what has to be
 * looked at under a lock.
 */
#define MAX_SEGMENTS			8

/* Batches one behind the other: bytes from start up to, not including, end. */
typedef struct LogSegment
{
	Size		start;
	Size		end;
	Size		last;			/* where the last of the batches is */
} LogSegment;

/* All fields are protected by PinpointOrderLock unless they say otherwise. */
typedef struct MessageLog
{
	char	   *start;			/* the range; constant */
	Size		capacity;		/* its size in bytes; constant */
	Size		memory;			/* bytes of it that need no file; constant */

	/*
	 * Bytes that can be used without asking for disk space.  Written under
	 * PinpointStorageLock and PinpointOrderLock, read under either.
	 */
	Size		usable;

	/* What is in use, oldest first.  No segment is empty. */
	LogSegment	segments[MAX_SEGMENTS];
	int			nsegments;

	dlist_head	published;		/* batches to read, oldest first */
	uint64		nbatches;		/* length of that list */
	Size		kept;			/* total size of the batches in that list; may
								 * be read without the lock */
	uint64		bytes;			/* total size of batches ever in that list */

	/*
	 * Number of the last publication.  Written under PinpointOrderLock, may
	 * be read without.
	 */
	pg_atomic_uint64 sequence;
} MessageLog;

static MessageLog *message_log = NULL;

static bool reserve_space(Size size, Size *offset);
static Size size_to_fit(Size size);
static Size top_of_segments(void);
static int	grow(Size wanted);
static bool reclaim(uint64 max_batches);

Size
pinpoint_message_log_shmem_size(void)
{
	return MAXALIGN(sizeof(MessageLog));
}

void
pinpoint_message_log_shmem_init(void)
{
	bool		found;

	message_log = ShmemInitStruct("pg_pinpoint message log",
								  pinpoint_message_log_shmem_size(), &found);
	if (!found)
	{
		memset(message_log, 0, sizeof(MessageLog));
		message_log->start = pinpoint_log_storage_create();
		message_log->capacity = pinpoint_log_storage_size();
		message_log->memory = pinpoint_log_storage_memory_size();
		message_log->usable = message_log->memory;
		dlist_init(&message_log->published);
		pg_atomic_init_u64(&message_log->sequence, 0);
	}
}

/*
 * Where the highest segment ends.
 */
static Size
top_of_segments(void)
{
	Size		top = 0;

	for (int i = 0; i < message_log->nsegments; i++)
		top = Max(top, message_log->segments[i].end);
	return top;
}

/*
 * Find room for a batch of size bytes within what is usable; false if there is
 * none.
 */
static bool
reserve_space(Size size, Size *offset)
{
	MessageLog *log = message_log;
	LogSegment *last = log->nsegments > 0 ?
		&log->segments[log->nsegments - 1] : NULL;
	Size		lowest = log->usable;
	Size		top = top_of_segments();

	if (last != NULL)
	{
		Size		ceiling = log->usable;

		for (int i = 0; i < log->nsegments; i++)
		{
			Size		start = log->segments[i].start;

			lowest = Min(lowest, start);
			if (start >= last->end)
				ceiling = Min(ceiling, start);
		}
		if (ceiling - last->end >= size)
		{
			*offset = last->end;
			last->end += size;
			((PinpointBatch *) (log->start + *offset))->previous = last->last;
			last->last = *offset;
			return true;
		}
	}

	if (log->nsegments == MAX_SEGMENTS)
		return false;
	if (lowest >= size)
		*offset = 0;
	else if (log->usable - top >= size)
		*offset = top;
	else
		return false;

	log->segments[log->nsegments].start = *offset;
	log->segments[log->nsegments].end = *offset + size;
	log->segments[log->nsegments].last = *offset;
	log->nsegments++;
	return true;
}

/*
 * How many bytes have to be usable for reserve_space() to succeed; 0 if that
 * is more than there can be.
 */
static Size
size_to_fit(Size size)
{
	MessageLog *log = message_log;
	Size		top = top_of_segments();

	if (log->nsegments == MAX_SEGMENTS &&
		log->segments[MAX_SEGMENTS - 1].end != top)
		return 0;
	if (size > log->capacity - top)
		return 0;
	return top + size;
}

/*
 * Make at least so many bytes usable.  Returns 0, or what the file system says,
 * as in errno.
 */
static int
grow(Size wanted)
{
	int			error = 0;

	LWLockAcquire(PinpointStorageLock, LW_EXCLUSIVE);
	if (message_log->usable < wanted)
	{
		Size		usable = message_log->usable;

		error = pinpoint_log_storage_grow(&usable, wanted);

		LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
		message_log->usable = usable;
		LWLockRelease(PinpointOrderLock);
	}
	LWLockRelease(PinpointStorageLock);
	return error;
}

/*
 * If the log has taken disk space that it does not need any more, give it
 * back.  This is I/O, so it is nothing to do after a commit.
 */
void
pinpoint_message_log_give_back(void)
{
	MessageLog *log = message_log;
	bool		shrink = false;

	/* A look without a lock: nearly always there is nothing to do. */
	if (*(volatile Size *) &log->usable == log->memory)
		return;

	/* Whoever holds it needs the space, or is doing this. */
	if (!LWLockConditionalAcquire(PinpointStorageLock, LW_EXCLUSIVE))
		return;
	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	if (log->usable > log->memory && top_of_segments() <= log->memory)
	{
		log->usable = log->memory;
		shrink = true;
	}
	LWLockRelease(PinpointOrderLock);
	if (shrink)
		pinpoint_log_storage_shrink();
	LWLockRelease(PinpointStorageLock);
}

/*
 * Take space for a batch of size bytes, MAXALIGNed.
 *
 * The caller holds PinpointOrderLock, which may be released and taken again
 * meanwhile.
 *
 * Returns NULL if there is none, with *error set to 0 if the log is full, or
 * to what the file system says, as in errno, where the log has to grow.
 */
PinpointBatch *
pinpoint_message_log_reserve(Size size, int *error)
{
	PinpointBatch *batch;
	Size		offset;

	while (!reserve_space(size, &offset))
	{
		Size		wanted;

		/* Space may have come free that nobody has collected yet. */
		if (pinpoint_message_log_trim())
		{
			/* let others in */
			LWLockRelease(PinpointOrderLock);
			LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
			continue;
		}
		if (reserve_space(size, &offset))
			break;

		*error = 0;
		wanted = size_to_fit(size);
		if (wanted == 0)
			return NULL;
		LWLockRelease(PinpointOrderLock);
		*error = grow(wanted);
		LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
		if (*error != 0)
			return NULL;
	}

	batch = (PinpointBatch *) (message_log->start + offset);
	batch->size = size;
	batch->is_free = false;
	pg_atomic_init_u32(&batch->pins, 0);
	batch->sequence = 0;
	return batch;
}

/*
 * Bytes that the log can hold.
 */
Size
pinpoint_message_log_capacity(void)
{
	return message_log->capacity;
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
 * The number for a new publication.  The caller holds PinpointOrderLock, as in
 * all functions below.
 */
uint64
pinpoint_message_log_next_sequence(void)
{
	uint64		sequence = pg_atomic_read_u64(&message_log->sequence) + 1;

	pg_atomic_write_u64(&message_log->sequence, sequence);
	return sequence;
}

/*
 * Publish: put a batch at the end of the list of batches to read.
 */
void
pinpoint_message_log_append(PinpointBatch *batch)
{
	batch->position = message_log->bytes;
	message_log->bytes += batch->size;
	message_log->kept += batch->size;
	dlist_push_tail(&message_log->published, &batch->link);
	message_log->nbatches++;
}

/*
 * Give back the space of a batch that is in no list.
 */
void
pinpoint_message_log_free(PinpointBatch *batch)
{
	batch->is_free = true;
	(void) reclaim(MAX_BATCHES_PER_TRIM);
}

/*
 * Collect free batches at both ends of what is in use, so many at most at each.
 * Returns true if there are more of them at the beginning.
 *
 * It is the end that makes batches nobody listens to cost nothing even while an
 * older one is kept: they come and go there.
 */
static bool
reclaim(uint64 max_batches)
{
	MessageLog *log = message_log;

	for (uint64 i = 0; i < max_batches && log->nsegments > 0; i++)
	{
		LogSegment *segment = &log->segments[log->nsegments - 1];
		PinpointBatch *batch = (PinpointBatch *) (log->start + segment->last);

		if (!batch->is_free)
			break;
		segment->end = segment->last;
		segment->last = batch->previous;
		if (segment->start == segment->end)
			log->nsegments--;
	}

	while (log->nsegments > 0)
	{
		LogSegment *segment = &log->segments[0];
		PinpointBatch *batch = (PinpointBatch *) (log->start + segment->start);

		if (!batch->is_free)
			return false;
		if (max_batches-- == 0)
			return true;

		segment->start += batch->size;
		if (segment->start == segment->end)
		{
			log->nsegments--;
			memmove(log->segments, log->segments + 1,
					log->nsegments * sizeof(LogSegment));
		}
	}
	return false;
}

/*
 * The batch published last, NULL if none is kept.
 */
PinpointBatch *
pinpoint_message_log_last(void)
{
	if (dlist_is_empty(&message_log->published))
		return NULL;
	return dlist_tail_element(PinpointBatch, link, &message_log->published);
}

/*
 * The batch published after a given one.  A reader may call this without
 * PinpointOrderLock for a batch before the one that was the last when it held
 * the lock.
 */
PinpointBatch *
pinpoint_message_log_after(PinpointBatch *batch)
{
	return dlist_container(PinpointBatch, link, batch->link.next);
}

/*
 * Keep a batch, and all that are published after it.  The caller holds
 * PinpointOrderLock, in shared mode if the batch is kept by somebody.
 */
void
pinpoint_message_log_pin(PinpointBatch *batch)
{
	pg_atomic_fetch_add_u32(&batch->pins, 1);
}

/*
 * Stop keeping a batch.  The caller holds PinpointOrderLock, in shared mode at
 * least.  Returns true if nothing keeps the oldest batch any more: then it is up
 * to the caller to call pinpoint_message_log_trim().
 */
bool
pinpoint_message_log_unpin(PinpointBatch *batch)
{
	uint32		pins = pg_atomic_sub_fetch_u32(&batch->pins, 1);

	Assert(pins != PG_UINT32_MAX);
	return pins == 0 &&
		&batch->link == dlist_head_node(&message_log->published);
}

/*
 * Give back batches at the front of the list that nobody pins, and space that
 * has come free, but not very much in one call.  Returns true if there is more
 * to do.
 */
bool
pinpoint_message_log_trim(void)
{
	MessageLog *log = message_log;
	int			trimmed = 0;

	while (!dlist_is_empty(&log->published))
	{
		PinpointBatch *batch;

		batch = dlist_head_element(PinpointBatch, link, &log->published);
		if (pg_atomic_read_u32(&batch->pins) > 0)
			break;
		if (trimmed++ == MAX_BATCHES_PER_TRIM)
			return true;

		dlist_delete(&batch->link);
		log->nbatches--;
		log->kept -= batch->size;
		batch->is_free = true;
	}
	return reclaim(MAX_BATCHES_PER_TRIM);
}

/*
 * Bytes published since the server started.
 */
uint64
pinpoint_message_log_bytes(void)
{
	return message_log->bytes;
}

/*
 * Bytes of all batches that are kept for a listener: how far the one that is
 * furthest behind is.  Needs no lock.
 */
Size
pinpoint_message_log_kept(void)
{
	return *(volatile Size *) &message_log->kept;
}

void
pinpoint_message_log_stats(PinpointLogStats *stats)
{
	MessageLog *log = message_log;

	stats->size = log->capacity;
	stats->used = 0;
	for (int i = 0; i < log->nsegments; i++)
		stats->used += log->segments[i].end - log->segments[i].start;
	stats->file = log->usable - log->memory;
	stats->batches = log->nbatches;
}
