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

#include "base/request.h"

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
	uint32		nnotifications; /* number of notifications after the
								 * channels */
	uint32		nlisteners;		/* number of slots at the end: the listeners
								 * that were found before the commit; see
								 * wakeup.c */
	uint16		max_assignments;	/* number of PinpointAssignments before
									 * these slots; see sharing.c */

	/*
	 * A batch in flight or published is in a list, a ready batch is in a heap.
	 */
	uint16		nassignments;	/* number of PinpointAssignments in use */
	uint64		joined;			/* set with the first group: number of the last
								 * LISTEN before the look-up of listeners; see
								 * wakeup.c.  pinpoint_wakeup_find_replayed()
								 * sets it later, without a lock. */
	union
	{
		dlist_node	in_flight;	/* in flight: link of the list */
		struct
		{
			struct PinpointBatch *left;
			struct PinpointBatch *right;
		}			heap;		/* ready */
		struct
		{
			struct PinpointBatch *next;	/* published: the next one */
			uint64		epoch;	/* published: see message_log.c */
		};
	};
	union
	{
		XLogRecPtr	order;		/* in flight: lower bound; ready: stamp; see
								 * commit_order.c */
		TimestampTz published_at;	/* published: time of publication */
	};
	union
	{
		uint64		turn;		/* ready: number of the batch, in the order in
								 * which batches became ready */
		uint64		sequence;	/* published: number of publication */
	};
	union
	{
		TimestampTz held_back_since;	/* ready: the time since when it waits
										 * for a slower commit; 0 if it does
										 * not */
		uint64		position;	/* published: bytes published before it */
	};
	uint32		heap_rank;		/* ready: see ready_heap.c */
	uint32		all_share_from; /* all sharing sessions receive the
								 * notifications on channels with this number
								 * or a higher one */
} PinpointBatch;

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
	uint64		joined;			/* see PinpointBatch */
	uint16		max_assignments;	/* see PinpointBatch */
} PinpointBatchLayout;

/* The state of a batch while it is assembled; see unfinished.c. */
typedef struct PinpointBatchWriter
{
	PinpointBatch *batch;
	uint64		nrecords;		/* number of channels and notifications in
								 * it */
	Size		written;		/* bytes of its body that they use */
} PinpointBatchWriter;

/* A position among the notifications of a batch. */
typedef struct PinpointBatchReader
{
	uint32		remaining;		/* number of notifications not read yet */
	const char *cursor;			/* the next one */
} PinpointBatchReader;

extern PinpointBatchLayout *pinpoint_batch_layout(List *notifications);
extern void pinpoint_batch_layout_add_listeners(PinpointBatchLayout *layout,
												int *slots, uint32 nslots,
												uint64 joined);
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
