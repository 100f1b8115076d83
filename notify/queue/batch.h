/*-------------------------------------------------------------------------
 *
 * batch.h
 *		A batch: all notifications of one transaction.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_BATCH_H
#define PINPOINT_BATCH_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "nodes/pg_list.h"
#include "port/atomics.h"

#include "base/check.h"
#include "base/request.h"

/*
 * The state of a batch.  Each change has a function below.
 *
 *	RESERVED	it has space, and its contents are being written or are
 *				complete.
 *	IN_FLIGHT	its transaction is committing; it is in the in-flight list.
 *	READY		its transaction has committed; it is in the ready heap.
 *	PUBLISHED	it is in the message log.
 *
 * A batch without a transaction, or of a replayed one, changes from RESERVED
 * to PUBLISHED.  A batch without listeners never becomes PUBLISHED.  The space
 * of a batch that is not PUBLISHED is freed by
 * pinpoint_message_log_withdraw(), without a change of its state.
 */
typedef enum PinpointBatchState
{
	PINPOINT_BATCH_RESERVED,
	PINPOINT_BATCH_IN_FLIGHT,
	PINPOINT_BATCH_READY,
	PINPOINT_BATCH_PUBLISHED
} PinpointBatchState;

typedef struct PinpointBatchInFlight
{
	dlist_node	link;			/* of the in-flight list */
	XLogRecPtr	bound;			/* lower bound of its stamp; see
								 * commit_order.c */
} PinpointBatchInFlight;

typedef struct PinpointBatchReady
{
	struct PinpointBatch *left; /* children in the ready heap */
	struct PinpointBatch *right;
	XLogRecPtr	stamp;			/* see commit_order.c */
	uint64		turn;			/* number of the batch, in the order in which
								 * batches became ready */
	TimestampTz held_back_since;	/* time since when it waits for a slower
									 * commit; 0 if it does not */
} PinpointBatchReady;

typedef struct PinpointBatchPublished
{
	struct PinpointBatch *next; /* published after it */
	uint64		epoch;			/* see message_log.c */
	uint64		sequence;		/* number of its publication */
	uint64		bytes;			/* bytes published before it */
	TimestampTz published_at;	/* time of its publication */
} PinpointBatchPublished;

/*
 * The fixed part of a batch in the message log; see batch.c for the rest.
 *
 * The sender writes the fields of the first group and the contents before its
 * commit.  They do not change after that.  For a heartbeat, the waker writes
 * them; for a replayed transaction, the startup process.
 *
 * The other fields are protected by PinpointOrderLock until the batch is
 * published.  After that only "next" changes, once; see
 * pinpoint_message_log_after().  Readers that have pinned the batch need no
 * lock.
 */
typedef struct PinpointBatch
{
	/* constant */
	Size		size;			/* bytes of the batch in the log, MAXALIGNed */
	Oid			dboid;			/* database of the sender */
	int32		sender_pid;		/* for the message to the client */
	uint32		nchannels;		/* number of channels that follow */
	uint32		nnotifications; /* number of notifications after the channels */
	uint32		nlisteners;		/* number of slots at the end: the listeners
								 * that were found before the commit; see
								 * wakeup.c */
	uint16		max_assignments;	/* number of PinpointAssignments before
									 * these slots; see sharing.c */

	uint16		nassignments;	/* number of PinpointAssignments in use */
	uint64		last_listen;	/* set with the first group: number of the
								 * last LISTEN before the look-up of
								 * listeners; see wakeup.c.
								 * pinpoint_wakeup_find_replayed() sets it
								 * later, without a lock. */
	union
	{
		PinpointBatchInFlight in_flight;
		PinpointBatchReady ready;
		PinpointBatchPublished published;
	}			of;				/* by state; only for the functions below */
	uint8		state;			/* a PinpointBatchState */
	uint8		heap_rank;		/* READY: see ready_heap.c */
	uint32		all_share_from; /* all sharing sessions receive the
								 * notifications on channels with this number
								 * or a higher one */
} PinpointBatch;

/*
 * Change the state of a batch, and return its fields of the new state, which
 * the caller sets.  Those of the former state are lost.  The caller holds
 * PinpointOrderLock exclusively.
 */
static inline PinpointBatchInFlight *
pinpoint_batch_become_in_flight(PinpointBatch *batch)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(batch->state == PINPOINT_BATCH_RESERVED);

	batch->state = PINPOINT_BATCH_IN_FLIGHT;
	return &batch->of.in_flight;
}

static inline PinpointBatchReady *
pinpoint_batch_become_ready(PinpointBatch *batch)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(batch->state == PINPOINT_BATCH_IN_FLIGHT);

	batch->state = PINPOINT_BATCH_READY;
	return &batch->of.ready;
}

static inline PinpointBatchPublished *
pinpoint_batch_become_published(PinpointBatch *batch)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(batch->state == PINPOINT_BATCH_RESERVED ||
		   batch->state == PINPOINT_BATCH_READY);

	batch->state = PINPOINT_BATCH_PUBLISHED;
	return &batch->of.published;
}

/*
 * The fields of a batch that is in flight, ready or published.
 */
static inline PinpointBatchInFlight *
pinpoint_batch_in_flight(PinpointBatch *batch)
{
	AssertHeld(PinpointOrderLock);
	Assert(batch->state == PINPOINT_BATCH_IN_FLIGHT);

	return &batch->of.in_flight;
}

static inline PinpointBatchReady *
pinpoint_batch_ready(PinpointBatch *batch)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(batch->state == PINPOINT_BATCH_READY);

	return &batch->of.ready;
}

/* Needs no lock if the batch is pinned. */
static inline PinpointBatchPublished *
pinpoint_batch_published(PinpointBatch *batch)
{
	Assert(batch->state == PINPOINT_BATCH_PUBLISHED);

	return &batch->of.published;
}

/*
 * A session that receives the notifications of a batch on a shared channel.
 *
 * The channel is written under PinpointOrderLock, before the batch is
 * published.  The receiver is a slot number with flags.  It is written at that
 * time, too.  Later, the session that it identifies writes it without the lock
 * while it reads, and it is reassigned under the exclusive lock, by this
 * session, or by the waker while this session does not read.  Other sessions
 * read it without a lock.
 */
typedef struct PinpointAssignment
{
	uint32		channel;		/* number of the channel within the batch */
	pg_atomic_uint32 receiver;
} PinpointAssignment;

/* The layout of a batch, computed before space is reserved for it. */
typedef struct PinpointBatchLayout
{
	Size		size;			/* of the whole batch, MAXALIGNed */
	List	   *notifications;	/* of PinpointNotification */
	PinpointNotification **channels;	/* the first one on each channel */
	uint32		nchannels;
	uint32	   *numbers;		/* channel of each notification; NULL if all
								 * are on the first */
	int		   *listeners;		/* slots found before the commit; NULL if the
								 * listeners are looked up at publication */
	uint32		nlisteners;		/* number of these slots */
	uint64		last_listen;	/* see PinpointBatch */
	uint16		max_assignments;	/* see PinpointBatch */
} PinpointBatchLayout;

/* The state of a batch while it is assembled; see unfinished.c. */
typedef struct PinpointBatchWriter
{
	PinpointBatch *batch;
	uint64		nrecords;		/* number of channels and notifications in it */
	Size		written;		/* bytes of its body that they use */
} PinpointBatchWriter;

/* How far a batch has been read. */
typedef struct PinpointBatchReader
{
	uint32		remaining;		/* number of notifications not read yet */
	const char *cursor;			/* the next one */
} PinpointBatchReader;

extern PinpointBatchLayout *pinpoint_batch_layout(List *notifications);
extern void pinpoint_batch_layout_add_listeners(PinpointBatchLayout *layout,
												int *slots, uint32 nslots,
												uint64 last_listen);
extern void pinpoint_batch_layout_add_assignments(PinpointBatchLayout *layout,
												  uint16 max_assignments);
extern void pinpoint_batch_write(PinpointBatch *batch,
								 PinpointBatchLayout *layout);
extern Size pinpoint_batch_size_of_body(Size body_size, uint16 max_assignments);
extern Size pinpoint_batch_body_size(PinpointBatch *batch);
extern Size pinpoint_batch_offset(PinpointBatch *batch, const char *string);
extern void pinpoint_batch_begin(PinpointBatch *batch,
								 PinpointBatchWriter *writer);
extern bool pinpoint_batch_has_channels(PinpointBatchWriter *writer);
extern char *pinpoint_batch_next_string(PinpointBatchWriter *writer,
										Size *available);
extern bool pinpoint_batch_add_record(PinpointBatchWriter *writer,
									  uint32 number, Size len);
extern bool pinpoint_batch_is_complete(PinpointBatchWriter *writer);
extern const char *pinpoint_batch_first_channel(PinpointBatch *batch);
extern const char *pinpoint_batch_next_channel(const char *channel);
extern uint32 pinpoint_batch_channel_hash(const char *channel);
extern void pinpoint_batch_read(PinpointBatch *batch, const char *channels_end,
								PinpointBatchReader *reader);
extern const char *pinpoint_batch_read_next(PinpointBatchReader *reader,
											uint32 *channel);
extern const int *pinpoint_batch_listeners(PinpointBatch *batch);
extern PinpointAssignment *pinpoint_batch_assignments(PinpointBatch *batch);

#endif							/* PINPOINT_BATCH_H */
