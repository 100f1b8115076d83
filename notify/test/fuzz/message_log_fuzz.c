/*-------------------------------------------------------------------------
 *
 * message_log_fuzz.c
 *		Compares the message log with a simple model of it.
 *
 * The input is a list of choices: the next action, the batch, and its size.
 * Each batch is written from random notifications, and must be read back
 * unchanged until its space is freed.  The model contains the batches that are
 * in use, and the order of their publication.  After each step, the log must
 * agree with the model:
 *
 *	- no two batches overlap, and none is outside of the usable range,
 *	- the published list is that of the model,
 *	- the log is full only if the model is, and empty when all batches are
 *	  freed.
 *
 * The unusable range is poisoned, so AddressSanitizer reports an access to it.
 * The space of a freed batch is overwritten.
 *
 * The locks are checked, too: which lock is held when the log grows or
 * shrinks, and when there is no space.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
/* The file is small here. */
#define PAGE		4096
#define SHRINK_STEP	((Size) 2 * PAGE)

#include "base/hash.c"
#include "queue/batch.c"
#include "queue/blocks.c"
#include "queue/message_log.c"

#include <sanitizer/asan_interface.h>

#undef printf

#define MAX_ALIVE	256

#define FAIL(...) \
	(printf("%s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__), \
	 printf("\n"), fflush(stdout), abort())

typedef enum ModelState
{
	RESERVED,
	PUBLISHED
} ModelState;

/* A live batch, and what it must contain. */
typedef struct ModelBatch
{
	PinpointBatch *batch;
	Size		size;
	ModelState	state;
	uint64		epoch;			/* of a published one */
	uint32		pins;
	List	   *notifications;	/* of PinpointNotification */
	uint32		nlisteners;		/* slots, numbered from 1000 on */
} ModelBatch;

/* In the order of publication, those that are not published last. */
static ModelBatch alive[MAX_ALIVE];
static int	nalive;

/* The input. */
static const uint8_t *choices;
static size_t nchoices;

/* What the stubs below stand for. */
static char *range;
static Size range_size;
static Size memory_size;
static bool order_lock_held;
static bool storage_lock_held;
static bool disk_full;

LWLock	   *PinpointOrderLock;
LWLock	   *PinpointStorageLock;
static LWLockPadded order_lock;
static LWLockPadded storage_lock;

/* ---- what the log needs from others ---- */

static bool *
held(LWLock *lock)
{
	return lock == PinpointOrderLock ? &order_lock_held : &storage_lock_held;
}

bool
pinpoint_lock_acquire(LWLock *lock, LWLockMode mode)
{
	if (*held(lock) || (lock != PinpointOrderLock && order_lock_held))
		FAIL("lock taken twice, or in the wrong order");
	*held(lock) = true;
	return true;
}

bool
LWLockConditionalAcquire(LWLock *lock, LWLockMode mode)
{
	return pinpoint_lock_acquire(lock, mode);
}

PinpointLockRank
pinpoint_lock_highest_rank(void)
{
	if (order_lock_held)
		return PINPOINT_RANK_ORDER;
	return storage_lock_held ? PINPOINT_RANK_STORAGE : PINPOINT_RANK_NONE;
}

bool
LWLockHeldByMe(LWLock *lock)
{
	return *held(lock);
}

bool
LWLockHeldByMeInMode(LWLock *lock, LWLockMode mode)
{
	return *held(lock);
}

void
LWLockRelease(LWLock *lock)
{
	if (!*held(lock))
		FAIL("lock released that is not held");
	*held(lock) = false;
}

uint64
hash_bytes_extended(const unsigned char *k, int keylen, uint64 seed)
{
	uint32		hash = 5381;

	for (int i = 0; i < keylen; i++)
		hash = hash * 33 + k[i];
	return hash;
}

bool
pg_strong_random(void *buf, size_t len)
{
	memset(buf, 1, len);
	return true;
}

char *
pinpoint_log_storage_create(Size unit)
{
	ASAN_POISON_MEMORY_REGION(range + memory_size, range_size - memory_size);
	return range;
}

Size
pinpoint_log_storage_requested_size(void)
{
	return range_size;
}

Size
pinpoint_log_storage_size(void)
{
	return range_size;
}

Size
pinpoint_log_storage_memory_size(void)
{
	return memory_size;
}

int
pinpoint_log_storage_grow(Size *usable, Size wanted)
{
	if (order_lock_held || !storage_lock_held)
		FAIL("the log grows under the wrong lock");
	if (disk_full)
		return ENOSPC;

	while (*usable < wanted)
	{
		Size		step = Min(4 * PAGE, range_size - *usable);

		ASAN_UNPOISON_MEMORY_REGION(range + *usable, step);
		*usable += step;
	}
	return 0;
}

void
pinpoint_log_storage_shrink(Size usable)
{
	if (order_lock_held || !storage_lock_held)
		FAIL("the log shrinks under the wrong lock");
	ASAN_POISON_MEMORY_REGION(range + usable, range_size - usable);
}

void
pinpoint_log_storage_overwrite(Size offset, Size size)
{
	if (!order_lock_held || offset + size > range_size)
		FAIL("space is overwritten that is not free");
}

bool
pinpoint_log_storage_is_overwritten(Size offset, Size size)
{
	return true;
}

/* ---- the input ---- */

static uint8_t
next_byte(void)
{
	if (nchoices == 0)
		return 0;
	nchoices--;
	return *choices++;
}

static unsigned
choose(unsigned n)
{
	unsigned	value = next_byte();

	if (n > 256)
		value = value << 8 | next_byte();
	return value % n;
}

/* ---- the model ---- */

/* One notification: a name of a few, a payload that is mostly short. */
static PinpointNotification *
make_notification(void)
{
	Size		channel_len = 1 + choose(choose(8) == 0 ? 63 : 4);
	Size		payload_len = choose(choose(8) == 0 ? 7999 : 40);
	PinpointNotification *n = malloc(offsetof(PinpointNotification, data) +
									 channel_len + payload_len + 2);

	n->channel_len = channel_len;
	n->payload_len = payload_len;
	memset(n->data, 'a' + choose(3), channel_len);
	n->data[channel_len] = '\0';
	memset(n->data + channel_len + 1, 1 + choose(255), payload_len);
	n->data[channel_len + 1 + payload_len] = '\0';
	n->channel_hash = pinpoint_hash_channel(n->data);
	return n;
}

static void
free_notifications(List *notifications)
{
	ListCell   *lc;

	foreach(lc, notifications)
		free(lfirst(lc));
	list_free(notifications);
}

/* The batch reads as what was written, with each channel once. */
static void
check_contents(ModelBatch *m)
{
	const char *channels[256];
	const char *channel = pinpoint_batch_first_channel(m->batch);
	const char *payload;
	PinpointBatchReader reader;
	uint32		number;
	ListCell   *lc;

	if (m->batch->size != m->size ||
		(m->state == PUBLISHED &&
		 pinpoint_batch_published(m->batch)->epoch != m->epoch))
		FAIL("the head of a batch has changed");
	for (uint32 i = 0; i < m->batch->nchannels; i++)
	{
		channels[i] = channel;
		if (pinpoint_batch_channel_hash(channel) !=
			pinpoint_hash_channel(channel))
			FAIL("hash of channel %s", channel);
		for (uint32 j = 0; j < i; j++)
		{
			if (strcmp(channels[j], channel) == 0)
				FAIL("channel %s is there twice", channel);
		}
		channel = pinpoint_batch_next_channel(channel);
	}

	pinpoint_batch_read(m->batch, channel, &reader);
	foreach(lc, m->notifications)
	{
		PinpointNotification *n = lfirst(lc);

		payload = pinpoint_batch_read_next(&reader, &number);
		if (payload == NULL || number >= m->batch->nchannels ||
			strcmp(channels[number], n->data) != 0 ||
			strcmp(payload, n->data + n->channel_len + 1) != 0)
			FAIL("a notification has changed");
	}
	if (pinpoint_batch_read_next(&reader, &number) != NULL)
		FAIL("too many notifications");
	if (reader.cursor - sizeof(uint32) >
		(char *) pinpoint_batch_listeners(m->batch))
		FAIL("read beyond the notifications");
	if (m->batch->nlisteners != m->nlisteners)
		FAIL("%u listeners", m->batch->nlisteners);
	for (uint32 i = 0; i < m->nlisteners; i++)
	{
		if (pinpoint_batch_listeners(m->batch)[i] != 1000 + (int) i)
			FAIL("a listener has changed");
	}
}

static void
forget(int i)
{
	ModelBatch *m = &alive[i];
	Size		head = MAXALIGN(sizeof(PinpointBatch));

	check_contents(m);
	memset((char *) m->batch + head, 0xdb, m->size - head);
	free_notifications(m->notifications);
	memmove(m, m + 1, (nalive - i - 1) * sizeof(ModelBatch));
	nalive--;
}

/* The oldest epoch that is pinned; the largest number if none is. */
static uint64
model_oldest_epoch(void)
{
	uint64		oldest = PG_UINT64_MAX;

	for (int i = 0; i < nalive; i++)
	{
		if (alive[i].state == PUBLISHED && alive[i].pins > 0)
			oldest = Min(oldest, alive[i].epoch);
	}
	return oldest;
}

/* What was published in an epoch before all that are pinned is gone. */
static void
model_trim(void)
{
	uint64		oldest = model_oldest_epoch();

	while (nalive > 0 && alive[0].state == PUBLISHED && alive[0].epoch < oldest)
		forget(0);
}

/*
 * The longest run of bytes that a new batch could have: free blocks, and
 * before them the rest of the open one, as far as these are usable.  A block
 * is free if no live batch is in it.
 */
static Size
model_largest_gap(Size usable)
{
	Size		block_size = log_blocks->block_size;
	Size		largest = 0;
	Size		run = 0;

	for (int block = 0; block < log_blocks->nblocks; block++)
	{
		Size		start = block * block_size;
		Size		end = Min(start + block_size, range_size);
		Size		taken = start;

		for (int i = 0; i < nalive; i++)
		{
			Size		from = (char *) alive[i].batch - range;

			if (from < end && from + alive[i].size > start)
				taken = Max(taken, Min(from + alive[i].size, end));
		}
		if (end > usable)
			break;
		if (taken == start)
			run += end - start;
		else if (block == log_blocks->open)
			run = end - log_blocks->cursor;
		else
			run = 0;
		largest = Max(largest, run);
	}
	return largest;
}

static void
check_log(void)
{
	MessageLog *log = message_log;
	PinpointLogStats stats;
	Size		live = 0;
	int			used = 0;
	int			published = 0;

	if (log->usable < log->memory || log->usable > log->capacity)
		FAIL("usable");
	for (int block = 0; block < log_blocks->nblocks; block++)
	{
		Size		start = block * log_blocks->block_size;
		bool		taken = false;

		for (int i = 0; i < nalive; i++)
		{
			Size		from = (char *) alive[i].batch - range;

			if (from < start + log_blocks->block_size &&
				from + alive[i].size > start)
				taken = true;
		}
		if (taken && is_free(block))
			FAIL("block %d has a live batch, and is free", block);
		if (!is_free(block))
		{
			used++;
			if (!taken)
				FAIL("block %d is not free, and has no live batch", block);
		}
		if (!is_free(block) &&
			Min(start + log_blocks->block_size, log->capacity) > log->usable)
			FAIL("block %d is in use, but not usable", block);
	}
	if (used != log_blocks->nused)
		FAIL("%d blocks are in use, not %d", used, log_blocks->nused);

	for (int j = 0; j < nalive; j++)
	{
		char	   *start = (char *) alive[j].batch;

		live += alive[j].size;
		if (start != (char *) MAXALIGN(start) || start < log->start ||
			start + alive[j].size > log->start + log->usable)
			FAIL("a batch is not where it can be");
		for (int k = 0; k < j; k++)
		{
			if ((char *) alive[k].batch < start + alive[j].size &&
				start < (char *) alive[k].batch + alive[k].size)
				FAIL("two batches overlap");
		}
		if (alive[j].state != PUBLISHED)
			continue;
		if (j > 0 &&
			pinpoint_batch_published(alive[j - 1].batch)->next !=
			alive[j].batch)
			FAIL("the published list differs at %d", j);
		published++;
	}
	if (log->last != (published > 0 ? alive[published - 1].batch : NULL))
		FAIL("the published list does not end where it should");

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	pinpoint_message_log_check();
	pinpoint_message_log_stats(&stats);
	LWLockRelease(PinpointOrderLock);
	if (stats.used < live)
		FAIL("used space is %zu, but %zu are alive", stats.used, live);
	if (stats.batches != (uint64) published)
		FAIL("%zu batches are kept, not %d", (Size) stats.batches, published);
}

/* ---- the steps ---- */

/* A live batch in this state, -1 if there is none. */
static int
choose_batch(ModelState state)
{
	int			first = 0;
	int			end;

	while (first < nalive && alive[first].state != state)
		first++;
	end = first;
	while (end < nalive && alive[end].state == state)
		end++;
	if (first == end)
		return -1;

	/* Those at the ends matter most. */
	switch (choose(4))
	{
		case 0:
			return first;
		case 1:
			return end - 1;
		default:
			return first + choose(end - first);
	}
}

static void
reserve(void)
{
	List	   *notifications = NIL;
	PinpointBatchLayout *layout;
	unsigned	count = 1 + choose(choose(4) == 0 ? 200 : 10);
	int			slots[256];
	unsigned	nslots = choose(4) == 0 ? choose(256) : 0;
	PinpointBatch *batch;
	int			error = -1;

	if (nalive == MAX_ALIVE)
		return;
	for (unsigned i = 0; i < count; i++)
		notifications = lappend(notifications, make_notification());
	for (unsigned i = 0; i < nslots; i++)
		slots[i] = 1000 + i;
	layout = pinpoint_batch_layout(notifications);
	if (nslots > 0)
		pinpoint_batch_layout_add_listeners(layout, slots, nslots, 1);
	disk_full = choose(16) == 0;

	batch = pinpoint_message_log_reserve(layout->size, &error);
	if (batch != NULL)
	{
		pinpoint_batch_write(batch, layout);
		alive[nalive++] = (ModelBatch)
		{
			batch, layout->size, RESERVED, 0, 0, notifications, nslots
		};
	}
	else
	{
		if (error != (disk_full ? error : 0) || (error != 0 && error != ENOSPC))
			FAIL("error %d", error);
		if (model_largest_gap(disk_full ? message_log->usable : range_size) >=
			layout->size)
			FAIL("there is room, but none was found");
		free_notifications(notifications);
	}
	free(layout->channels);
	free(layout->numbers);
	free(layout);
}

static void
withdraw(void)
{
	int			i = choose_batch(RESERVED);
	PinpointBatch *batch;

	if (i < 0)
		return;
	batch = alive[i].batch;
	forget(i);
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_message_log_withdraw(batch);
	LWLockRelease(PinpointOrderLock);
}

/* What is published is pinned, or comes after something that is. */
static void
publish(void)
{
	int			i = choose_batch(RESERVED);
	int			place = 0;
	ModelBatch	m;

	if (i < 0)
		return;
	m = alive[i];
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_batch_become_published(m.batch)->sequence =
		pinpoint_message_log_next_sequence();
	pinpoint_message_log_append(m.batch);
	m.epoch = pinpoint_batch_published(m.batch)->epoch;
	if (alive[0].state != PUBLISHED || choose(2) == 0)
	{
		pinpoint_message_log_pin(m.epoch);
		m.pins++;
	}
	if (pinpoint_message_log_last() != m.batch)
		FAIL("the last batch is not the last");
	LWLockRelease(PinpointOrderLock);

	m.state = PUBLISHED;
	memmove(&alive[i], &alive[i + 1], (nalive - i - 1) * sizeof(ModelBatch));
	while (place < nalive - 1 && alive[place].state == PUBLISHED)
		place++;
	memmove(&alive[place + 1], &alive[place],
			(nalive - 1 - place) * sizeof(ModelBatch));
	alive[place] = m;
}

/* Another listener, or one that reads on, pins a batch. */
static void
pin(void)
{
	int			i = choose_batch(PUBLISHED);

	if (i < 0)
		return;
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_message_log_pin(alive[i].epoch);
	LWLockRelease(PinpointOrderLock);
	alive[i].pins++;
}

/* What is freed may be on the disk only, so it must not be touched. */
static void
unpin(int i)
{
	if (i < 0 || alive[i].pins == 0)
		return;
	for (int j = 0; j < nalive && alive[j].state == PUBLISHED; j++)
		ASAN_POISON_MEMORY_REGION(alive[j].batch, alive[j].size);
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	if (pinpoint_message_log_unpin(alive[i].epoch))
		pinpoint_message_log_trim();
	for (int j = 0; j < nalive && alive[j].state == PUBLISHED; j++)
		ASAN_UNPOISON_MEMORY_REGION(alive[j].batch, alive[j].size);
	alive[i].pins--;
	LWLockRelease(PinpointOrderLock);
	model_trim();
}

static void
give_back(void)
{
	pinpoint_message_log_give_back();
}

static void
drain(void)
{
	while (nalive > 0)
	{
		int			pinned = 0;

		while (pinned < nalive && alive[pinned].pins == 0)
			pinned++;
		if (pinned < nalive)
			unpin(pinned);
		else
			withdraw();
	}
	while (pinpoint_message_log_give_back())
		 /* loop */ ;
	if (log_blocks->nused != 0 || message_log->last != NULL ||
		message_log->kept != 0 || message_log->usable != message_log->memory)
		FAIL("something is left");
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	choices = data;
	nchoices = size;
	nalive = 0;
	PinpointOrderLock = &order_lock.lock;
	PinpointStorageLock = &storage_lock.lock;

	range_size = (4 + choose(60)) * PAGE;
	memory_size = (1 + choose(4)) * 2 * PAGE;
	memory_size = Min(memory_size, range_size);
	range = aligned_alloc(PAGE, range_size);
	IsUnderPostmaster = false;
	pinpoint_message_log_shmem_init(calloc(1,
										   pinpoint_message_log_shmem_size()));
	IsUnderPostmaster = true;

	while (nchoices > 0)
	{
		unsigned	step = choose(16);

		if (step < 5)
			reserve();
		else if (step < 7)
			withdraw();
		else if (step < 10)
			publish();
		else if (step < 11)
			pin();
		else if (step < 15)
			unpin(choose_batch(PUBLISHED));
		else
			give_back();
		check_log();
		if (nalive > 0)
			check_contents(&alive[choose(nalive)]);
	}
	drain();

	ASAN_UNPOISON_MEMORY_REGION(range, range_size);
	free(range);
	free(message_log);
	return 0;
}

#ifdef STANDALONE
/*
 * Without libFuzzer: so many random inputs.
 */
int
main(int argc, char **argv)
{
	unsigned	ninputs = argc > 1 ? atoi(argv[1]) : 1000;
	uint64		random = argc > 2 ? atoi(argv[2]) : 1;
	uint8_t		input[4096];

	random = random * UINT64CONST(0x9e3779b97f4a7c15) + 1;
	for (unsigned i = 0; i < ninputs; i++)
	{
		for (size_t j = 0; j < sizeof(input); j++)
		{
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			input[j] = (uint8_t) (random >> 32);
		}
		LLVMFuzzerTestOneInput(input, sizeof(input));
	}
	printf("%u inputs\n", ninputs);
	return 0;
}
#endif
