/*-------------------------------------------------------------------------
 *
 * commit_order.c
 *		Parallel commits, with notifications in commit order.
 *
 * PostgreSQL promises that notifications of different transactions arrive in the order
 * in which the transactions committed.  It keeps the promise by letting only one
 * notifying transaction commit at a time.  Here, commits run in parallel, and only the
 * publication of their notifications is ordered.
 *
 * The order of commits is the order of commit records in the WAL.
 *
 *	prepare		before commit: reserve space for the batch, and write it.  After
 *				this step, no step can fail for lack of space.
 *	announce	before commit, as late as possible, under PinpointOrderLock:
 *				append the batch to the in-flight list, with the current WAL
 *				insert position as its lower bound.  The commit record will be
 *				inserted after that position.  Bounds are read under the lock
 *				and positions only grow, so the list is ordered by bound.
 *	stamp		after the commit record is written: its end position is the
 *				position of the batch in the commit order.  A transaction without
 *				XID writes no commit record; its position is directly after the
 *				record that was inserted last.
 *	publish		after the locks of the transaction are released: move the batch
 *				from the in-flight list to the ready heap, which is ordered by
 *				stamp.  Then publish every batch of the heap whose stamp is not
 *				above the bound of the oldest batch in flight.
 *	withdraw	if the transaction aborts instead: remove the batch from the
 *				in-flight list, and publish the batches that waited for it.
 *
 * Why no batch is published too early.  Let R be ready with stamp r, and X a
 * transaction whose commit record ends at x < r.  X inserted its record before R did,
 * because WAL positions are assigned in the order of insertion, and X was announced
 * before that.  So when R is moved to the ready heap, one of three cases applies: X is
 * in flight, with a bound below x and hence below r, and R is held back; or X is in
 * the ready heap before R; or X is published.
 *
 * Positions are multiples of 8, so "directly after" is one byte further: after every
 * record that ends there, and before all others.  A commit that is being announced
 * cannot get a lower stamp than that, so bounds are one byte further, too.  Two equal
 * stamps belong to two concurrent transactions without a commit record.  These are
 * published in the order in which they became ready.
 *
 * Why no session waits.  A session moves its batch to the ready heap and continues,
 * whether or not the batch was published.  A batch that is held back is published by
 * the session that completes or aborts the commit that holds it back.  So the list and
 * the heap contain batches, not sessions: a session may have many batches held back
 * and one in flight.
 *
 * Why a listener sees the rows.  A batch becomes ready only after its transaction is
 * visible to all new snapshots and its locks are released.  It is published after
 * that, by any session.
 *
 * Positions.  A batch is counted (see positions.c) when it becomes ready.  The heap
 * does not show the number up to which all counted batches are published: it is
 * ordered by stamp, so its first batch need not have the lowest number.  A search of
 * the heap under the lock would take too long.  Therefore batches are observed in
 * rounds.  At the start of a round, the counter and the number of batches in the heap
 * are stored.  When as many of these have been published, all batches up to that
 * counter are published, and the next round begins.  The resulting number is at most
 * as old as two of the longest waits in the heap.
 *
 * The lock.  All work under PinpointOrderLock is bounded.  Adding a batch to the heap
 * or removing it takes a number of steps in proportion to the logarithm of the heap's
 * size.  A look-up of the listeners of a batch covers at most
 * PINPOINT_CHANNELS_LOOKED_UP channels (see wakeup.c).  After a number of batches, the
 * lock is released and taken again.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "base/counters.h"
#include "base/locks.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "commit/commit_order.h"
#include "commit/positions.h"
#include "commit/wal_messages.h"
#include "listener/slow_listener.h"
#include "queue/message_log.h"
#include "wakeup/wakeup.h"

/*
 * All fields are protected by PinpointOrderLock.
 *
 * The ready heap is a leftist heap: a binary tree in which no batch comes
 * before its parent, and in which the path of right children is the shortest
 * path from any batch to a missing child.  Its length is heap_rank, which is
 * at most the logarithm of the number of batches below.  Insertion and removal
 * follow only such paths.  (PostgreSQL's pairing heap is faster on average.
 * But the removal of the first of N batches can take N steps.)
 */
typedef struct CommitOrder
{
	dlist_head	in_flight;		/* batches whose transactions are committing,
								 * ordered by lower bound */
	PinpointBatch *ready;		/* heap of committed batches that are not
								 * published yet, ordered by stamp; NULL if
								 * empty */
	uint64		nin_flight;		/* number of batches in each of the two */
	uint64		nready;
	uint64		turn;			/* number of batches that ever became ready */

	/*
	 * Valid while nready is not 0: all batches that are counted up to this
	 * value of the counter of positions.c are published.
	 */
	uint64		published;

	/*
	 * The current round: "published" is set to round_counter when the nround
	 * ready batches whose turn is at most round_turn are published.
	 */
	uint64		round_counter;
	uint64		round_turn;
	uint64		nround;
} CommitOrder;

static CommitOrder *commit_order = NULL;

static XLogRecPtr behind_last_record(void);
static int	oldest_sender(void);
static void leave_in_flight(PinpointBatch *batch);
static bool comes_before(PinpointBatch *a, PinpointBatch *b);
static PinpointBatch *merge_heaps(PinpointBatch *a, PinpointBatch *b);
static void insert_ready(PinpointBatch *batch);
static void remove_first_ready(void);
static bool may_publish(PinpointBatch *batch);
static void begin_round(void);
static void publish(PinpointBatch *batch);
static void append_and_collect(PinpointBatch *batch, uint64 sequence, int nfound);
static void publish_ready(void);
static void count_held_back(PinpointBatch *batch);

Size
pinpoint_commit_order_shmem_size(void)
{
	return MAXALIGN(sizeof(CommitOrder));
}

void
pinpoint_commit_order_shmem_init(void)
{
	bool		found;

	commit_order = ShmemInitStruct("pg_pinpoint commit order",
								   pinpoint_commit_order_shmem_size(),
								   &found);
	if (!found)
	{
		memset(commit_order, 0, sizeof(CommitOrder));
		dlist_init(&commit_order->in_flight);
	}
}

/*
 * The first position in the commit order after all commit records so far.
 */
static XLogRecPtr
behind_last_record(void)
{
	return GetXLogInsertRecPtr() + 1;
}

/*
 * Make the batch of this transaction.  Called before the commit.
 *
 * notifications: a list of PinpointNotifications, at least one.
 *
 * Errors: out of memory, queue full, disk full.
 */
void
pinpoint_commit_order_prepare(List *notifications)
{
	PinpointBatchLayout *layout;
	PinpointBatch *batch;
	int			error;

	layout = pinpoint_batch_layout(notifications);
	pinpoint_wakeup_find_early(layout);

	batch = pinpoint_message_log_reserve(layout->size, &error);
	if (batch == NULL && error == 0)
		pinpoint_report_queue_full(layout->size, oldest_sender());
	else if (batch == NULL)
		pinpoint_report_no_disk_space(error);

	PinpointMyTransaction.batch = batch;
	pinpoint_transaction_enter(PINPOINT_RESERVED);
	pinpoint_batch_write(batch, layout);
	pinpoint_positions_prepare(batch);
}

/*
 * Announce the commit of this transaction.  This is the last step before the
 * commit.  Batches that commit later are held back until this one is ready or
 * withdrawn.
 *
 * Errors: out of memory, those of writing WAL.
 */
void
pinpoint_commit_order_announce(void)
{
	PinpointBatch *batch = PinpointMyTransaction.batch;

	if (pinpoint_replicate_notifications && XLogIsNeeded())
		pinpoint_wal_messages_write(batch);

	pinpoint_order_lock_acquire("announce");
	batch->order = behind_last_record();
	dlist_push_tail(&commit_order->in_flight, &batch->in_flight);
	commit_order->nin_flight++;
	pinpoint_order_lock_release();
	pinpoint_transaction_enter(PINPOINT_ANNOUNCED);
}

/*
 * PID of the session whose commit was announced first among those in flight; 0
 * if there is none.
 */
static int
oldest_sender(void)
{
	int			pid = 0;

	LWLockAcquire(PinpointOrderLock, LW_SHARED);
	if (!dlist_is_empty(&commit_order->in_flight))
		pid = dlist_head_element(PinpointBatch, in_flight,
								 &commit_order->in_flight)->sender_pid;
	LWLockRelease(PinpointOrderLock);
	return pid;
}

/*
 * Store the position of this transaction in the commit order.  Called after
 * its commit record is written.
 *
 * Without an XID there is no commit record, and XactLastCommitEnd belongs to
 * an earlier transaction.
 */
void
pinpoint_commit_order_stamp(void)
{
	if (PinpointMyTransaction.batch == NULL)
		return;
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		PinpointMyTransaction.stamp = XactLastCommitEnd;
	else
		PinpointMyTransaction.stamp = behind_last_record();
}

/*
 * Move the batch of this transaction to the ready heap, and publish all
 * batches that can be published.  Called after the commit, when the locks of
 * the transaction are released.  Does not fail.
 */
void
pinpoint_commit_order_publish(void)
{
	PinpointBatch *batch = PinpointMyTransaction.batch;

	Assert(PinpointMyTransaction.phase == PINPOINT_COMMITTED);
	if (batch == NULL)
		return;
	PinpointMyTransaction.batch = NULL;

	pinpoint_order_lock_acquire("publish");
	leave_in_flight(batch);
	batch->order = PinpointMyTransaction.stamp;
	batch->held_back_since = may_publish(batch) ? 0 : GetCurrentTimestamp();
	if (commit_order->nready == 0)
		commit_order->published = pinpoint_positions_counter();
	if (pinpoint_fault != PINPOINT_FAULT_COUNT_LATE)
		pinpoint_positions_count();
	insert_ready(batch);
	publish_ready();
}

/*
 * Publish the batch of a replayed transaction.  The startup process of a
 * standby calls this after it has replayed the commit.  No other process
 * commits there, and commits are replayed in their order, so there is no need
 * to wait.  Does not fail.
 */
void
pinpoint_commit_order_publish_replayed(PinpointBatch *batch)
{
	pinpoint_positions_prepare(batch);

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_positions_count();
	pinpoint_count(batch->dboid, PINPOINT_COUNT_REPLAYED, 1);
	publish(batch);
	pinpoint_wakeup_release_and_send();
}

/*
 * A value of the counter of positions.c: all batches that are counted up to it
 * are published.  The caller holds PinpointOrderLock.
 */
uint64
pinpoint_commit_order_published(void)
{
	return commit_order->nready == 0 ?
		pinpoint_positions_counter() : commit_order->published;
}

/*
 * Publish a heartbeat, which has no transaction.  The caller holds
 * PinpointOrderLock exclusively.  This function releases it.
 */
void
pinpoint_commit_order_publish_heartbeat(PinpointBatch *batch)
{
	uint64		sequence = pinpoint_message_log_next_sequence();

	append_and_collect(batch, sequence, pinpoint_wakeup_find(batch, sequence));
	pinpoint_wakeup_release_and_send();
}

/*
 * Withdraw the batch of this transaction, if there is one: the transaction
 * aborts, or the session ends.  Publishes the batches that it held back.  Does
 * not fail.
 */
void
pinpoint_commit_order_withdraw(void)
{
	PinpointBatch *batch = PinpointMyTransaction.batch;

	if (batch == NULL)
		return;
	PinpointMyTransaction.batch = NULL;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	if (PinpointMyTransaction.phase >= PINPOINT_ANNOUNCED)
		leave_in_flight(batch);
	pinpoint_message_log_withdraw(batch);
	publish_ready();
}

static void
leave_in_flight(PinpointBatch *batch)
{
	dlist_delete(&batch->in_flight);
	commit_order->nin_flight--;
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

static void
insert_ready(PinpointBatch *batch)
{
	batch->turn = ++commit_order->turn;
	batch->heap.left = NULL;
	batch->heap.right = NULL;
	batch->heap_rank = 1;
	commit_order->ready = merge_heaps(commit_order->ready, batch);
	commit_order->nready++;
}

static void
remove_first_ready(void)
{
	PinpointBatch *first = commit_order->ready;

	commit_order->ready = merge_heaps(first->heap.left, first->heap.right);
	commit_order->nready--;

	/* The caller publishes it before it releases the lock. */
	if (first->sequence <= commit_order->round_turn)
		commit_order->nround--;
	if (commit_order->nround == 0)
		begin_round();
}

/*
 * All batches of a round are published: begin the next one.
 */
static void
begin_round(void)
{
	/*
	 * The round may have begun long ago, when the heap was empty.  Then
	 * "published" was set to a higher value since.
	 */
	commit_order->published = Max(commit_order->published,
								  commit_order->round_counter);
	commit_order->round_counter = pinpoint_positions_counter();
	commit_order->round_turn = commit_order->turn;
	commit_order->nround = commit_order->nready;
}

/*
 * Is it certain that no commit in flight comes before this batch?
 */
static bool
may_publish(PinpointBatch *batch)
{
	PinpointBatch *oldest;

	if (pinpoint_fault == PINPOINT_FAULT_ARRIVAL_ORDER ||
		dlist_is_empty(&commit_order->in_flight))
		return true;

	oldest = dlist_head_element(PinpointBatch, in_flight,
								&commit_order->in_flight);
	return batch->order <= oldest->order;
}

/*
 * Publish a batch, and note the sessions to signal.  The caller holds
 * PinpointOrderLock exclusively.
 */
static void
publish(PinpointBatch *batch)
{
	uint64		sequence = pinpoint_message_log_next_sequence();
	int			nfound = pinpoint_wakeup_find(batch, sequence);

	pinpoint_count(batch->dboid, PINPOINT_COUNT_TRANSACTIONS, 1);
	pinpoint_count(batch->dboid, PINPOINT_COUNT_NOTIFICATIONS,
				   batch->nnotifications);

	if (nfound == 0)
		pinpoint_count(batch->dboid, PINPOINT_COUNT_UNHEARD, 1);
	if (pinpoint_fault == PINPOINT_FAULT_COUNT_LATE)
	{
		pinpoint_positions_prepare(batch);
		pinpoint_positions_count();
	}
	append_and_collect(batch, sequence, nfound);
}

/*
 * Add a batch to the end of the log, and notify its listeners.  Without a
 * listener, free its space.
 *
 * nfound: result of pinpoint_wakeup_find().
 */
static void
append_and_collect(PinpointBatch *batch, uint64 sequence, int nfound)
{
	if (nfound == 0)
		pinpoint_message_log_withdraw(batch);
	else
	{
		batch->sequence = sequence;
		batch->published_at = GetCurrentTimestamp();
		pinpoint_message_log_append(batch);
		pinpoint_wakeup_collect(batch, nfound);
	}
}

/*
 * Publish all ready batches that can be published, then signal the sessions
 * that listen.
 *
 * The caller holds PinpointOrderLock exclusively.  This function releases it.
 */
static void
publish_ready(void)
{
	int			in_round = 0;

	while (commit_order->ready != NULL && may_publish(commit_order->ready))
	{
		PinpointBatch *batch = commit_order->ready;

		remove_first_ready();
		if (batch->sender_pid != MyProcPid)
			pinpoint_count(batch->dboid, PINPOINT_COUNT_BY_OTHERS, 1);
		if (batch->held_back_since != 0)
			count_held_back(batch);
		publish(batch);

		/* One slow commit may have held back many batches. */
		pinpoint_wakeup_let_others_in(&in_round);
	}
	pinpoint_wakeup_release_and_send();
}

/*
 * Count a batch that was held back and will now be published.
 */
static void
count_held_back(PinpointBatch *batch)
{
	TimestampTz now = GetCurrentTimestamp();

	pinpoint_count(batch->dboid, PINPOINT_COUNT_HELD_BACK, 1);
	if (now > batch->held_back_since)
		pinpoint_count_max(batch->dboid, PINPOINT_MAX_HELD_BACK,
						   (uint64) (now - batch->held_back_since));
}

/*
 * Data for pinpoint.stat_queue.  The caller holds PinpointOrderLock, shared or
 * exclusive.
 */
void
pinpoint_commit_order_stats(PinpointOrderStats *stats)
{
	stats->in_flight = commit_order->nin_flight;
	stats->held_back = commit_order->nready;
}
