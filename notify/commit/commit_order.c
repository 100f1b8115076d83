/*-------------------------------------------------------------------------
 *
 * commit_order.c
 *		Parallel commits, with notifications in commit order.
 *
 * PostgreSQL promises that notifications of different transactions arrive in
 * the order in which the transactions committed.  It keeps the promise by
 * letting only one notifying transaction commit at a time.  Here, commits run
 * in parallel, and only the publication of their notifications is ordered.
 *
 * The order of commits is the order of commit records in the WAL.
 *
 *	prepare		before commit: reserve space for the batch, and write it.  After
 *				this step, no step can fail for lack of space.
 *	announce	before commit, as late as possible, under PinpointOrderLock:
 *				append the batch to the in-flight list, with the LSN of the end
 *				of the WAL as its lower bound.  The commit record will be
 *				inserted after that.  Bounds are read under the lock and the
 *				WAL only grows, so the list is ordered by bound.
 *	stamp		after the commit record is written: the LSN of its end is the
 *				stamp of the batch.  A transaction without XID writes no commit
 *				record; its stamp is directly after the record that was
 *				inserted last.
 *	publish		after the locks of the transaction are released: move the batch
 *				from the in-flight list to the ready heap, which is ordered by
 *				stamp.  Then publish every batch of the heap whose stamp is not
 *				above the bound of the oldest batch in flight.
 *	withdraw	if the transaction aborts instead: remove the batch from the
 *				in-flight list, and publish the batches that waited for it.
 *
 * Why no batch is published too early.  Let R be a batch with stamp r, and X a
 * transaction whose commit record ends at x < r.
 *
 *	1. X is announced before its commit record is inserted, with a bound below
 *	   x.
 *	2. X inserted its record before R did, because records get their LSNs in
 *	   the order of insertion.  So X was announced before R has its stamp.
 *	3. So when R is moved to the ready heap, one of three cases applies: X is
 *	   in flight, with a bound below x and hence below r; or X is in the ready
 *	   heap, before R; or X is published.
 *	4. Only the first batch of the heap is published, and only if its stamp is
 *	   not above any bound in the in-flight list.  So R is published after X.
 *
 * LSNs are multiples of 8, so "directly after" is one byte further: after
 * every record that ends there, and before all others.  A commit that is being
 * announced cannot get a lower stamp than that, so bounds are one byte
 * further, too.  Two equal stamps belong to two concurrent transactions
 * without a commit record.  These are published in the order in which they
 * became ready.
 *
 * Why no session waits.  A session moves its batch to the ready heap and
 * continues, whether or not the batch was published.  So the list and the heap
 * contain batches, not sessions: a session may have many batches held back and
 * one in flight.
 *
 * Why no session works for others.  One slow commit can hold back a million
 * batches, and all of them can be published when it ends.  A session publishes
 * only as many as the limit of work of one hold of the lock allows (see
 * publication.c), and leaves the rest to the waker.  If the waker makes no
 * progress, the next sessions publish as much as under one hold each, before
 * they commit; see waker_reserve.c.  Why the rest is published:
 *
 *	5. A batch can be published from the moment at which it is in the heap and
 *	   no commit in flight can come before it.  Only three steps cause this: a
 *	   batch is inserted into the heap; a commit leaves the in-flight list; the
 *	   first batch is removed from the heap.  All are done under the lock, in
 *	   publish_ready_and_end(), publish_rest() and publish_part(), or directly
 *	   before these.
 *	6. These functions release the lock in one of five cases: no batch can be
 *	   published; or another process is the publisher; or there is a waker, and
 *	   its latch is set after the release; or this process is the publisher, or
 *	   the waker in its loop, and takes the lock again; or this process is the
 *	   reserve of one of these, and step 13 applies.
 *	7. The publisher (CommitOrder.publisher) does not stop before it has found,
 *	   under the lock, that no batch can be published.  It resets the field
 *	   under the same hold.  So a session that sees a publisher can leave: the
 *	   publisher takes the lock once more, and finds the batch.
 *	8. A session becomes the publisher only if there is no waker, and if its
 *	   own commit has held back the rest: from 6 follows that nothing could be
 *	   published before this hold, and its own batch alone is no rest.
 *	9. The waker does not sleep while a batch can be published.  If its latch
 *	   is set after it has found none, WaitLatch() returns at once.
 *	10. The waker ends: it becomes the publisher and is removed as the waker in
 *	   one hold.  A session that has set its latch before this did so under an
 *	   earlier hold, and the waker as publisher finds the batch.  The next
 *	   waker starts later.
 *	11. The publisher ends by an error, which no function in its loop should
 *	   raise: its exit callback continues.  The session that holds others back
 *	   may end in the same way: the callback publishes or withdraws its batch,
 *	   and then 6 applies.  If a process is killed (SIGKILL), or ends in an
 *	   immediate shutdown, PostgreSQL creates the shared memory again, and the
 *	   heap is empty.
 *	12. During recovery no transaction commits, and the heap is empty.  After
 *	   its end, all of the above applies.
 *	13. The waker, or the publisher, stops at any point and does not continue.
 *	   Each hold of publish_ready_and_end() that leaves a rest increments
 *	   "wanted" before its release (see waker_progress.c).  "finished" is set
 *	   to this value only by a process that has read it, and has found after
 *	   this, under the lock, that no batch can be published.  Until then, each
 *	   session that commits becomes a reserve after PINPOINT_STALL_INTERVAL,
 *	   and the one that has left the rest does so by a timeout.
 *
 * From these steps it follows that no batch stays in the heap while it can be
 * published, even if no other transaction ever commits.  In step 13, this
 * requires that the session that has left the rest is not within a
 * transaction, or that others commit.  A process that stops while it has the
 * lock stops all others that need it.
 *
 * Why the heap does not grow without limit.  Each session that inserts a batch
 * also publishes at least one batch, if any can be published.  So the number
 * of batches that can be published grows only when a slow commit ends,
 * whatever the ratio of senders to the waker is.
 *
 * The order of publication does not depend on the process: each batch is the
 * first of the heap when it is published, and can_publish() was true for it
 * under the same hold of the lock.
 *
 * Why a listener sees the rows.  A batch becomes ready only after its
 * transaction is visible to all new snapshots and its locks are released.  It
 * is published after that, by any session.
 *
 * Positions.  A batch is counted (see positions.c) when it becomes ready.  The
 * heap does not show the number up to which all counted batches are published:
 * it is ordered by stamp, so its first batch need not have the lowest number.
 * A search of the heap under the lock would take too long.  Therefore batches
 * are observed in rounds.  At the start of a round, the counter and the number
 * of batches in the heap are stored.  When as many of these have been
 * published, all batches up to that counter are published, and the next round
 * begins.  The resulting number is at most as old as two of the longest waits
 * in the heap.
 *
 * The lock.  All work under PinpointOrderLock is bounded.  Adding a batch to
 * the heap or removing it takes a number of steps in proportion to the
 * logarithm of the heap's size.  A look-up of the listeners of a batch covers
 * at most PINPOINT_CHANNELS_LOOKED_UP channels.  One hold of the lock
 * publishes one batch, and further batches up to a limit of work: see
 * publication.c.
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
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/counters.h"
#include "base/first_number.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "commit/commit_order.h"
#include "commit/ready_heap.h"
#include "listener/slow_listener.h"
#include "positions/positions.h"
#include "queue/message_log.h"
#include "wakeup/publication.h"
#include "wakeup/waker_list.h"
#include "wakeup/waker_progress.h"
#include "wakeup/wakeup.h"

/*
 * Microseconds for which the waker pauses between two holds of
 * PinpointOrderLock, if other processes wait for it.
 */
#define PAUSE_FOR_OTHERS	100

/* All fields are protected by PinpointOrderLock. */
typedef struct CommitOrder
{
	dlist_head	in_flight;		/* batches whose transactions are committing,
								 * ordered by lower bound */
	PinpointBatch *ready;		/* heap of committed batches that are not
								 * published yet, ordered by stamp; NULL if
								 * empty */
	uint64		nin_flight;		/* number of batches in each of the two */
	uint64		nready;
	uint64		turn;			/* number of batches that ever became ready;
								 * the turn of the last one */

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

	/*
	 * PID of the process that publishes all batches that can be published; 0
	 * if there is none, or if the waker does this.  The waker and reserves
	 * also publish while there is one.  A process also reads it without the
	 * lock, to find out whether it contains its own PID.
	 */
	int			publisher;
} CommitOrder;

static CommitOrder *commit_order = NULL;

static XLogRecPtr behind_last_record(void);
static int	oldest_sender(void);
static void enter_in_flight(PinpointBatch *batch);
static void leave_in_flight(PinpointBatch *batch);
static void enter_ready(PinpointBatch *batch, XLogRecPtr stamp);
static PinpointBatch *remove_first_ready(void);
static bool none_in_flight_before(XLogRecPtr stamp);
static bool can_publish(void);
static void begin_round(void);
static void publish(PinpointPublication *publication, PinpointBatch *batch);
static void append_or_discard(PinpointPublication *publication,
							  PinpointBatch *batch, uint64 sequence,
							  int nfound);
static void publish_ready_and_end(PinpointPublication *publication);
static bool publish_some(PinpointPublication *publication);
static void publish_rest(void);
static bool publish_part(bool *others_wait, bool in_parts);
static void count_held_back(PinpointBatch *batch, TimestampTz since);

Size
pinpoint_commit_order_shmem_size(void)
{
	return MAXALIGN(sizeof(CommitOrder));
}

void
pinpoint_commit_order_shmem_init(void *memory)
{
	commit_order = memory;
	dlist_init(&commit_order->in_flight);
	commit_order->turn = PINPOINT_FIRST_NUMBER;
	commit_order->round_turn = commit_order->turn;
}

/*
 * The lowest stamp after all commit records so far.
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
pinpoint_commit_order_reserve(List *notifications)
{
	PinpointBatchLayout *layout;
	PinpointBatch *batch;
	int			error;

	AssertNoLockHeld();
	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED &&
		   PinpointMyTransaction.batch == NULL);

	layout = pinpoint_batch_layout(notifications);
	pinpoint_wakeup_find_early(layout);

	batch = pinpoint_message_log_reserve(layout->size, &error);
	if (batch == NULL && error == 0)
		pinpoint_slow_listener_report_queue_full(layout->size, oldest_sender());
	else if (batch == NULL)
		pinpoint_slow_listener_report_no_disk_space(error);

	PinpointMyTransaction.batch = batch;
	pinpoint_transaction_enter(PINPOINT_RESERVED);
	pinpoint_batch_write(batch, layout);
	pinpoint_positions_compute(batch);
}

/*
 * Announce the commit of this transaction.  This is the last step before the
 * commit.  Batches that commit later are held back until this one is ready or
 * withdrawn.  Does not fail.
 */
void
pinpoint_commit_order_announce(void)
{
	PinpointBatch *batch = PinpointMyTransaction.batch;

	AssertNoLockHeld();
	Assert(PinpointMyTransaction.phase == PINPOINT_RESERVED && batch != NULL);

	pinpoint_lock_acquire_order("announce");
	enter_in_flight(batch);		/* step 1 */
	pinpoint_commit_order_check();
	pinpoint_lock_release_order();
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

	AssertNoLockHeld();
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	if (!dlist_is_empty(&commit_order->in_flight))
		pid = dlist_head_element(PinpointBatch, of.in_flight.link,
								 &commit_order->in_flight)->sender_pid;
	LWLockRelease(PinpointOrderLock);
	return pid;
}

/*
 * Store the stamp of this transaction.  Called after its commit record is
 * written.  Does not fail.
 *
 * Without an XID there is no commit record, and XactLastCommitEnd belongs to
 * an earlier transaction.
 */
void
pinpoint_commit_order_stamp(void)
{
	Assert(PinpointMyTransaction.phase == PINPOINT_COMMITTED);
	AssertInterruptsHeld();

	if (PinpointMyTransaction.batch == NULL)
		return;

	/* step 2 */
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
	PinpointPublication publication;

	Assert(PinpointMyTransaction.phase == PINPOINT_COMMITTED);
	AssertInterruptsHeld();
	AssertNoLockHeld();
	if (batch == NULL)
		return;
	PinpointMyTransaction.batch = NULL;

	PINPOINT_BEGIN_CANNOT_FAIL();
	pinpoint_publication_begin(&publication);
	leave_in_flight(batch);
	enter_ready(batch, PinpointMyTransaction.stamp);	/* step 3 */
	publish_ready_and_end(&publication);
	PINPOINT_END_CANNOT_FAIL();
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
	PinpointPublication publication;

	/* step 12 */
	Assert(commit_order->nready == 0 && commit_order->nin_flight == 0);
	AssertNoLockHeld();

	PINPOINT_BEGIN_CANNOT_FAIL();
	pinpoint_positions_compute(batch);
	pinpoint_publication_begin(&publication);
	pinpoint_positions_count();
	pinpoint_counter_add(batch->dboid, PINPOINT_COUNT_REPLAYED, 1);
	publish(&publication, batch);
	pinpoint_publication_end(&publication);
	pinpoint_positions_wake();
	PINPOINT_END_CANNOT_FAIL();
}

/*
 * A value of the counter of positions.c: all batches that are counted up to it
 * are published.  The caller holds PinpointOrderLock.
 */
uint64
pinpoint_commit_order_published(void)
{
	AssertHeld(PinpointOrderLock);
	Assert(commit_order->nready == 0 ||
		   commit_order->published <= pinpoint_positions_counter());

	return commit_order->nready == 0 ?
		pinpoint_positions_counter() : commit_order->published;
}

/*
 * Publish a heartbeat, which has no transaction.  Does not fail.
 */
void
pinpoint_commit_order_publish_heartbeat(PinpointBatch *batch)
{
	PinpointPublication publication;
	uint64		sequence;

	AssertNoLockHeld();
	Assert(batch->state == PINPOINT_BATCH_RESERVED);

	PINPOINT_BEGIN_CANNOT_FAIL();
	pinpoint_publication_begin(&publication);
	sequence = pinpoint_message_log_next_sequence();
	append_or_discard(&publication, batch, sequence,
					  pinpoint_wakeup_find(&publication, batch, sequence));
	pinpoint_publication_end(&publication);
	PINPOINT_END_CANNOT_FAIL();
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
	PinpointPublication publication;

	AssertInterruptsHeld();
	AssertNoLockHeld();
	if (batch == NULL)
		return;
	PinpointMyTransaction.batch = NULL;

	PINPOINT_BEGIN_CANNOT_FAIL();
	pinpoint_publication_begin(&publication);
	if (PinpointMyTransaction.phase >= PINPOINT_ANNOUNCED)
		leave_in_flight(batch);
	else
		Assert(batch->state == PINPOINT_BATCH_RESERVED);
	pinpoint_message_log_withdraw(batch);
	publish_ready_and_end(&publication);
	PINPOINT_END_CANNOT_FAIL();
}

/*
 * Append a batch to the in-flight list.  The caller holds PinpointOrderLock
 * exclusively, as do those of the next functions.
 */
static void
enter_in_flight(PinpointBatch *batch)
{
	PinpointBatchInFlight *in_flight = pinpoint_batch_become_in_flight(batch);

	AssertHeldExclusive(PinpointOrderLock);

	in_flight->bound = behind_last_record();
	dlist_push_tail(&commit_order->in_flight, &in_flight->link);
	commit_order->nin_flight++;
}

static void
leave_in_flight(PinpointBatch *batch)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(commit_order->nin_flight > 0);

	dlist_delete(&pinpoint_batch_in_flight(batch)->link);
	commit_order->nin_flight--;
}

/*
 * Insert a batch that has left the in-flight list into the ready heap, and
 * count it for its channels.
 */
static void
enter_ready(PinpointBatch *batch, XLogRecPtr stamp)
{
	PinpointBatchReady *ready = pinpoint_batch_become_ready(batch);

	AssertHeldExclusive(PinpointOrderLock);
	Assert(stamp != InvalidXLogRecPtr);

	ready->stamp = stamp;
	ready->turn = ++commit_order->turn;
	ready->held_back_since =
		none_in_flight_before(stamp) ? 0 : GetCurrentTimestamp();
	if (commit_order->nready == 0)
		commit_order->published = pinpoint_positions_counter();
	if (!PINPOINT_FAULT(COUNT_LATE))
		pinpoint_positions_count();

	commit_order->ready =
		pinpoint_ready_heap_insert(commit_order->ready, batch);
	commit_order->nready++;
}

/*
 * Remove the first batch from the ready heap.  The caller publishes it before
 * it releases the lock.
 */
static PinpointBatch *
remove_first_ready(void)
{
	PinpointBatch *first = commit_order->ready;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(commit_order->nready > 0);

	commit_order->ready = pinpoint_ready_heap_remove_first(commit_order->ready);
	commit_order->nready--;

	if (pinpoint_batch_ready(first)->turn <= commit_order->round_turn)
	{
		Assert(commit_order->nround > 0);
		commit_order->nround--;
	}
	if (commit_order->nround == 0)
		begin_round();
	return first;
}

/*
 * All batches of a round are published: begin the next one.
 */
static void
begin_round(void)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(commit_order->nround == 0);

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
 * Is it certain that no commit in flight gets a lower stamp than this?
 */
static bool
none_in_flight_before(XLogRecPtr stamp)
{
	PinpointBatch *oldest;

	AssertHeldExclusive(PinpointOrderLock);
	if (PINPOINT_FAULT(ARRIVAL_ORDER) ||
		dlist_is_empty(&commit_order->in_flight))
		return true;

	oldest = dlist_head_element(PinpointBatch, of.in_flight.link,
								&commit_order->in_flight);
	return stamp <= pinpoint_batch_in_flight(oldest)->bound;
}

/*
 * Can the first batch of the heap be published?  This is step 4.
 */
static bool
can_publish(void)
{
	return commit_order->ready != NULL &&
		none_in_flight_before(pinpoint_batch_ready(commit_order->ready)->stamp);
}

/*
 * Publish a batch, and collect the sessions to signal.
 */
static void
publish(PinpointPublication *publication, PinpointBatch *batch)
{
	uint64		sequence;
	int			nfound;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(batch->state == PINPOINT_BATCH_READY ||
		   batch->state == PINPOINT_BATCH_RESERVED);

	sequence = pinpoint_message_log_next_sequence();
	nfound = pinpoint_wakeup_find(publication, batch, sequence);
	pinpoint_counter_add(batch->dboid, PINPOINT_COUNT_TRANSACTIONS, 1);
	pinpoint_counter_add(batch->dboid, PINPOINT_COUNT_NOTIFICATIONS,
						 batch->nnotifications);

	if (nfound == 0)
		pinpoint_counter_add(batch->dboid, PINPOINT_COUNT_UNHEARD, 1);
	if (PINPOINT_FAULT(COUNT_LATE))
	{
		pinpoint_positions_compute(batch);
		pinpoint_positions_count();
	}
	append_or_discard(publication, batch, sequence, nfound);
}

/*
 * Add a batch to the end of the log, and make its listeners read it.  Without
 * a listener, free its space.
 *
 * nfound: result of pinpoint_wakeup_find().
 */
static void
append_or_discard(PinpointPublication *publication, PinpointBatch *batch,
				  uint64 sequence, int nfound)
{
	PinpointBatchPublished *published;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(sequence == pinpoint_message_log_sequence());

	if (nfound == 0)
	{
		pinpoint_message_log_withdraw(batch);
		return;
	}
	published = pinpoint_batch_become_published(batch);
	published->sequence = sequence;
	published->published_at = GetCurrentTimestamp();
	pinpoint_message_log_append(batch);
	pinpoint_wakeup_collect(publication, batch, nfound);
}

/*
 * Publish ready batches, up to the limit of work of one hold of the lock, and
 * end the publication.  If more batches can be published, leave them to another
 * process; if there is none, this process becomes the publisher, and publishes
 * them.  In any case others can see that there is a rest: step 13.
 */
static void
publish_ready_and_end(PinpointPublication *publication)
{
	bool		rest;

	/* steps 5 and 6 */
	rest = publish_some(publication);
	if (rest)
	{
		pinpoint_waker_progress_want(); /* step 13 */

		/*
		 * The waker is told even if there is a publisher: otherwise it would
		 * count as a waker that has work and makes no progress.
		 */
		rest = !pinpoint_publication_leave_to_waker(publication) &&
			commit_order->publisher == 0;
	}
	if (rest)
		commit_order->publisher = MyProcPid;	/* step 8 */
	pinpoint_commit_order_check();
	pinpoint_publication_end(publication);

	/* What this transaction has changed does not wait for those of others. */
	pinpoint_positions_wake();
	if (rest)
		publish_rest();
}

/*
 * Publish ready batches, up to the limit of work of one hold of the lock.
 * Returns whether more batches can be published.
 */
static bool
publish_some(PinpointPublication *publication)
{
	bool		any = false;

	AssertHeldExclusive(PinpointOrderLock);
	while (can_publish())		/* step 4 */
	{
		PinpointBatch *batch;
		TimestampTz held_back_since;

		if (any && pinpoint_publication_worked_enough(publication))
			return true;
		any = true;

		batch = remove_first_ready();
		held_back_since = pinpoint_batch_ready(batch)->held_back_since;
		if (batch->sender_pid != MyProcPid)
			pinpoint_counter_add(batch->dboid, PINPOINT_COUNT_BY_OTHERS, 1);
		if (held_back_since != 0)
			count_held_back(batch, held_back_since);
		publish(publication, batch);
	}
	return false;
}

/*
 * Publish all ready batches that can be published, as the publisher.  Does not
 * fail.
 */
static void
publish_rest(void)
{
	PinpointPublication publication;
	bool		more;

	/* Only this process resets its PID. */
	Assert(commit_order->publisher == MyProcPid);
	AssertNoLockHeld();
	do
	{
		(void) pinpoint_waker_progress_begin_round();
		pinpoint_publication_begin(&publication);
		more = publish_some(&publication);
		if (!more)
			commit_order->publisher = 0;	/* step 7 */
		pinpoint_commit_order_check();
		pinpoint_publication_end(&publication);
	} while (more);
}

/*
 * Publish ready batches that sessions have left, up to the limit of work of
 * one hold of the lock.  The waker calls this.  Returns whether there are
 * more.  Does not fail.
 */
bool
pinpoint_commit_order_continue(void)
{
	bool		others_wait;
	bool		more = publish_part(&others_wait, false);

	/* A process that has been woken would often find the lock taken again. */
	if (more && others_wait)
		pg_usleep(PAUSE_FOR_OTHERS);
	return more;
}

/*
 * The same, for a session that does the work of another process that makes no
 * progress.
 *
 * in_parts: see PinpointPublication.
 */
bool
pinpoint_commit_order_take_over(bool in_parts)
{
	bool		others_wait;

	return publish_part(&others_wait, in_parts);
}

/*
 * *others_wait: set to whether other processes wait for the lock.
 * in_parts: see PinpointPublication.
 */
static bool
publish_part(bool *others_wait, bool in_parts)
{
	PinpointPublication publication;
	bool		more;

	AssertNoLockHeld();
	*others_wait = false;

	/*
	 * Step 9.  The latch was set after the release of the lock, so this is
	 * current.  A reserve has read "wanted" before this, with a full barrier.
	 */
	if (*(PinpointBatch *volatile *) &commit_order->ready == NULL)
		return false;

	PINPOINT_BEGIN_CANNOT_FAIL();
	pinpoint_publication_begin(&publication);
	publication.in_parts = in_parts;
	more = publish_some(&publication);
	*others_wait = pinpoint_lock_has_waiters(PinpointOrderLock);
	pinpoint_commit_order_check();
	pinpoint_publication_end(&publication);
	PINPOINT_END_CANNOT_FAIL();
	return more;
}

/*
 * The waker is about to end: become the publisher, unless there is one, and
 * remove the waker: step 10.  Then the caller calls
 * pinpoint_commit_order_at_exit().
 *
 * Both are done in one hold of the lock.  In between, the publisher could
 * finish, and then another session could leave batches to this process, which
 * would not publish them.
 */
void
pinpoint_commit_order_remove_waker(void)
{
	AssertNoLockHeld();
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	if (commit_order->publisher == 0)
		commit_order->publisher = MyProcPid;
	pinpoint_waker_list_set_latch(NULL);
	pinpoint_commit_order_check();
	LWLockRelease(PinpointOrderLock);
}

/*
 * This process ends, possibly within a transaction, or by an error: publish or
 * withdraw its batch, and finish what it has begun as the publisher: step 11.
 * Does not fail.
 */
void
pinpoint_commit_order_at_exit(void)
{
	AssertInterruptsHeld();
	AssertNoLockHeld();

	if (PinpointMyTransaction.phase == PINPOINT_COMMITTED)
		pinpoint_commit_order_publish();
	else
		pinpoint_commit_order_withdraw();

	if (*(volatile int *) &commit_order->publisher == MyProcPid)
		publish_rest();
}

/*
 * Count a batch that was held back since a time and will now be published.
 */
static void
count_held_back(PinpointBatch *batch, TimestampTz since)
{
	TimestampTz now = GetCurrentTimestamp();

	pinpoint_counter_add(batch->dboid, PINPOINT_COUNT_HELD_BACK, 1);
	if (now > since)
		pinpoint_counter_raise_max_held_back(batch->dboid,
											 (uint64) (now - since));
}

/*
 * Data for pinpoint.stat_queue.  The caller holds PinpointOrderLock, shared or
 * exclusive.
 */
void
pinpoint_commit_order_stats(PinpointOrderStats *stats)
{
	AssertHeld(PinpointOrderLock);
	Assert((commit_order->ready == NULL) == (commit_order->nready == 0));

	stats->in_flight = commit_order->nin_flight;
	stats->held_back = commit_order->nready;
}

#ifdef USE_ASSERT_CHECKING
/* So many batches of the ready heap are checked. */
#define MAX_CHECKED		64

/*
 * The invariants of the in-flight list and the ready heap at the end of a hold
 * of PinpointOrderLock.  The caller holds it exclusively.
 */
void
pinpoint_commit_order_check(void)
{
	XLogRecPtr	bound = 0;
	uint64		nin_flight = 0;
	uint32		nchecked;
	uint32		nturns = 0;
	dlist_iter	iter;

	AssertHeldExclusive(PinpointOrderLock);

	dlist_foreach(iter, &commit_order->in_flight)
	{
		PinpointBatch *batch = dlist_container(PinpointBatch,
											   of.in_flight.link, iter.cur);

		Assert(pinpoint_batch_in_flight(batch)->bound >= bound);
		bound = pinpoint_batch_in_flight(batch)->bound;
		nin_flight++;
	}
	Assert(nin_flight == commit_order->nin_flight);

	Assert((commit_order->ready == NULL) == (commit_order->nready == 0));
	Assert(commit_order->nready <= commit_order->turn);
	Assert(commit_order->nround <= commit_order->nready);
	Assert(commit_order->round_turn <= commit_order->turn);

	/*
	 * A round without batches began when the heap was empty.  Since then,
	 * none has left the heap: that would have begun the next round.
	 */
	Assert(commit_order->nround > 0 ||
		   commit_order->nready ==
		   commit_order->turn - commit_order->round_turn);
	Assert(commit_order->round_counter <= pinpoint_positions_counter());
	Assert(commit_order->published <= pinpoint_positions_counter());

	/*
	 * The fault may have broken the order of the heap.  So in a build with
	 * assertions, all sessions must have it.
	 */
	if (PINPOINT_FAULT(ARRIVAL_ORDER))
		return;

	nchecked = pinpoint_ready_heap_check(commit_order->ready, MAX_CHECKED,
										 commit_order->round_turn, &nturns);
	if (nchecked < MAX_CHECKED)
		Assert(nchecked == commit_order->nready &&
			   nturns == commit_order->nround);
	else
		Assert(commit_order->nready >= MAX_CHECKED);

	/* step 6 */
	Assert(!can_publish() || commit_order->publisher != 0 ||
		   pinpoint_waker_list_get_latch() != NULL);
}
#endif
