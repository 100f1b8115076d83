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
 * The fixed part of a batch in the message log; see batch.c for what follows.
 *
 * The contents and the fields of the first group are written by the sending
 * session before its commit and never change afterwards.  The other fields are
 * protected by PinpointOrderLock.
 */
typedef struct PinpointBatch
{
	/* written once, by the sender */
	Size		size;			/* bytes taken in the log, MAXALIGNed */
	Oid			dboid;			/* database of the sender */
	int32		sender_pid;		/* what the listener is told */
	uint32		nchannels;		/* channel names that follow */
	uint32		nnotifications; /* notifications that follow those */
	uint32		nlisteners;		/* slots that follow those, of listeners that
								 * were found before commit; see wakeup.c */
	uint16		max_assignments;		/* PinpointAssignments that follow, see sharing.c */

	/*
	 * Protected by PinpointOrderLock.  A batch that is in flight or published
	 * is in a list, one that is ready is in a heap.
	 */
	uint16		nassignments;			/* in use of max_assignments, see sharing.c */
	uint64		joined;			/* of the first group: which listeners those
								 * slots can be */
	union
	{
		dlist_node	in_flight;	/* in flight: in that list */
		struct
		{
			struct PinpointBatch *left;
			struct PinpointBatch *right;
		}			heap;		/* ready */
		struct
		{
			struct PinpointBatch *next; /* published: the one after it */
			uint64		epoch;	/* likewise: see message_log.c */
		};
	};
	union
	{
		XLogRecPtr	order;		/* in flight: lower bound of the commit
								 * record; ready: its end */
		TimestampTz published_at;	/* published: when */
	};
	union
	{
		uint64		turn;		/* ready: number of its turn among equals */
		uint64		sequence;	/* published: number of publication */
	};
	union
	{
		TimestampTz held_back_since;	/* ready: since when it waits for a
										 * slower commit; 0 if it does not */
		uint64		position;	/* published: bytes published before it */
	};
	uint32		heap_rank;		/* see commit_order.c */
	uint32		all_share_from; /* all who share a channel get what it has on
								 * it, from the channel with this number on */
} PinpointBatch;

/*
 * Who gets the notifications of a batch on a channel that sessions share.
 *
 * The channel is written with PinpointOrderLock held, before the batch is
 * published.  The receiver is a slot number and flags; it is read without a lock,
 * and changed by the session that it says, or before publication.
 */
typedef struct PinpointAssignment
{
	uint32		channel;		/* number of the channel within the batch */
	pg_atomic_uint32 receiver;
} PinpointAssignment;

/* What a batch is going to contain, worked out before there is room for it. */
typedef struct PinpointBatchLayout
{
	Size		size;			/* of the whole batch, MAXALIGNed */
	List	   *notifications;	/* of PinpointNotification */
	PinpointNotification **channels;	/* the first one on each channel */
	uint32		nchannels;
	uint32	   *numbers;		/* channel of each notification; NULL if all
								 * are on the first */
	int		   *listeners;		/* slots found before commit; NULL if nobody
								 * has looked */
	uint32		nlisteners;		/* their number */
	uint64		joined;			/* see PinpointBatch */
	uint16		max_assignments;		/* likewise */
} PinpointBatchLayout;

/* A batch that is put together from its channels and notifications; see replay.c. */
typedef struct PinpointBatchWriter
{
	PinpointBatch *batch;
	uint64		nrecords;		/* channels and notifications that are there */
	Size		written;		/* bytes of its body that they take */
} PinpointBatchWriter;

/* A place among the notifications of a batch. */
typedef struct PinpointBatchReader
{
	uint32		remaining;		/* notifications still to come */
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
