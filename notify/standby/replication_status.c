/*-------------------------------------------------------------------------
 *
 * replication_status.c
 *		Tells standbys whether this server replicates notifications.
 *
 * A primary writes to the WAL whether it replicates notifications: when it
 * starts, when it has been promoted, when the setting changes, and again after
 * each checkpoint, because a standby and a base backup begin to replay at a
 * checkpoint.  A standby disconnects its listeners when "off" follows after
 * another state, and counts positions only while the status is "on"; see
 * primary_status.c.
 *
 * Only the waker writes this message, because it has no database and no role:
 * it sees the value of the setting for the server, which ALTER DATABASE, ALTER
 * ROLE and SET can override for sessions.  A server that replicates for some
 * databases or roles only writes "off".
 *
 * The promise of "on".  Every transaction with notifications whose commit
 * record follows in the WAL, until the next "off" or the end of this server's
 * WAL, has written its notifications to the WAL, or a message that it has left
 * some out.  The steps, which the comments in the code name:
 *
 *	waker		1. set the flag, then a full barrier
 *				2. read the mark of each session
 *				3. wait until each mark that was set has changed
 *				4. write "on"
 *				5. later: write "off"
 *				6. clear the flag
 *	commit		a. set the mark, then a full barrier
 *				b. read the flag
 *				c. if it is set, and notifications are not replicated: write the
 *				   message that they are left out
 *				d. commit record
 *				e. clear the mark
 *
 * Let T be a commit with notifications that are not replicated, and without
 * that message.  So it has read the flag as cleared in step b.
 *
 *	- If T has read the flag before step 1, then its mark was set before, and
 *	  the barriers make the waker see it in step 2, unless step e was over.  In
 *	  both cases the commit record of T is inserted before step 4, and so
 *	  before "on".
 *	- If T has read the flag after step 6, its commit record follows "off".  If
 *	  another "on" follows that, the first case applies to it.
 *
 * So it does not matter how fast the setting is switched off and on: the flag
 * remains set until "off" is written.  Nor does it matter why T does not
 * replicate: a session that has another value, a statement or a procedure that
 * began with another value, or PostgreSQL's own queue (own_queue.c describes
 * the exceptions).  The message is written before the commit record, so
 * writing it may fail.
 *
 * The wait in step 3 is for commits only, not for transactions.  It is long
 * only if a commit waits for synchronous replication.  Meanwhile standbys do
 * not count.
 *
 * Flag and status are in shared memory, because the waker can be restarted.
 * When the shared memory is created again, the flag is cleared without "off".
 * But then the WAL contains a checkpoint record at the end of recovery, after
 * all earlier commits, and a standby knows nothing after that record.
 *
 * A repetition is marked as unimportant.  Otherwise an idle server would write
 * a checkpoint because of it, and repeat it because of the checkpoint, for
 * ever.
 *
 * The message is a logical message with our prefix, without a transaction and
 * without a database.  Logical decoding ignores messages of other databases,
 * so no replication slot outputs it.  Older versions of this library ignore
 * messages without a transaction.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "replication/message.h"
#include "utils/memutils.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "standby/replication_status.h"
#include "standby/wal_messages.h"

/*
 * Milliseconds until the next look, while commits are waited for, and if not.
 * Commits do not wake the waker: each would have to check whether it waits, and
 * it waits only when the status changes to "on".
 */
#define LOOK_WHILE_WAITING	10
#define LOOK_FOR_CHECKPOINT	1000

/*
 * The flag is written by the waker, and read by all sessions, without a lock.
 * Each process has a mark, which is odd between the steps a and e.  It is
 * written twice in each transaction that notifies, so it has a cache line of
 * its own.
 *
 * The other fields belong to the waker: what it has written last, and the redo
 * point at that time.
 */
typedef union CommitMark
{
	pg_atomic_uint32 value;
	char		pad[PG_CACHE_LINE_SIZE];
} CommitMark;

typedef struct ReplicationStatus
{
	pg_atomic_uint32 flag;
	enum
	{
		WRITTEN_NOTHING,
		WRITTEN_ON,
		WRITTEN_OFF
	}			written;
	XLogRecPtr	redo;
} ReplicationStatus;

static ReplicationStatus *replication_status = NULL;
static CommitMark *commit_marks = NULL; /* by PINPOINT_MY_SLOT_NUMBER */

/*
 * The marks that the waker has read after it has set the flag; NULL if it has
 * not done this.
 */
static uint32 *marks = NULL;

static bool set_flag(void);
static pg_atomic_uint32 *mark_of(int slotno);
static void write_status(const char *status, bool is_repetition);

Size
pinpoint_replication_status_shmem_size(void)
{
	return add_size(CACHELINEALIGN(sizeof(ReplicationStatus)),
					mul_size(MaxBackends, sizeof(CommitMark)));
}

void
pinpoint_replication_status_shmem_init(void *memory)
{
	replication_status = memory;
	commit_marks = (CommitMark *)
		((char *) memory + CACHELINEALIGN(sizeof(ReplicationStatus)));
	pg_atomic_init_u32(&replication_status->flag, 0);
	replication_status->written = WRITTEN_NOTHING;
	replication_status->redo = InvalidXLogRecPtr;
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&commit_marks[i].value, 0);
}

/*
 * The steps a and b: called before the commit of each transaction with
 * notifications.  Returns true if it must write a message if they are not
 * replicated.
 */
bool
pinpoint_replication_status_begin_commit(void)
{
	pg_atomic_uint32 *mark = mark_of(PINPOINT_MY_SLOT_NUMBER);

	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);
	AssertNoLockHeld();

	if (!XLogIsNeeded())
		return false;

	/*
	 * Step a: the result is odd.  The partner of the barrier is that of step
	 * 1 in set_flag().  Without it, this session could read the flag as
	 * cleared, and the waker the mark as not set: it would write "on" before
	 * the commit record of this transaction.
	 */
	pg_atomic_write_u32(mark, (pg_atomic_read_u32(mark) + 1) | 1);
	pg_memory_barrier();
	Assert(pg_atomic_read_u32(mark) % 2 == 1);

	/* step b */
	return pg_atomic_read_u32(&replication_status->flag) != 0;
}

/*
 * The step e: called after the commit or the abort of each transaction.
 */
void
pinpoint_replication_status_end_commit(void)
{
	pg_atomic_uint32 *mark = mark_of(PINPOINT_MY_SLOT_NUMBER);
	uint32		value = pg_atomic_read_u32(mark);

	AssertInterruptsHeld();
	AssertNoLockHeld();

	/*
	 * Step e.  The partner of the barrier is that at the end of set_flag().
	 * Without it, the waker could see the mark change before the commit
	 * record is inserted, and insert "on" before that record.
	 */
	if (value % 2 == 1)
	{
		pg_write_barrier();
		pg_atomic_write_u32(mark, value + 1);
	}
}

static pg_atomic_uint32 *
mark_of(int slotno)
{
	Assert(slotno >= 0 && slotno < MaxBackends);

	return &commit_marks[slotno].value;
}

/*
 * Write and flush the status, if this server is a primary and its status has
 * changed, or if there was a checkpoint since it was written.  The waker calls
 * this repeatedly.
 *
 * Returns the number of milliseconds after which it must be called again, or
 * -1 if the next reload is early enough.
 *
 * Errors: out of memory, those of writing WAL.
 */
long
pinpoint_replication_status_write(void)
{
	bool		replicates =
		pinpoint_replicate_notifications && pinpoint_enabled;
	XLogRecPtr	redo;
	bool		is_repetition;

	AssertWaker();
	AssertNoLockHeld();

	if (RecoveryInProgress() || !XLogIsNeeded() || IsBinaryUpgrade)
		return -1;

	/* If it moves while the status is written, the next call repeats it. */
	redo = GetRedoRecPtr();
	is_repetition = replication_status->written ==
		(replicates ? WRITTEN_ON : WRITTEN_OFF);
	if (replicates && !is_repetition && !set_flag())
		return LOOK_WHILE_WAITING;
	if (!is_repetition || redo != replication_status->redo)
	{
		write_status(replicates ? PINPOINT_STATUS_ON : PINPOINT_STATUS_OFF,
					 is_repetition);
		replication_status->written = replicates ? WRITTEN_ON : WRITTEN_OFF;
		replication_status->redo = redo;
	}

	/* Step 6.  The flag is set as long as "on" is the last status. */
	if (!replicates)
		pg_atomic_write_u32(&replication_status->flag, 0);
	Assert(replication_status->written != WRITTEN_ON ||
		   pg_atomic_read_u32(&replication_status->flag) == 1);
	return LOOK_FOR_CHECKPOINT;
}

/*
 * The steps 1 to 3.  Returns false if there are commits to wait for: the
 * caller calls this again soon.
 *
 * A restarted waker finds the flag set, and reads the marks again.
 *
 * Errors: out of memory.
 */
static bool
set_flag(void)
{
	AssertWaker();
	Assert(replication_status->written != WRITTEN_ON);

	/*
	 * Step 1.  The partner of the barrier is that of step a in
	 * pinpoint_replication_status_begin_commit().  Only the waker writes the
	 * flag.
	 */
	if (pg_atomic_read_u32(&replication_status->flag) == 0 || marks == NULL)
	{
		pg_atomic_write_u32(&replication_status->flag, 1);
		pg_memory_barrier();
		if (marks == NULL)
			marks = MemoryContextAlloc(TopMemoryContext,
									   MaxBackends * sizeof(uint32));
		/* step 2 */
		for (int i = 0; i < MaxBackends; i++)
			marks[i] = pg_atomic_read_u32(mark_of(i));
	}

	/* step 3 */
	for (int i = 0; i < MaxBackends; i++)
	{
		if (marks[i] % 2 == 1 && pg_atomic_read_u32(mark_of(i)) == marks[i])
			return false;
	}

	/*
	 * The partner is the barrier of step e in
	 * pinpoint_replication_status_end_commit(), which tells what could
	 * happen.
	 */
	pg_memory_barrier();
	return true;
}

static void
write_status(const char *status, bool is_repetition)
{
	xl_logical_message record = {
		.dbId = InvalidOid,
		.transactional = false,
		.prefix_size = sizeof(PINPOINT_MESSAGE_PREFIX),
		.message_size = strlen(status),
	};

	/* steps 4 and 5 */
	Assert(XLogIsNeeded() && !RecoveryInProgress());
	Assert(strcmp(status, PINPOINT_STATUS_ON) != 0 ||
		   pg_atomic_read_u32(&replication_status->flag) == 1);

	XLogBeginInsert();
	XLogRegisterData((char *) &record, SizeOfLogicalMessage);
	XLogRegisterData((char *) PINPOINT_MESSAGE_PREFIX,
					 sizeof(PINPOINT_MESSAGE_PREFIX));
	XLogRegisterData((char *) status, strlen(status));
	if (is_repetition)
		XLogSetRecordFlags(XLOG_MARK_UNIMPORTANT);
	XLogFlush(XLogInsert(RM_LOGICALMSG_ID, XLOG_LOGICAL_MESSAGE));
}
