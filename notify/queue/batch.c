/*-------------------------------------------------------------------------
 *
 * batch.c
 *		A batch: all notifications of one transaction, and their format in the
 *		message log.
 *
 * A PinpointBatch is followed by
 *
 *	nchannels times			uint32 hash, name, 0, padding to 4 bytes
 *	nnotifications times	uint32 number of the channel, payload, 0, padding
 *							to 4 bytes
 *
 * and then, each MAXALIGNed, by max_assignments PinpointAssignments and
 * nlisteners slot numbers.
 *
 * The layout of a batch is computed first, to determine its size.  The batch
 * is written when space is reserved for it.  The sender does both before its
 * commit.  No other process reads the contents before the batch is published,
 * and after that they do not change.  Therefore they need no lock.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/check.h"
#include "base/hash.h"
#include "queue/batch.h"

/*
 * The hash table of channels is created with space for at most this many.  A
 * transaction with very many notifications may have as many channels, or only
 * a few.
 */
#define MAX_CHANNELS_EXPECTED	16384

/*
 * A channel of the batch.  "first" is the index of its first notification in
 * the list of notifications.
 */
typedef struct ChannelNumber
{
	uint32		first;
	uint32		hash;			/* pinpoint_hash_channel() */
	char		status;
} ChannelNumber;

static bool same_channel(List *notifications, uint32 a, uint32 b);
static uint32 channel_hash_at(List *notifications, uint32 index);

/* private_data is the list of notifications. */
#define SH_PREFIX channel_numbers
#define SH_ELEMENT_TYPE ChannelNumber
#define SH_KEY_TYPE uint32
#define SH_KEY first
#define SH_HASH_KEY(tb, key) channel_hash_at((tb)->private_data, (key))
#define SH_EQUAL(tb, a, b) same_channel((tb)->private_data, (a), (b))
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) ((a)->hash)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static Size record_size(Size len);
static char *write_record(char *cursor, uint32 number, const char *string,
						  Size len);
static char *body(PinpointBatch *batch);
static Size listeners_size(uint32 nlisteners);
static Size assignments_size(uint16 max_assignments);

/*
 * Do the notifications at two indexes of the list have the same channel?
 */
static bool
same_channel(List *notifications, uint32 a, uint32 b)
{
	PinpointNotification *first = list_nth(notifications, a);
	PinpointNotification *second = list_nth(notifications, b);

	return first->channel_len == second->channel_len &&
		memcmp(first->data, second->data, first->channel_len) == 0;
}

static uint32
channel_hash_at(List *notifications, uint32 index)
{
	return ((PinpointNotification *) list_nth(notifications,
											  index))->channel_hash;
}

/*
 * Bytes of the record of a string of len bytes.
 */
static Size
record_size(Size len)
{
	return TYPEALIGN(sizeof(uint32), sizeof(uint32) + len + 1);
}

static char *
write_record(char *cursor, uint32 number, const char *string, Size len)
{
	memcpy(cursor, &number, sizeof(uint32));
	memcpy(cursor + sizeof(uint32), string, len + 1);
	return cursor + record_size(len);
}

/*
 * Bytes of the slot numbers at the end of a batch.
 */
static Size
listeners_size(uint32 nlisteners)
{
	return MAXALIGN(mul_size(nlisteners, sizeof(int)));
}

/*
 * Bytes of the PinpointAssignments before the slot numbers.
 */
static Size
assignments_size(uint16 max_assignments)
{
	return MAXALIGN(max_assignments * sizeof(PinpointAssignment));
}

/*
 * Compute the layout of the batch of a transaction: its channels and its size.
 *
 * notifications: a list of PinpointNotifications, at least one.  The result is
 * allocated in the current memory context.
 *
 * Errors: out of memory.
 */
PinpointBatchLayout *
pinpoint_batch_layout(List *notifications)
{
	PinpointBatchLayout *layout = palloc0(sizeof(PinpointBatchLayout));
	Size		size = MAXALIGN(sizeof(PinpointBatch));
	channel_numbers_hash *numbers = NULL;
	bool		found;
	ListCell   *lc;

	layout->notifications = notifications;
	layout->channels = palloc(sizeof(PinpointNotification *));

	foreach(lc, notifications)
	{
		PinpointNotification *n = lfirst(lc);
		uint32		index = foreach_current_index(lc);
		ChannelNumber *entry;

		size = add_size(size, record_size(n->payload_len));

		/* A hash table is needed only if there is more than one channel. */
		if (index == 0)
		{
			layout->channels[layout->nchannels++] = n;
			size += record_size(n->channel_len);
			continue;
		}
		if (numbers == NULL)
		{
			if (same_channel(notifications, 0, index))
				continue;
			numbers = channel_numbers_create(CurrentMemoryContext,
											 Min(list_length(notifications),
												 MAX_CHANNELS_EXPECTED),
											 notifications);
			(void) channel_numbers_insert(numbers, 0, &found);
			layout->channels =
				repalloc_huge(layout->channels, list_length(notifications) *
							  sizeof(PinpointNotification *));
			layout->numbers =
				MemoryContextAllocExtended(CurrentMemoryContext,
										   list_length(notifications) *
										   sizeof(uint32),
										   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
		}

		entry = channel_numbers_insert(numbers, index, &found);
		if (found)
			layout->numbers[index] = layout->numbers[entry->first];
		else
		{
			layout->numbers[index] = layout->nchannels;
			layout->channels[layout->nchannels++] = n;
			size = add_size(size, record_size(n->channel_len));
		}
	}

	if (numbers != NULL)
		channel_numbers_destroy(numbers);

	layout->size = MAXALIGN(size);
	return layout;
}

/*
 * Add the slots of listeners that were found before the commit to a layout.
 *
 * slots: nslots slot numbers, which must exist until the batch is written.
 * last_listen: see PinpointBatch.
 */
void
pinpoint_batch_layout_add_listeners(PinpointBatchLayout *layout, int *slots,
									uint32 nslots, uint64 last_listen)
{
	AssertNoLockHeld();
	Assert(layout->listeners == NULL);

	layout->listeners = slots;
	layout->nlisteners = nslots;
	layout->last_listen = last_listen;
	layout->size = add_size(layout->size, listeners_size(nslots));
}

/*
 * Add space for max_assignments PinpointAssignments to a layout.
 */
void
pinpoint_batch_layout_add_assignments(PinpointBatchLayout *layout,
									  uint16 max_assignments)
{
	AssertNoLockHeld();
	Assert(layout->max_assignments == 0);

	layout->max_assignments = max_assignments;
	layout->size = add_size(layout->size, assignments_size(max_assignments));
}

/*
 * Write a batch.  batch->size is set, and is at least layout->size.
 */
void
pinpoint_batch_write(PinpointBatch *batch, PinpointBatchLayout *layout)
{
	char	   *cursor = body(batch);
	ListCell   *lc;

	/* Other sessions publish meanwhile, and this may be a page on disk. */
	AssertNotHeld(PinpointOrderLock);
	Assert(batch->size >= layout->size);

	batch->state = PINPOINT_BATCH_RESERVED;
	batch->dboid = MyDatabaseId;
	batch->sender_pid = MyProcPid;
	batch->nchannels = layout->nchannels;
	batch->nnotifications = list_length(layout->notifications);
	batch->nlisteners = layout->nlisteners;
	batch->last_listen = layout->last_listen;
	batch->max_assignments = layout->max_assignments;
	batch->nassignments = 0;
	batch->all_share_from = PG_UINT32_MAX;

	for (uint32 i = 0; i < layout->nchannels; i++)
	{
		PinpointNotification *n = layout->channels[i];

		cursor = write_record(cursor, n->channel_hash, n->data,
							  n->channel_len);
	}
	foreach(lc, layout->notifications)
	{
		PinpointNotification *n = lfirst(lc);
		uint32		number = 0;

		if (layout->numbers != NULL)
			number = layout->numbers[foreach_current_index(lc)];
		cursor = write_record(cursor, number, n->data + n->channel_len + 1,
							  n->payload_len);
	}
	if (layout->nlisteners > 0)
		memcpy(unconstify(int *, pinpoint_batch_listeners(batch)),
			   layout->listeners, layout->nlisteners * sizeof(int));

	Assert(cursor <= (char *) pinpoint_batch_assignments(batch));
}

/*
 * Size of a batch without slot numbers, in bytes.
 *
 * body_size: size of its body, which are its channels and notifications.
 */
Size
pinpoint_batch_size_of_body(Size body_size, uint16 max_assignments)
{
	return MAXALIGN(sizeof(PinpointBatch)) + MAXALIGN(body_size) +
		assignments_size(max_assignments);
}

static char *
body(PinpointBatch *batch)
{
	return (char *) batch + MAXALIGN(sizeof(PinpointBatch));
}

/*
 * Size of the body of a batch, in bytes.
 */
Size
pinpoint_batch_body_size(PinpointBatch *batch)
{
	return (char *) pinpoint_batch_assignments(batch) - body(batch);
}

/*
 * Offset of the record of a channel or payload in the body of its batch.
 */
Size
pinpoint_batch_offset(PinpointBatch *batch, const char *string)
{
	return string - sizeof(uint32) - body(batch);
}

/*
 * Begin to assemble a batch.  The caller has set size, dboid, sender_pid,
 * nchannels, nnotifications and max_assignments.
 */
void
pinpoint_batch_begin(PinpointBatch *batch, PinpointBatchWriter *writer)
{
	AssertNotHeld(PinpointOrderLock);
	Assert(batch->size >=
		   pinpoint_batch_size_of_body(0, batch->max_assignments));

	batch->state = PINPOINT_BATCH_RESERVED;
	batch->nlisteners = 0;
	batch->last_listen = 0;
	batch->nassignments = 0;
	batch->all_share_from = PG_UINT32_MAX;
	writer->batch = batch;
	writer->nrecords = 0;
	writer->written = 0;
}

/*
 * Has the batch all its channels, so that the next record is a notification?
 */
bool
pinpoint_batch_has_channels(PinpointBatchWriter *writer)
{
	return writer->nrecords >= writer->batch->nchannels;
}

/*
 * The address for the next channel or payload, or NULL if there is no space.
 *
 * *available: maximum number of bytes of it, without the terminating zero.
 */
char *
pinpoint_batch_next_string(PinpointBatchWriter *writer, Size *available)
{
	Size		rest = pinpoint_batch_body_size(writer->batch) -
		writer->written;

	if (rest < record_size(0))
		return NULL;
	*available = rest - sizeof(uint32) - 1;
	return body(writer->batch) + writer->written + sizeof(uint32);
}

/*
 * Complete the record of the string that was written at the address from
 * pinpoint_batch_next_string().
 *
 * number: for a notification, the number of its channel.  len: bytes of the
 * string.
 *
 * Returns false, and adds nothing, if the record is invalid.
 */
bool
pinpoint_batch_add_record(PinpointBatchWriter *writer, uint32 number, Size len)
{
	PinpointBatch *batch = writer->batch;
	char	   *cursor = body(batch) + writer->written;
	char	   *string = cursor + sizeof(uint32);

	Assert(batch->state == PINPOINT_BATCH_RESERVED);
	Assert(record_size(len) <=
		   pinpoint_batch_body_size(batch) - writer->written);

	if (strnlen(string, len) != len)
		return false;
	string[len] = '\0';

	if (!pinpoint_batch_has_channels(writer))
	{
		if (len == 0 || len >= NAMEDATALEN)
			return false;
		number = pinpoint_hash_channel(string);
	}
	else if (number >= batch->nchannels ||
			 writer->nrecords - batch->nchannels >= batch->nnotifications)
		return false;

	memcpy(cursor, &number, sizeof(uint32));
	writer->written += record_size(len);
	writer->nrecords++;
	return true;
}

/*
 * Has the batch all its channels and notifications, and do they fill its body?
 */
bool
pinpoint_batch_is_complete(PinpointBatchWriter *writer)
{
	PinpointBatch *batch = writer->batch;

	return batch->nchannels > 0 && batch->nnotifications > 0 &&
		writer->nrecords ==
		(uint64) batch->nchannels + batch->nnotifications &&
		MAXALIGN(writer->written) == pinpoint_batch_body_size(batch);
}

/*
 * The first channel of a batch, and the channel after a given one.  A batch
 * has nchannels channels.  The result for the last channel is an argument of
 * pinpoint_batch_read().
 */
const char *
pinpoint_batch_first_channel(PinpointBatch *batch)
{
	return body(batch) + sizeof(uint32);
}

const char *
pinpoint_batch_next_channel(const char *channel)
{
	return channel + record_size(strlen(channel));
}

/*
 * pinpoint_hash_channel() of a channel of a batch, as stored there.
 */
uint32
pinpoint_batch_channel_hash(const char *channel)
{
	uint32		hash;

	memcpy(&hash, channel - sizeof(uint32), sizeof(uint32));
	return hash;
}

/*
 * Begin to read the notifications of a batch.
 *
 * channels_end: pinpoint_batch_next_channel() of its last channel.
 */
void
pinpoint_batch_read(PinpointBatch *batch, const char *channels_end,
					PinpointBatchReader *reader)
{
	AssertNotHeld(PinpointOrderLock);
	Assert(channels_end > pinpoint_batch_first_channel(batch));

	reader->remaining = batch->nnotifications;
	reader->cursor = channels_end;
}

/*
 * The next payload, or NULL at the end.
 *
 * *channel: number of its channel, counted from 0.
 */
const char *
pinpoint_batch_read_next(PinpointBatchReader *reader, uint32 *channel)
{
	const char *payload = reader->cursor;

	/* The page may be on disk. */
	AssertNotHeld(PinpointOrderLock);

	if (reader->remaining == 0)
		return NULL;
	reader->remaining--;
	memcpy(channel, payload - sizeof(uint32), sizeof(uint32));
	reader->cursor = payload + record_size(strlen(payload));
	return payload;
}

/*
 * The slot numbers of a batch: nlisteners of them.
 */
const int  *
pinpoint_batch_listeners(PinpointBatch *batch)
{
	Assert(listeners_size(batch->nlisteners) <
		   batch->size - MAXALIGN(sizeof(PinpointBatch)));
	return (const int *) ((char *) batch + batch->size -
						  listeners_size(batch->nlisteners));
}

/*
 * The PinpointAssignments of a batch: max_assignments, of which nassignments
 * are in use.
 */
PinpointAssignment *
pinpoint_batch_assignments(PinpointBatch *batch)
{
	Assert(batch->nassignments <= batch->max_assignments);
	return (PinpointAssignment *) ((char *) batch + batch->size -
								   listeners_size(batch->nlisteners) -
								   assignments_size(batch->max_assignments));
}
