/*-------------------------------------------------------------------------
 *
 * unfinished.c
 *		Replayed transactions that have sent notifications and have not ended.
 *
 * The startup process adds a transaction at its first message that is
 * replayed, and assembles its batch from the messages.  The space of the batch
 * in the message log is reserved at the first message of notifications, which
 * contains its size.  The transaction is removed at its end; see replay.c.
 *
 * An error in the startup process would end the standby, and waiting would
 * delay all sessions on it.  So memory is allocated only in the log.  If the
 * log is full, the listeners that are furthest behind are disconnected, with
 * the reason: first all listeners that keep space in the oldest quarter, then,
 * if this is not enough, in the oldest half, then all.  Most of them release
 * what they keep at once.  For those that cannot (see evict.c), replay waits
 * once for each session, for at most five seconds in total, and never for a
 * client.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "utils/memutils.h"

#include "base/check.h"
#include "base/locks.h"
#include "listener/evict.h"
#include "listener/slow_listener.h"
#include "queue/log_storage.h"
#include "queue/message_log.h"
#include "standby/unfinished.h"
#include "wakeup/channel_map.h"
#include "wakeup/wakeup.h"

/*
 * All unfinished transactions, in no particular order.  Usually there are few.
 * Each session of the primary has at most one, and this server allows at least
 * as many sessions and prepared transactions.  As many again can remain from
 * before a crash of the primary.  The postmaster allocates the array, and the
 * startup process inherits and uses it.
 */
static PinpointUnfinished *unfinished = NULL;
static int	nunfinished = 0;

/* Bytes of the log that their batches take. */
static Size unfinished_bytes = 0;

static int	max_unfinished(void);
static void begin_batch(PinpointUnfinished *transaction,
						const PinpointMessage *message);
static PinpointBatch *reserve(Size size);
static void log_no_disk_space(int error);
static PinpointBatch *try_reserve(Size size);

/*
 * Allocate memory in the postmaster, at start and at restart after a crash.
 */
void
pinpoint_unfinished_allocate(void *memory)
{
	Assert(!IsUnderPostmaster);
	Assert(nunfinished == 0 && unfinished_bytes == 0);

	if (unfinished == NULL)
		unfinished = MemoryContextAlloc(TopMemoryContext,
										max_unfinished() *
										sizeof(PinpointUnfinished));
}

static int
max_unfinished(void)
{
	return 2 * (MaxBackends + max_prepared_xacts);
}

bool
pinpoint_unfinished_exist(void)
{
	return nunfinished > 0;
}

/*
 * Returns NULL if no message of a transaction has been replayed.  The result is
 * valid until a transaction is removed.
 */
PinpointUnfinished *
pinpoint_unfinished_find(TransactionId xid)
{
	AssertStartupProcess();

	for (int i = 0; i < nunfinished; i++)
	{
		if (unfinished[i].xid == xid)
			return &unfinished[i];
	}
	return NULL;
}

/*
 * Add a transaction to the list, at its first message that is replayed here.
 * Returns NULL if the list is full, which should not happen.
 */
PinpointUnfinished *
pinpoint_unfinished_enter(TransactionId xid, Oid dboid)
{
	PinpointUnfinished *transaction;

	Assert(TransactionIdIsValid(xid));
	Assert(pinpoint_unfinished_find(xid) == NULL);

	if (nunfinished == max_unfinished())
		return NULL;
	transaction = &unfinished[nunfinished++];
	memset(transaction, 0, sizeof(PinpointUnfinished));
	transaction->xid = xid;
	transaction->dboid = dboid;
	transaction->incomplete = PINPOINT_NOT_EVICTED;
	pinpoint_unfinished_check();
	return transaction;
}

/*
 * The transaction has notifications that are not in the WAL.
 */
void
pinpoint_unfinished_set_left_out(PinpointUnfinished *transaction)
{
	transaction->left_out = true;
	pinpoint_unfinished_check();
}

/*
 * The notifications of the transaction cannot be delivered, for this reason.
 * Has no effect after its first message of notifications: a batch that was
 * begun remains incomplete.
 *
 * nnotifications: how many it sends, 0 if not known.
 */
void
pinpoint_unfinished_set_incomplete(PinpointUnfinished *transaction,
								   PinpointEviction reason,
								   uint32 nnotifications)
{
	Assert(reason != PINPOINT_NOT_EVICTED);

	if (transaction->begun)
		return;
	transaction->begun = true;
	transaction->nnotifications = nnotifications;
	transaction->incomplete = reason;
	pinpoint_unfinished_check();
}

/*
 * Add the contents of a message of notifications to the batch of its
 * transaction.  If they are not valid, or if earlier ones are missing, the
 * batch remains incomplete, or there is none.
 */
void
pinpoint_unfinished_add(PinpointUnfinished *transaction,
						const PinpointMessage *message)
{
	Assert(message->kind == PINPOINT_MESSAGE_NOTIFICATIONS);
	AssertNoLockHeld();

	if (message->offset == 0 && !transaction->begun)
		begin_batch(transaction, message);
	else
		pinpoint_unfinished_set_incomplete(transaction,
										   PINPOINT_EVICTED_INCOMPLETE,
										   message->nnotifications);
	if (transaction->writer.batch != NULL)
		pinpoint_wal_message_parser_add_lines(message, &transaction->writer);
	pinpoint_unfinished_check();
}

/*
 * Begin the batch of a transaction, at its first message of notifications.
 */
static void
begin_batch(PinpointUnfinished *transaction, const PinpointMessage *message)
{
	uint16		max_assignments = Min(Min(message->nchannels,
										  PINPOINT_CHANNELS_LOOKED_UP) *
									  Max(pinpoint_channel_map_max_receivers(),
										  1),
									  PG_UINT16_MAX);
	PinpointBatch *batch =
		reserve(pinpoint_batch_size_of_body(message->body_size,
											max_assignments));

	if (batch == NULL)
	{
		pinpoint_unfinished_set_incomplete(transaction,
										   PINPOINT_EVICTED_NO_ROOM,
										   message->nnotifications);
		return;
	}
	transaction->begun = true;
	transaction->nnotifications = message->nnotifications;
	batch->dboid = transaction->dboid;
	batch->sender_pid = message->sender_pid;
	batch->nchannels = message->nchannels;
	batch->nnotifications = message->nnotifications;
	batch->max_assignments = max_assignments;
	pinpoint_batch_begin(batch, &transaction->writer);
	unfinished_bytes += batch->size;
	pinpoint_unfinished_check();
}

/*
 * Reserve space in the log, if necessary by evicting listeners.  Returns NULL
 * if the batch does not fit, or if the listeners do not release enough space
 * in time.
 */
static PinpointBatch *
reserve(Size size)
{
	int			error;
	PinpointBatch *batch = pinpoint_message_log_reserve(size, &error);
	instr_time	began;

	Assert(unfinished_bytes <= pinpoint_message_log_capacity());

	if (batch != NULL ||
		size > pinpoint_message_log_capacity() - unfinished_bytes)
		return batch;
	if (error != 0)
		log_no_disk_space(error);
	INSTR_TIME_SET_CURRENT(began);

	/* First the oldest quarter, then the oldest half, then all. */
	for (int divisor = 4; batch == NULL && divisor > 0; divisor /= 2)
	{
		int			n = pinpoint_evict_oldest(divisor);
		bool		waits = true;

		if (n > 0)
			ereport(LOG,
					(errmsg_plural("disconnecting %d listener because replay needs space in the NOTIFY queue",
								   "disconnecting %d listeners because replay needs space in the NOTIFY queue",
								   n, n),
					 error == 0 ?
					 errhint("Their clients read too slowly, or they have long transactions. If this is expected, increase \"pinpoint.queue_size\" on this server.") : 0));

		/*
		 * Sessions that were evicted for this before are not waited for
		 * again. The last attempt is after the last session has ended:
		 * otherwise the next pass could evict a session although there is
		 * space.
		 */
		while ((batch = try_reserve(size)) == NULL && waits)
			waits = pinpoint_evict_wait(&began);
	}
	return batch;
}

/*
 * The file of the queue cannot grow.  Replay goes on without it.
 */
static void
log_no_disk_space(int error)
{
	errno = error;
	ereport(LOG,
			(errcode_for_file_access(),
			 errmsg("could not extend file \"%s\": %m",
					PINPOINT_LOG_FILE_NAME),
			 errhint("%s", pinpoint_slow_listener_no_disk_space_hint(error))));
}

static PinpointBatch *
try_reserve(Size size)
{
	int			error;

	return pinpoint_message_log_reserve(size, &error);
}

/*
 * Remove a transaction from the list.  Returns its batch, which the caller
 * publishes; NULL if it has none.  The last transaction of the list takes its
 * place in the array.
 */
PinpointBatch *
pinpoint_unfinished_remove(PinpointUnfinished *transaction)
{
	PinpointBatch *batch = transaction->writer.batch;

	AssertStartupProcess();
	Assert(transaction >= unfinished && transaction < unfinished + nunfinished);

	if (batch != NULL)
		unfinished_bytes -= batch->size;
	*transaction = unfinished[--nunfinished];
	pinpoint_unfinished_check();
	return batch;
}

/*
 * Remove a transaction whose notifications are not delivered, and free the
 * space of its batch.
 */
void
pinpoint_unfinished_drop(PinpointUnfinished *transaction)
{
	PinpointBatch *batch = pinpoint_unfinished_remove(transaction);

	AssertNoLockHeld();

	if (batch != NULL)
	{
		pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
		pinpoint_message_log_withdraw(batch);
		LWLockRelease(PinpointOrderLock);
	}
}

/*
 * Drop all transactions before this one.
 */
void
pinpoint_unfinished_drop_older_than(TransactionId xid)
{
	Assert(TransactionIdIsValid(xid));

	/* Backwards, because the last element replaces one that is dropped. */
	for (int i = nunfinished - 1; i >= 0; i--)
	{
		if (TransactionIdPrecedes(unfinished[i].xid, xid))
			pinpoint_unfinished_drop(&unfinished[i]);
	}
}

void
pinpoint_unfinished_drop_all(void)
{
	while (nunfinished > 0)
		pinpoint_unfinished_drop(&unfinished[nunfinished - 1]);
	Assert(unfinished_bytes == 0);
}

#ifdef USE_ASSERT_CHECKING
/* Transactions that the check looks at: those that were added last. */
#define MAX_CHECKED		64

/*
 * The number of bytes is compared only if all transactions are looked at.
 */
void
pinpoint_unfinished_check(void)
{
	int			first = Max(0, nunfinished - MAX_CHECKED);
	Size		bytes = 0;

	Assert(nunfinished >= 0 && nunfinished <= max_unfinished());
	Assert(nunfinished == 0 || AmStartupProcess() || !IsUnderPostmaster);

	for (int i = first; i < nunfinished; i++)
	{
		PinpointUnfinished *transaction = &unfinished[i];
		PinpointBatch *batch = transaction->writer.batch;

		Assert(TransactionIdIsValid(transaction->xid));
		for (int other = first; other < i; other++)
			Assert(unfinished[other].xid != transaction->xid);

		/* Either a batch, or a reason, or no notifications in the WAL. */
		Assert(transaction->begun ==
			   (batch != NULL ||
				transaction->incomplete != PINPOINT_NOT_EVICTED));
		Assert(batch == NULL ||
			   transaction->incomplete == PINPOINT_NOT_EVICTED);
		if (batch == NULL)
			continue;
		Assert(batch->dboid == transaction->dboid);
		Assert(transaction->writer.written <= pinpoint_batch_body_size(batch));
		bytes += batch->size;
	}
	Assert(first > 0 || bytes == unfinished_bytes);
}
#endif
