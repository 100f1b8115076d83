/*-------------------------------------------------------------------------
 *
 * ready_heap.c
 *		The heap of committed batches that are not published yet, ordered by stamp.
 *
 * It is a leftist heap: a binary tree in which no batch comes before its parent, and in
 * which the path of right children is the shortest path from any batch to a missing
 * child.  Its length is heap_rank, which is at most the logarithm of the number of
 * batches below.  Insertion and removal follow only such paths.  (PostgreSQL's pairing
 * heap is faster on average.  But the removal of the first of N batches can take N
 * steps.)
 *
 * PinpointOrderLock protects the heap, and the callers hold it exclusively.  A heap is
 * a pointer to its first batch, NULL if it is empty.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/settings.h"
#include "commit/ready_heap.h"

static bool comes_before(PinpointBatch *a, PinpointBatch *b);
static PinpointBatch *merge_heaps(PinpointBatch *a, PinpointBatch *b);

/*
 * Insert a batch, whose stamp and turn are set.  Returns the new heap.
 */
PinpointBatch *
pinpoint_ready_heap_insert(PinpointBatch *heap, PinpointBatch *batch)
{
	batch->heap.left = NULL;
	batch->heap.right = NULL;
	batch->heap_rank = 1;
	return merge_heaps(heap, batch);
}

/*
 * Remove the first batch of a heap that is not empty.  Returns the new heap.
 */
PinpointBatch *
pinpoint_ready_heap_remove_first(PinpointBatch *heap)
{
	return merge_heaps(heap->heap.left, heap->heap.right);
}

/*
 * Must batch a be published before batch b?
 */
static bool
comes_before(PinpointBatch *a, PinpointBatch *b)
{
	if (a->order != b->order && pinpoint_fault != PINPOINT_FAULT_ARRIVAL_ORDER)
		return a->order < b->order;
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
	uint32		left_rank;
	uint32		right_rank;

	if (a == NULL)
		return b;
	if (b == NULL)
		return a;

	if (comes_before(b, a))
	{
		PinpointBatch *swap = a;

		a = b;
		b = swap;
	}
	a->heap.right = merge_heaps(a->heap.right, b);

	left_rank = a->heap.left ? a->heap.left->heap_rank : 0;
	right_rank = a->heap.right->heap_rank;
	if (left_rank < right_rank)
	{
		PinpointBatch *swap = a->heap.left;

		a->heap.left = a->heap.right;
		a->heap.right = swap;
	}
	a->heap_rank = Min(left_rank, right_rank) + 1;
	return a;
}
