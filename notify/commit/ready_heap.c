/*-------------------------------------------------------------------------
 *
 * ready_heap.c
 *		The heap of committed batches that are not published yet, ordered by
 *		stamp.
 *
 * It is a leftist heap: a binary tree in which no batch comes before its
 * parent, and in which the path of right children is the shortest path from
 * any batch to a missing child.  Its length is heap_rank, which is at most the
 * logarithm of the number of batches below.  Insertion and removal follow only
 * such paths.  (PostgreSQL's pairing heap is faster on average.  But the
 * removal of the first of N batches can take N steps.)
 *
 * PinpointOrderLock protects the heap, and the callers hold it exclusively.  A
 * heap is a pointer to its first batch, NULL if it is empty.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/settings.h"
#include "commit/ready_heap.h"

static bool comes_before(const PinpointBatchReady *a,
						 const PinpointBatchReady *b);
static PinpointBatch *merge_heaps(PinpointBatch *a, PinpointBatch *b);

/*
 * Insert a batch that has become READY; its stamp and turn are set.  Returns
 * the new heap.
 */
PinpointBatch *
pinpoint_ready_heap_insert(PinpointBatch *heap, PinpointBatch *batch)
{
	PinpointBatchReady *ready = pinpoint_batch_ready(batch);

	AssertHeldExclusive(PinpointOrderLock);
	Assert(ready->turn != 0);

	ready->left = NULL;
	ready->right = NULL;
	batch->heap_rank = 1;
	return merge_heaps(heap, batch);
}

/*
 * Remove the first batch of a heap that is not empty.  Returns the new heap.
 */
PinpointBatch *
pinpoint_ready_heap_remove_first(PinpointBatch *heap)
{
	PinpointBatchReady *first = pinpoint_batch_ready(heap);

	AssertHeldExclusive(PinpointOrderLock);
	return merge_heaps(first->left, first->right);
}

/*
 * Must batch a be published before batch b?
 */
static bool
comes_before(const PinpointBatchReady *a, const PinpointBatchReady *b)
{
	if (a->stamp != b->stamp && !PINPOINT_FAULT(ARRIVAL_ORDER))
		return a->stamp < b->stamp;
	return a->turn < b->turn;
}

/*
 * Merge two heaps, each NULL if empty.  Returns the new heap.
 *
 * The paths of right children of the two heaps are merged in order.  After
 * that, children on this path are swapped where the right one has become the
 * one with the higher rank.
 */
static PinpointBatch *
merge_heaps(PinpointBatch *a, PinpointBatch *b)
{
	PinpointBatchReady *first;
	uint8		left_rank;
	uint8		right_rank;

	if (a == NULL)
		return b;
	if (b == NULL)
		return a;

	if (comes_before(pinpoint_batch_ready(b), pinpoint_batch_ready(a)))
	{
		PinpointBatch *swap = a;

		a = b;
		b = swap;
	}
	first = pinpoint_batch_ready(a);
	first->right = merge_heaps(first->right, b);

	left_rank = first->left ? first->left->heap_rank : 0;
	right_rank = first->right->heap_rank;
	if (left_rank < right_rank)
	{
		PinpointBatch *swap = first->left;

		first->left = first->right;
		first->right = swap;
	}
	a->heap_rank = Min(left_rank, right_rank) + 1;
	return a;
}

#ifdef USE_ASSERT_CHECKING
/*
 * Check the invariants of a heap, for at most "limit" of its batches.  Returns
 * the number of batches that were checked.
 *
 * *nturns is incremented for each of these whose turn is at most "turn".
 */
uint32
pinpoint_ready_heap_check(PinpointBatch *heap, uint32 limit, uint64 turn,
						  uint32 *nturns)
{
	uint32		n = 0;

	/*
	 * Paths of left children can be long.  The limit also bounds the
	 * recursion.
	 */
	while (heap != NULL && n < limit)
	{
		const PinpointBatchReady *ready = pinpoint_batch_ready(heap);
		uint8		left_rank = ready->left ? ready->left->heap_rank : 0;
		uint8		right_rank = ready->right ? ready->right->heap_rank : 0;

		Assert(left_rank >= right_rank && heap->heap_rank == right_rank + 1);
		Assert(ready->left == NULL ||
			   !comes_before(pinpoint_batch_ready(ready->left), ready));
		Assert(ready->right == NULL ||
			   !comes_before(pinpoint_batch_ready(ready->right), ready));
		n++;
		if (ready->turn <= turn)
			(*nturns)++;
		n += pinpoint_ready_heap_check(ready->right, limit - n, turn, nturns);
		heap = ready->left;
	}
	return n;
}
#endif
