/*-------------------------------------------------------------------------
 *
 * blocks.c
 *		The space of the message log, in blocks of a fixed size.
 *
 * The address range of the log (see log_storage.c) is divided into blocks.  A
 * few arrays in main shared memory contain all data that is needed to reserve
 * and to free space.  The functions below never read a batch, and so never the
 * file of the log.  Freeing 8 GB takes hardly longer than freeing 8 kB.
 *
 * One block is open: new batches are placed in it, one after the other.  A
 * batch that does not fit into the rest of the open block is placed in the
 * lowest free blocks that it fits into.  If these are above the open block,
 * and the batch can continue in the blocks after the open block, it begins in
 * the open block.  The last block of the batch is then the open block.  A
 * reservation fails only if neither is possible.
 *
 * A block is in use while it contains a batch that is not published yet, or
 * one that is published and kept.  The block counts the former.  For the
 * latter it stores the epoch of the last publication.  An epoch is a group of
 * publications; message_log.c determines from which epoch on batches are kept.
 * A closed block without unpublished batches is added to the list of its
 * epoch, as this epoch cannot change any more.  When an epoch is no longer
 * kept, the blocks in its list are free.
 *
 * The space of withdrawn batches, and of batches without listeners, is free
 * when their block is free.  At the end of the open block, it is reused when
 * the block contains no unpublished batch any more.
 *
 * The work of one call is bounded by the number of blocks (MAX_BLOCKS).  Nearly
 * always, it is the work for one or two blocks.
 *
 * The caller of a function that changes or reads single blocks holds
 * PinpointOrderLock exclusively.
 *
 * A build with assertions overwrites the beginning of a block that becomes
 * free, and the space in the open block that will be reused.  When the block
 * is taken again, it must still have these contents.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"

#include "base/check.h"
#include "queue/blocks.h"
#include "queue/log_storage.h"

#define NO_BLOCK			(-1)
#define BITS_PER_WORD		64

/* With assertions: Block.next of a free block that was overwritten. */
#define OVERWRITTEN			(-2)

/* So many bytes of a free block are overwritten at most. */
#define MAX_OVERWRITTEN		((Size) 65536)

/* All fields are protected by PinpointOrderLock. */
typedef struct Block
{
	uint64		epoch;			/* of the last publication; 0 if none */
	uint32		unpublished;	/* batches reserved and not yet published */
	int32		next;			/* in the list of its epoch */
} Block;

/*
 * The fields of the first group are constant, but not the contents of the
 * arrays.  All others are protected by PinpointOrderLock, except that
 * pinpoint_blocks_use_file() reads nfile_blocks without it.
 */
typedef struct LogBlocks
{
	Size		capacity;		/* bytes of the whole range */
	Size		memory;			/* bytes at its beginning that need no file */
	Size		block_size;		/* a power of two */
	int			nblocks;		/* the last one may be smaller */
	int			nepochs;		/* length of epoch_lists */
	Block	   *blocks;			/* array of nblocks elements */
	int32	   *epoch_lists;	/* first block, by epoch modulo nepochs */
	uint64	   *free_bits;		/* a bit for each block, set if it is free */

	int			open;			/* the open block, NO_BLOCK if none */
	Size		cursor;			/* offset in the range for the next batch in
								 * it */
	Size		published_end;	/* highest end of a published batch in it, as
								 * an offset in the range; valid if its epoch
								 * is kept */
	int			nused;			/* number of blocks in use, including the open
								 * one */
	int			nfile_blocks;	/* number of these that need the file */
	int			lowest_free;	/* no block below this one is free */
	uint64		oldest_epoch;	/* batches of this epoch and later are kept */
#ifdef USE_ASSERT_CHECKING
	uint64		nchanges;		/* see check_changed_blocks() */
#endif
} LogBlocks;

static LogBlocks *log_blocks = NULL;

static uint32 number_of_blocks(void);
static Size free_words(uint32 nblocks);
static Size block_start(int block);
static Size block_end(int block);
static int	block_at(Size offset);
static bool is_free(int block);
static bool is_kept(int block);
static void take_block(int block);
static void free_block(int block);
static void close_open_block(void);
static void settle(int block);
static bool fits_in_open_block(Size size);
static bool extend_open_block(Size size, Size usable, Size *offset);
static bool find_free_run(Size size, Size usable, int *first);
static int	next_free(int block);
static void occupy(Size offset, Size size);
static void check_changed_blocks(Size offset, Size size);
#ifdef USE_ASSERT_CHECKING
static bool is_settled(int block);
static void check_block(int block);
static void overwrite(Size from, Size to);
static bool is_overwritten(int block);
#endif

/*
 * Size of a block in bytes: the lowest power of two, not below MIN_BLOCK_SIZE,
 * with which there are at most MAX_BLOCKS blocks.
 */
#define MAX_BLOCKS			32768
#define MIN_BLOCK_SIZE		((Size) 8192)

Size
pinpoint_blocks_size(void)
{
	Size		block_size = MIN_BLOCK_SIZE;

	while (block_size * MAX_BLOCKS < pinpoint_log_storage_requested_size())
		block_size *= 2;
	return block_size;
}

static uint32
number_of_blocks(void)
{
	Size		block_size = pinpoint_blocks_size();

	return (uint32) ((pinpoint_log_storage_requested_size() + block_size - 1) /
					 block_size);
}

/*
 * Number of words of a bitmap of all blocks.
 */
static Size
free_words(uint32 nblocks)
{
	return (nblocks + BITS_PER_WORD - 1) / BITS_PER_WORD;
}

/*
 * Number of epochs that can be in use at once: an ended epoch that is kept has
 * at least as many bytes as a block (see message_log.c), so at most as many of
 * these as there are blocks, the current one, and a new one until older epochs
 * are released.
 */
uint32
pinpoint_blocks_max_epochs(void)
{
	return number_of_blocks() + 2;
}

Size
pinpoint_blocks_shmem_size(void)
{
	uint32		nblocks = number_of_blocks();
	Size		size = MAXALIGN(sizeof(LogBlocks));

	size = add_size(size, mul_size(nblocks, sizeof(Block)));
	size = add_size(size, MAXALIGN(mul_size(pinpoint_blocks_max_epochs(),
											sizeof(int32))));
	size = add_size(size, mul_size(free_words(nblocks), sizeof(uint64)));
	return size;
}

/*
 * Create the blocks, all free.  Called when the server starts, after the
 * storage was created.
 *
 * memory: of pinpoint_blocks_shmem_size() bytes, zero.
 * first_epoch: number of the first epoch, greater than 0.
 */
void
pinpoint_blocks_shmem_init(void *memory, uint64 first_epoch)
{
	uint32		nblocks = number_of_blocks();
	char	   *arrays;

	Assert(first_epoch > 0);
	log_blocks = memory;
	log_blocks->capacity = pinpoint_log_storage_size();
	log_blocks->memory = pinpoint_log_storage_memory_size();
	log_blocks->block_size = pinpoint_blocks_size();
	log_blocks->nblocks = (int) nblocks;
	log_blocks->nepochs = (int) pinpoint_blocks_max_epochs();
	log_blocks->open = NO_BLOCK;
	log_blocks->oldest_epoch = first_epoch;

	arrays = (char *) log_blocks + MAXALIGN(sizeof(LogBlocks));
	log_blocks->blocks = (Block *) arrays;
	arrays += nblocks * sizeof(Block);
	log_blocks->epoch_lists = (int32 *) arrays;
	arrays += MAXALIGN(log_blocks->nepochs * sizeof(int32));
	log_blocks->free_bits = (uint64 *) arrays;

	for (int i = 0; i < log_blocks->nepochs; i++)
		log_blocks->epoch_lists[i] = NO_BLOCK;
	for (uint32 i = 0; i < nblocks; i++)
		log_blocks->free_bits[i / BITS_PER_WORD] |=
			UINT64CONST(1) << (i % BITS_PER_WORD);
}

/*
 * The offsets in the range where a block begins and ends, and the block that
 * contains an offset.
 */
static Size
block_start(int block)
{
	return (Size) block * log_blocks->block_size;
}

static Size
block_end(int block)
{
	return Min(block_start(block) + log_blocks->block_size,
			   log_blocks->capacity);
}

static int
block_at(Size offset)
{
	Assert(offset < log_blocks->capacity);
	return (int) (offset / log_blocks->block_size);
}

static bool
is_free(int block)
{
	Assert(block >= 0 && block < log_blocks->nblocks);
	return (log_blocks->free_bits[block / BITS_PER_WORD] >>
			(block % BITS_PER_WORD)) & 1;
}

/*
 * Does a block contain a published batch that is kept?
 */
static bool
is_kept(int block)
{
	return log_blocks->blocks[block].epoch >= log_blocks->oldest_epoch &&
		log_blocks->blocks[block].epoch != 0;
}

static void
take_block(int block)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(is_free(block));
	Assert(is_overwritten(block));

	log_blocks->free_bits[block / BITS_PER_WORD] &=
		~(UINT64CONST(1) << (block % BITS_PER_WORD));
	log_blocks->blocks[block].epoch = 0;
	log_blocks->blocks[block].unpublished = 0;
	log_blocks->nused++;
	if (block_end(block) > log_blocks->memory)
		log_blocks->nfile_blocks++;
	if (block == log_blocks->lowest_free)
		log_blocks->lowest_free++;
}

static void
free_block(int block)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(!is_free(block) && log_blocks->blocks[block].unpublished == 0);
	Assert(block != log_blocks->open);
#ifdef USE_ASSERT_CHECKING
	overwrite(block_start(block), block_end(block));
	log_blocks->blocks[block].next = OVERWRITTEN;
#endif

	log_blocks->free_bits[block / BITS_PER_WORD] |=
		UINT64CONST(1) << (block % BITS_PER_WORD);
	log_blocks->nused--;
	if (block_end(block) > log_blocks->memory)
		log_blocks->nfile_blocks--;
	log_blocks->lowest_free = Min(log_blocks->lowest_free, block);
}

/*
 * Close the open block, if there is one: no further batch is placed in it.
 */
static void
close_open_block(void)
{
	int			block = log_blocks->open;

	log_blocks->open = NO_BLOCK;
	if (block != NO_BLOCK && log_blocks->blocks[block].unpublished == 0)
		settle(block);
}

/*
 * Handle a closed block without unpublished batches.  It becomes free, now or
 * when its epoch is no longer kept.
 */
static void
settle(int block)
{
	int32	   *list;

	Assert(block != log_blocks->open && !is_free(block));
	Assert(log_blocks->blocks[block].unpublished == 0);
	if (!is_kept(block))
	{
		free_block(block);
		return;
	}
	list = &log_blocks->epoch_lists[log_blocks->blocks[block].epoch %
									log_blocks->nepochs];
	log_blocks->blocks[block].next = *list;
	*list = block;
}

/*
 * Reserve space for a batch.
 *
 * size: bytes, MAXALIGNed.  usable: bytes at the beginning of the range that
 * can be used.  *offset: set to the beginning of the batch.
 *
 * Returns false if there is no space.
 */
bool
pinpoint_blocks_reserve(Size size, Size usable, Size *offset)
{
	int			first;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(size > 0 && size == MAXALIGN(size) &&
		   usable <= log_blocks->capacity);

	if (fits_in_open_block(size))
	{
		*offset = log_blocks->cursor;
		occupy(*offset, size);
		return true;
	}

	/* Prefer low blocks: they are in memory, and in the caches. */
	if (!find_free_run(size, usable, &first))
		return extend_open_block(size, usable, offset);
	if (first > log_blocks->open && extend_open_block(size, usable, offset))
		return true;

	close_open_block();
	*offset = block_start(first);
	log_blocks->open = first;
	take_block(first);
	occupy(*offset, size);
	return true;
}

static bool
fits_in_open_block(Size size)
{
	int			block = log_blocks->open;

	return block != NO_BLOCK && block_end(block) - log_blocks->cursor >= size;
}

/*
 * Reserve space for a batch that begins in the open block and continues in the
 * free blocks after it.  Returns false if this is not possible.
 */
static bool
extend_open_block(Size size, Size usable, Size *offset)
{
	int			block = log_blocks->open;
	Size		end;

	if (block == NO_BLOCK)
		return false;

	/* If the block is full, the batch would begin in the next one. */
	end = block_end(block);
	if (log_blocks->cursor == end)
		return false;
	while (end - log_blocks->cursor < size)
	{
		if (++block == log_blocks->nblocks || !is_free(block) ||
			block_end(block) > usable)
			return false;
		end = block_end(block);
	}
	*offset = log_blocks->cursor;
	occupy(*offset, size);
	return true;
}

/*
 * Add a batch that begins in the open block to all its blocks, and take those
 * after the open block.  The last one becomes the open block.
 */
static void
occupy(Size offset, Size size)
{
	int			last = block_at(offset + size - 1);

	log_blocks->blocks[log_blocks->open].unpublished++;
	while (log_blocks->open < last)
	{
		/* The block contains this unpublished batch: no settle(). */
		log_blocks->open++;
		take_block(log_blocks->open);
		log_blocks->blocks[log_blocks->open].unpublished++;
	}
	log_blocks->cursor = offset + size;
	check_changed_blocks(offset, size);
}

/*
 * Find the lowest sequence of free blocks with space for a batch.
 *
 * *first: set to the first of these blocks.  Returns false if there are none.
 */
static bool
find_free_run(Size size, Size usable, int *first)
{
	int			block = next_free(log_blocks->lowest_free);

	log_blocks->lowest_free = block;
	while (block < log_blocks->nblocks)
	{
		int			end = block;

		while (end < log_blocks->nblocks && is_free(end) &&
			   block_end(end) <= usable)
		{
			if (block_end(end) - block_start(block) >= size)
			{
				*first = block;
				return true;
			}
			end++;
		}
		if (end < log_blocks->nblocks && is_free(end))
			return false;		/* all blocks from here on are above usable */
		block = next_free(end);
	}
	return false;
}

/*
 * The first free block from a given one on, or nblocks if there is none.
 */
static int
next_free(int block)
{
	while (block < log_blocks->nblocks)
	{
		uint64		word = log_blocks->free_bits[block / BITS_PER_WORD] >>
			(block % BITS_PER_WORD);

		if (word != 0)
			return block + pg_rightmost_one_pos64(word);
		block = (block / BITS_PER_WORD + 1) * BITS_PER_WORD;
	}
	return log_blocks->nblocks;
}

/*
 * How many bytes at the beginning of the range must be usable, so that a batch
 * of size bytes can be reserved?  Returns 0 if the whole range is not
 * sufficient.
 */
Size
pinpoint_blocks_needed(Size size)
{
	int			block = log_blocks->open;
	int			first;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(size > 0 && size == MAXALIGN(size));

	if (block != NO_BLOCK && log_blocks->cursor < block_end(block))
	{
		while (block_end(block) - log_blocks->cursor < size &&
			   block + 1 < log_blocks->nblocks && is_free(block + 1))
			block++;
		if (block_end(block) - log_blocks->cursor >= size)
			return block_end(block);
	}
	if (!find_free_run(size, log_blocks->capacity, &first))
		return 0;
	return block_end(block_at(block_start(first) + size - 1));
}

/*
 * A batch is published.
 *
 * offset, size: of the batch, in bytes.  epoch: the epoch of the publication,
 * which is kept.
 */
void
pinpoint_blocks_publish(Size offset, Size size, uint64 epoch)
{
	int			last = block_at(offset + size - 1);

	AssertHeldExclusive(PinpointOrderLock);
	Assert(epoch >= log_blocks->oldest_epoch);

	for (int i = block_at(offset); i <= last; i++)
	{
		Block	   *block = &log_blocks->blocks[i];

		Assert(!is_free(i) && block->epoch <= epoch);
		if (i == log_blocks->open)
			log_blocks->published_end = is_kept(i) ?
				Max(log_blocks->published_end, offset + size) : offset + size;
		block->epoch = epoch;
		Assert(block->unpublished > 0);
		if (--block->unpublished == 0 && i != log_blocks->open)
			settle(i);
	}
	check_changed_blocks(offset, size);
}

/*
 * A batch will not be published.  Those of its blocks that contain no other
 * batch become free.  If the open block contains only published batches then,
 * its space after these is reused.
 *
 * offset, size: of the batch, in bytes.
 */
void
pinpoint_blocks_withdraw(Size offset, Size size)
{
	int			last = block_at(offset + size - 1);

	AssertHeldExclusive(PinpointOrderLock);
	for (int i = block_at(offset); i <= last; i++)
	{
		Block	   *block = &log_blocks->blocks[i];

		Assert(!is_free(i));
		Assert(block->unpublished > 0);
		if (--block->unpublished > 0)
			continue;
		if (i == log_blocks->open && is_kept(i))
		{
#ifdef USE_ASSERT_CHECKING
			overwrite(log_blocks->published_end, log_blocks->cursor);
#endif
			log_blocks->cursor = log_blocks->published_end;
		}
		else if (i == log_blocks->open)
			close_open_block();
		else
			settle(i);
	}
	check_changed_blocks(offset, size);
}

/*
 * Batches of this epoch and later are kept.  The caller holds
 * PinpointOrderLock, shared or exclusive.
 */
uint64
pinpoint_blocks_oldest_epoch(void)
{
	AssertHeld(PinpointOrderLock);
	return log_blocks->oldest_epoch;
}

/*
 * Batches that were published before an epoch are no longer kept: free their
 * blocks.
 */
void
pinpoint_blocks_release_before(uint64 epoch)
{
	int			open = log_blocks->open;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(epoch >= log_blocks->oldest_epoch);

	while (log_blocks->oldest_epoch < epoch)
	{
		int32	   *list = &log_blocks->epoch_lists[log_blocks->oldest_epoch++ %
													log_blocks->nepochs];

		while (*list != NO_BLOCK)
		{
			int			block = *list;

			Assert(log_blocks->blocks[block].epoch + 1 ==
				   log_blocks->oldest_epoch);
			*list = log_blocks->blocks[block].next;
			free_block(block);
		}
	}

	if (open != NO_BLOCK && log_blocks->blocks[open].unpublished == 0 &&
		!is_kept(open))
		close_open_block();
	check_changed_blocks(0, 1);
}

/*
 * Size of all blocks that are in use, in bytes.  The caller holds
 * PinpointOrderLock, shared or exclusive.
 */
Size
pinpoint_blocks_used(void)
{
	AssertHeld(PinpointOrderLock);
	return Min((Size) log_blocks->nused * log_blocks->block_size,
			   log_blocks->capacity);
}

/*
 * Is a block of the file in use?  Needs no lock if an outdated answer is
 * sufficient.
 */
bool
pinpoint_blocks_use_file(void)
{
	return *(volatile int *) &log_blocks->nfile_blocks > 0;
}

/*
 * In a build with assertions: check what a change of a part of the range can
 * have broken.  The caller holds PinpointOrderLock exclusively.
 *
 * Each change checks its own blocks, and now and then all blocks: so seldom
 * that a change checks a few blocks on average.
 */
static void
check_changed_blocks(Size offset, Size size)
{
#ifdef USE_ASSERT_CHECKING
	int			last = block_at(offset + size - 1);

	for (int i = block_at(offset); i <= last; i++)
		check_block(i);
	if (log_blocks->open != NO_BLOCK)
		check_block(log_blocks->open);
	if (++log_blocks->nchanges % (log_blocks->nblocks / 64 + 1) == 0)
		pinpoint_blocks_check();
#endif
}

#ifdef USE_ASSERT_CHECKING
/*
 * Is a block in the list of its epoch?
 */
static bool
is_settled(int block)
{
	return !is_free(block) && block != log_blocks->open &&
		log_blocks->blocks[block].unpublished == 0;
}

static void
check_block(int i)
{
	const Block *block = &log_blocks->blocks[i];

	if (is_free(i))
	{
		Assert(i != log_blocks->open);
		Assert(i >= log_blocks->lowest_free);
		Assert(block->unpublished == 0);
	}
	else if (is_settled(i))
	{
		Assert(is_kept(i));
		Assert(block->next == NO_BLOCK ||
			   (block->next >= 0 && block->next < log_blocks->nblocks));
	}
	if (i == log_blocks->open)
	{
		/* An open block without any batch would have been closed. */
		Assert(block->unpublished > 0 || is_kept(i));
		Assert(log_blocks->cursor > block_start(i) &&
			   log_blocks->cursor <= block_end(i));
		Assert(!is_kept(i) ||
			   (log_blocks->published_end > block_start(i) &&
				log_blocks->published_end <= log_blocks->cursor));
	}
}

/*
 * Check all blocks and the lists of epochs.  The caller holds
 * PinpointOrderLock.
 */
void
pinpoint_blocks_check(void)
{
	int			nused = 0;
	int			nfile_blocks = 0;
	int			nsettled = 0;
	int			nlisted = 0;

	AssertHeld(PinpointOrderLock);
	for (int i = 0; i < log_blocks->nblocks; i++)
	{
		check_block(i);
		if (is_free(i))
			continue;
		nused++;
		if (block_end(i) > log_blocks->memory)
			nfile_blocks++;
		if (is_settled(i))
			nsettled++;
	}
	Assert(nused == log_blocks->nused);
	Assert(nfile_blocks == log_blocks->nfile_blocks);

	for (int i = 0; i < log_blocks->nepochs; i++)
	{
		for (int block = log_blocks->epoch_lists[i]; block != NO_BLOCK;
			 block = log_blocks->blocks[block].next)
		{
			Assert(is_settled(block));
			Assert(log_blocks->blocks[block].epoch % log_blocks->nepochs ==
				   (uint64) i);
			nlisted++;
			Assert(nlisted <= nsettled);
		}
	}
	Assert(nlisted == nsettled);
}

/*
 * Overwrite a part of the range that is free.
 */
static void
overwrite(Size from, Size to)
{
	if (to > from)
		pinpoint_log_storage_overwrite(from, Min(to - from, MAX_OVERWRITTEN));
}

/*
 * Is a free block as it was when it became free, or was it never in use?
 */
static bool
is_overwritten(int block)
{
	Size		size = block_end(block) - block_start(block);

	return log_blocks->blocks[block].next != OVERWRITTEN ||
		pinpoint_log_storage_is_overwritten(block_start(block),
											Min(size, MAX_OVERWRITTEN));
}
#endif
