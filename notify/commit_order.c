/*-------------------------------------------------------------------------
 *
 * commit_order.c
 *		Who may publish now: parallel commits, notifications in commit order.
 *
 * PostgreSQL promises that notifications of different transactions arrive in
 * the order in which the transactions committed.  It keeps the promise by
 * letting only one notifying transaction commit at a time.  Here commits run
 * in parallel, and only the publication of what they send is ordered.
 *
 * The order of commits is the order of commit records in the WAL.
 *
 *	announce	before commit, under PinpointOrderLock: take space for the
 *				batch and append it to the in-flight list, with the current
 *				WAL insert position as its lower bound.  The commit record will
 *				be inserted behind that position.  Bounds are read under the
 *				lock and positions only grow, so the list is ordered by bound.
 *	stamp		after the commit record is written: its end position is the
 *				batch's place in the commit order.  A transaction without XID
 *				writes no commit record; its place is right behind the record
 *				that was inserted last.
 *	publish		after the locks of the transaction are released: move the batch
 *				from the in-flight list into the ready list, which is ordered
 *				by stamp; then publish from its front every batch whose stamp
 *				is not above the bound of the oldest batch in flight.
 *	withdraw	the transaction aborts instead: leave the in-flight list, and
 *				publish those that waited for this one.
 *
 * Why nothing is published too early.  Let R be ready with stamp r, and X a
 * transaction whose commit record ends at x < r.  X inserted its record before
 * R did, as WAL positions are handed out in the order of insertion, and was
 * announced before that.  So when R gets to the ready list, X is either in
 * flight, with a bound below x and hence below r, and R is held back; or it is
 * in the ready list before R; or it is published.
 *
 * Positions are multiples of 8, so "right behind" is one byte further: behind
 * every record that ends there, before all others.  As a stamp cannot be less
 * than that for a commit that is being announced, bounds are one byte further,
 * too.  Equal stamps then mean two transactions without a commit record that
 * ran side by side, and these are published in the order in which they became
 * ready.
 *
 * Why nothing waits.  A session moves its batch to the ready list and goes on,
 * whether or not the batch was published.  A batch that is held back gets
 * published by whoever resolves the commit that holds it back.  So what lists
 * contain is batches, not sessions: a session may have many batches held back
 * and one in flight.
 *
 * Why a listener sees the rows.  A batch becomes ready only after its
 * transaction is visible to all new snapshots and its locks are released, and
 * is published after that, by whomever.
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
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "pinpoint.h"

/*
 * How many batches are published without letting go of PinpointOrderLock, for
 * the case that one slow commit held back very many.
 */
#define MAX_BATCHES_PER_ROUND	64

/* All fields are protected by PinpointOrderLock. */
typedef struct CommitOrder
{
	dlist_head	in_flight;		/* batches of transactions that are
								 * committing, ordered by lower bound */
	dlist_head	ready;			/* batches of committed transactions that may
								 * still be overtaken, ordered by stamp */
	uint64		nin_flight;		/* lengths of the two */
	uint64		nready;
	uint64		published;		/* batches published since start, */
	uint64		unheard;		/* of those, dropped as nobody listened, */
	uint64		published_by_others;	/* and published by another session
										 * than the sender */
} CommitOrder;

LWLock	   *PinpointOrderLock = NULL;

static CommitOrder *commit_order = NULL;

/*
 * The batch of the current transaction, from announce until it is published,
 * held back or withdrawn; and its stamp, invalid until it has committed.
 */
static PinpointBatch *my_batch = NULL;
static XLogRecPtr my_stamp = InvalidXLogRecPtr;

static XLogRecPtr behind_last_record(void);
static void leave_in_flight(PinpointBatch *batch);
static void insert_ready(PinpointBatch *batch);
static bool may_publish(PinpointBatch *batch);
static void publish_ready(void);

Size
pinpoint_commit_order_shmem_size(void)
{
	return MAXALIGN(sizeof(CommitOrder));
}

void
pinpoint_commit_order_shmem_init(void)
{
	bool		found;

	PinpointOrderLock = &GetNamedLWLockTranche("PinpointOrder")->lock;
	commit_order = ShmemInitStruct("pg_pinpoint commit order",
								   pinpoint_commit_order_shmem_size(),
								   &found);
	if (!found)
	{
		memset(commit_order, 0, sizeof(CommitOrder));
		dlist_init(&commit_order->in_flight);
		dlist_init(&commit_order->ready);
	}
}

/*
 * The first place in the commit order behind all commit records so far.
 */
static XLogRecPtr
behind_last_record(void)
{
	return GetXLogInsertRecPtr() + 1;
}

/*
 * Before commit: make the batch of this transaction, and enter it into the
 * list of commits in flight.  From here until the end of the transaction
 * nothing else can fail for lack of space.
 *
 * notifications: PinpointNotification structs, at least one.
 *
 * Errors: out of memory, queue full (see pinpoint_message_log_reserve()).
 */
void
pinpoint_commit_order_announce(List *notifications)
{
	PinpointBatchLayout *layout;

	Assert(my_batch == NULL);

	pinpoint_slow_listener_check();
	if (pinpoint_message_log_kept() == 0)
		pinpoint_message_log_give_back();

	layout = pinpoint_batch_layout(notifications);
	pinpoint_channel_map_attach();
	pinpoint_wakeup_prepare();

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	my_batch = pinpoint_message_log_reserve(layout);
	my_stamp = InvalidXLogRecPtr;
	my_batch->order = behind_last_record();
	dlist_push_tail(&commit_order->in_flight, &my_batch->link);
	commit_order->nin_flight++;
	LWLockRelease(PinpointOrderLock);

	pinpoint_batch_write(my_batch, layout);
}

/*
 * PID of the session whose commit has been under way for longest, 0 if there
 * is none.  The caller holds PinpointOrderLock.
 */
int
pinpoint_commit_order_oldest_sender(void)
{
	if (dlist_is_empty(&commit_order->in_flight))
		return 0;
	return dlist_head_element(PinpointBatch, link,
							  &commit_order->in_flight)->sender_pid;
}

/*
 * After the commit record is written: remember where it ended.
 *
 * XactLastCommitEnd is of an earlier transaction, or of no commit record at
 * all, if this one has no XID.
 */
void
pinpoint_commit_order_stamp(void)
{
	if (my_batch == NULL)
		return;

	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		my_stamp = XactLastCommitEnd;
	else
		my_stamp = behind_last_record();
}

/*
 * After the locks of a committed transaction are released: publish its batch,
 * and whatever it held back, or leave it to be published by another session.
 */
void
pinpoint_commit_order_publish(void)
{
	PinpointBatch *batch = my_batch;

	if (batch == NULL)
		return;
	my_batch = NULL;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	leave_in_flight(batch);
	batch->order = my_stamp;
	insert_ready(batch);
	publish_ready();
}

/*
 * The transaction aborted, or the session ends, after it announced a batch.
 */
void
pinpoint_commit_order_withdraw(void)
{
	PinpointBatch *batch = my_batch;

	if (batch == NULL)
		return;
	my_batch = NULL;

	LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
	leave_in_flight(batch);
	pinpoint_message_log_free(batch);
	publish_ready();
}

static void
leave_in_flight(PinpointBatch *batch)
{
	dlist_delete(&batch->link);
	commit_order->nin_flight--;
}

/*
 * Stamps arrive nearly in order, so look for the place from the end.
 */
static void
insert_ready(PinpointBatch *batch)
{
	dlist_node *place = NULL;

	commit_order->nready++;

	if (pinpoint_fault != PINPOINT_FAULT_ARRIVAL_ORDER &&
		!dlist_is_empty(&commit_order->ready))
	{
		place = dlist_tail_node(&commit_order->ready);
		for (;;)
		{
			if (dlist_container(PinpointBatch, link, place)->order <=
				batch->order)
				break;
			if (!dlist_has_prev(&commit_order->ready, place))
			{
				dlist_push_head(&commit_order->ready, &batch->link);
				return;
			}
			place = dlist_prev_node(&commit_order->ready, place);
		}
	}

	if (place != NULL)
		dlist_insert_after(place, &batch->link);
	else
		dlist_push_tail(&commit_order->ready, &batch->link);
}

/*
 * Can no commit in flight come before this one any more?
 */
static bool
may_publish(PinpointBatch *batch)
{
	PinpointBatch *oldest;

	if (pinpoint_fault == PINPOINT_FAULT_ARRIVAL_ORDER ||
		dlist_is_empty(&commit_order->in_flight))
		return true;

	oldest = dlist_head_element(PinpointBatch, link,
								&commit_order->in_flight);
	return batch->order <= oldest->order;
}

/*
 * Publish all ready batches that may be, then wake those who listen.
 *
 * The caller holds PinpointOrderLock; it is released.  Does not fail: when the
 * channel map cannot be read, every listener of the database is woken instead.
 */
static void
publish_ready(void)
{
	int			in_round = 0;

	/*
	 * While the process exits, an error could not be caught, so do not do
	 * what may fail.
	 */
	bool		everyone = proc_exit_inprogress;

	while (!dlist_is_empty(&commit_order->ready))
	{
		PinpointBatch *batch;
		uint64		sequence;
		int			nfound;

		batch = dlist_head_element(PinpointBatch, link, &commit_order->ready);
		if (!may_publish(batch))
			break;

		sequence = pinpoint_message_log_next_sequence();
		nfound = pinpoint_wakeup_find(batch, sequence, everyone);
		if (nfound < 0)
		{
			/*
			 * The error recovery has released the lock, so somebody else may
			 * have published this batch meanwhile.  Start again, and ask the
			 * map no more.  Send what there is to send first, as a listener
			 * may read, and need another signal, while the lock is free.
			 */
			pinpoint_wakeup_send();
			LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
			everyone = true;
			continue;
		}

		dlist_delete(&batch->link);
		commit_order->nready--;
		commit_order->published++;
		if (batch->sender_pid != MyProcPid)
			commit_order->published_by_others++;

		if (nfound == 0)
		{
			commit_order->unheard++;
			pinpoint_message_log_free(batch);
		}
		else
		{
			batch->sequence = sequence;
			pinpoint_message_log_append(batch);
			pinpoint_wakeup_collect(batch, nfound);
		}

		if (++in_round == MAX_BATCHES_PER_ROUND)
		{
			/* let others in */
			LWLockRelease(PinpointOrderLock);
			pinpoint_wakeup_send();
			in_round = 0;
			LWLockAcquire(PinpointOrderLock, LW_EXCLUSIVE);
		}
	}
	LWLockRelease(PinpointOrderLock);

	pinpoint_wakeup_send();
}

/*
 * The caller holds PinpointOrderLock.
 */
void
pinpoint_commit_order_stats(PinpointQueueStats *stats)
{
	stats->in_flight = commit_order->nin_flight;
	stats->held_back = commit_order->nready;
	stats->published = commit_order->published;
	stats->unheard = commit_order->unheard;
	stats->published_by_others = commit_order->published_by_others;
}
