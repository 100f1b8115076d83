/*-------------------------------------------------------------------------
 *
 * pinpoint.h
 *		Declarations shared by the files of pg_pinpoint.
 *
 * A notification travels through the files in one direction:
 *
 *	statement.c -> pending.c -> commit_order.c -> message_log.c -> wakeup.c
 *	-> delivery.c
 *
 * and channel_map.c knows who listens.  The externs below are grouped by the
 * file that defines them, in that order.
 *
 * Locks, in the order in which they are taken if more than one is:
 *
 *	1. PinpointStorageLock protects the size of the file behind the message
 *	   log.  It is held while that file grows or shrinks, which is rare, and
 *	   never taken after commit.
 *	2. PinpointOrderLock protects the in-flight list, the ready list, the
 *	   message log and all session slots.
 *	3. A partition lock of the channel map (inside dshash) protects the map
 *	   entries of that partition and their arrays of listeners.
 *
 * The last two are not held while signalling, sending to a client or doing
 * I/O, and none is held across the write or flush of a commit record.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_H
#define PINPOINT_H

#include "access/xlogdefs.h"
#include "lib/ilist.h"
#include "nodes/pg_list.h"
#include "storage/lwlock.h"

/*
 * A batch: all notifications of one transaction, in the message log.
 *
 * The fixed part is followed by nchannels channel names, each once, and then
 * by nnotifications notifications, each with the number of its channel; see
 * message_log.c for their form.
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

	/* protected by PinpointOrderLock */
	dlist_node	link;			/* in the in-flight, ready or published list */
	XLogRecPtr	order;			/* in flight: lower bound of the commit record;
								 * ready: its end */
	uint64		sequence;		/* number of publication; 0 if not published */
	uint64		position;		/* bytes published before this batch */
	Size		previous;		/* place in the log of the batch before it in
								 * its segment, if it is not the first */
	uint32		pins;			/* listeners that must read this batch first */
	bool		is_free;		/* its space in the log can be used again */
} PinpointBatch;

/* What a session's slot says about its next wakeup; see wakeup.c. */
typedef enum PinpointWakeState
{
	PINPOINT_IDLE,				/* nothing unread */
	PINPOINT_SIGNALLED,			/* unread batches, signal under way */
	PINPOINT_READING,			/* reads what there was when it began */
	PINPOINT_READING_AGAIN		/* as before, and there is more by now */
} PinpointWakeState;

/*
 * One per possible session, indexed by PINPOINT_MY_SLOT_NUMBER.  All fields
 * are protected by PinpointOrderLock; the owner may look at state and given_up
 * without it.
 */
typedef struct PinpointSlot
{
	int			pid;			/* owner, 0 if it does not listen */
	Oid			dboid;			/* the owner's database */
	PinpointWakeState state;
	PinpointBatch *unread;		/* pinned batch to read first, NULL if IDLE */
	uint64		marked;			/* publication that last found this listener */
	uint32		nchannels;		/* channels it is listening on */
	uint64		wakeups;		/* signals sent to it */
	uint64		delivered;		/* notifications handed to its client */
	bool		given_up;		/* it was told to end, being too far behind */
} PinpointSlot;

/* A snapshot of the counters behind the view pinpoint.stat_queue. */
typedef struct PinpointQueueStats
{
	Size		size;			/* capacity of the log, in bytes */
	Size		used;			/* bytes taken */
	Size		file;			/* bytes of disk space taken for it */
	uint64		batches;		/* batches published and not yet given back */
	uint64		in_flight;		/* batches whose transaction is committing */
	uint64		held_back;		/* committed, but may still be overtaken */
	uint64		published;		/* batches published since start */
	uint64		unheard;		/* of those, dropped as nobody listened */
	uint64		published_by_others;	/* of those, by another session than
										 * the sender */
	uint64		wakeups;		/* signals sent since start */
} PinpointQueueStats;

/* Faults that can be planted to see the tests catch them (developers only). */
typedef enum PinpointFault
{
	PINPOINT_FAULT_NONE,
	PINPOINT_FAULT_ARRIVAL_ORDER,	/* publish in order of arrival */
	PINPOINT_FAULT_LOOKUP		/* the channel map cannot be read after commit */
} PinpointFault;

/* What is done about a listener that is too far behind; see slow_listener.c. */
typedef enum PinpointOnLag
{
	PINPOINT_ON_LAG_WARN,
	PINPOINT_ON_LAG_DISCONNECT
} PinpointOnLag;

/*---- pg_pinpoint.c: wiring ----*/
extern bool pinpoint_enabled;
extern int	pinpoint_queue_size;
extern int	pinpoint_queue_memory;
extern int	pinpoint_max_listener_lag;
extern int	pinpoint_on_lag;
extern int	pinpoint_latency_target;
extern int	pinpoint_fault;
extern bool pinpoint_pre_committed(void);
extern bool pinpoint_guard(void (*action) (void *arg), void *arg,
						   const char *consequence);

/*---- statement.c: where SQL enters ----*/
extern bool pinpoint_client_statement_ran(void);
extern void pinpoint_statement_init(void);
extern void pinpoint_statement_at_abort(void);

/*---- pending.c: what this transaction will do ----*/
typedef enum PinpointActionKind
{
	PINPOINT_LISTEN,
	PINPOINT_UNLISTEN,
	PINPOINT_UNLISTEN_ALL
} PinpointActionKind;

typedef struct PinpointAction
{
	PinpointActionKind kind;
	char		channel[FLEXIBLE_ARRAY_MEMBER]; /* "" for UNLISTEN_ALL */
} PinpointAction;

typedef struct PinpointNotification
{
	uint32		hash;			/* of channel and payload */
	uint16		channel_len;	/* bytes, without the terminating zero */
	uint16		payload_len;	/* likewise */
	char		data[FLEXIBLE_ARRAY_MEMBER];	/* channel, 0, payload, 0 */
} PinpointNotification;

extern void pinpoint_pending_notify(const char *channel, const char *payload);
extern void pinpoint_pending_action(PinpointActionKind kind,
									const char *channel);
extern bool pinpoint_pending_exists(void);
extern List *pinpoint_pending_actions(void);
extern List *pinpoint_pending_notifications(void);
extern void pinpoint_pending_at_subcommit(void);
extern void pinpoint_pending_at_subabort(void);
extern void pinpoint_pending_reset(void);

/*---- channel_map.c: who listens ----*/
extern Size pinpoint_channel_map_shmem_size(void);
extern void pinpoint_channel_map_shmem_init(void);
extern void pinpoint_channel_map_attach(void);
extern void pinpoint_channel_map_prepare(List *actions);
extern void pinpoint_channel_map_commit(List *actions);
extern void pinpoint_channel_map_abort(List *actions);
extern void pinpoint_channel_map_at_exit(void);
extern bool pinpoint_channel_map_used(void);
extern int	pinpoint_channel_map_lookup(Oid dboid, const char *channel,
										uint32 hash, uint64 mark,
										int *slots, int nslots);
extern bool pinpoint_is_listening(const char *channel, uint32 hash,
								  uint64 sequence);
extern uint32 pinpoint_channel_hash(const char *channel);
typedef void (*PinpointChannelVisitor) (Oid dboid, const char *channel,
										int nlisteners, void *arg);
extern void pinpoint_channel_map_visit(PinpointChannelVisitor visitor,
									   void *arg);

/*---- commit_order.c: who may publish now ----*/
extern LWLock *PinpointOrderLock;
extern Size pinpoint_commit_order_shmem_size(void);
extern void pinpoint_commit_order_shmem_init(void);
extern void pinpoint_commit_order_announce(List *notifications);
extern void pinpoint_commit_order_stamp(void);
extern void pinpoint_commit_order_publish(void);
extern void pinpoint_commit_order_withdraw(void);
extern int	pinpoint_commit_order_oldest_sender(void);
extern void pinpoint_commit_order_stats(PinpointQueueStats *stats);

/*---- message_log.c: committed batches ----*/
extern LWLock *PinpointStorageLock;
typedef struct PinpointBatchLayout PinpointBatchLayout;
typedef struct PinpointBatchReader
{
	uint32		remaining;		/* notifications still to come */
	const char *cursor;			/* the next one */
} PinpointBatchReader;

extern Size pinpoint_message_log_shmem_size(void);
extern void pinpoint_message_log_shmem_init(void);
extern PinpointBatchLayout *pinpoint_batch_layout(List *notifications);
extern PinpointBatch *pinpoint_message_log_reserve(PinpointBatchLayout *layout);
extern void pinpoint_batch_write(PinpointBatch *batch,
								 PinpointBatchLayout *layout);
extern const char *pinpoint_batch_first_channel(PinpointBatch *batch);
extern const char *pinpoint_batch_next_channel(const char *channel);
extern uint32 pinpoint_batch_channel_hash(const char *channel);
extern void pinpoint_batch_read(PinpointBatch *batch, const char *channels_end,
								PinpointBatchReader *reader);
extern const char *pinpoint_batch_read_next(PinpointBatchReader *reader,
											uint32 *channel);
extern uint64 pinpoint_message_log_sequence(void);
extern uint64 pinpoint_message_log_next_sequence(void);
extern void pinpoint_message_log_append(PinpointBatch *batch);
extern void pinpoint_message_log_free(PinpointBatch *batch);
extern PinpointBatch *pinpoint_message_log_last(void);
extern PinpointBatch *pinpoint_message_log_after(PinpointBatch *batch);
extern void pinpoint_message_log_pin(PinpointBatch *batch);
extern bool pinpoint_message_log_unpin(PinpointBatch *batch);
extern bool pinpoint_message_log_trim(void);
extern uint64 pinpoint_message_log_backlog(PinpointBatch *batch);
extern Size pinpoint_message_log_kept(void);
extern void pinpoint_message_log_give_back(void);
extern void pinpoint_message_log_stats(PinpointQueueStats *stats);

/*---- log_storage.c: where the log lives ----*/
#define PINPOINT_LOG_FILE_NAME	"pg_notify/pg_pinpoint"

extern char *pinpoint_log_storage_create(void);
extern Size pinpoint_log_storage_size(void);
extern Size pinpoint_log_storage_memory_size(void);
extern int	pinpoint_log_storage_grow(Size *usable, Size wanted);
extern void pinpoint_log_storage_shrink(void);

/*---- wakeup.c: whom to wake ----*/
extern Size pinpoint_wakeup_shmem_size(void);
extern void pinpoint_wakeup_shmem_init(void);
extern void pinpoint_wakeup_prepare(void);
extern void pinpoint_wakeup_register(void);
extern void pinpoint_wakeup_unregister(void);
extern bool pinpoint_wakeup_registered(void);
extern void pinpoint_wakeup_set_channels(uint32 nchannels);
extern int	pinpoint_wakeup_find(PinpointBatch *batch, uint64 mark,
								 bool everyone);
extern bool pinpoint_wakeup_mark(int slotno, Oid dboid, uint64 mark);
extern void pinpoint_wakeup_collect(PinpointBatch *batch, int nfound);
extern void pinpoint_wakeup_send(void);
extern int	pinpoint_wakeup_furthest_behind(void);
extern int	pinpoint_wakeup_give_up(Size limit, int *pids);
extern bool pinpoint_wakeup_given_up(void);
extern bool pinpoint_wakeup_pending(void);
extern bool pinpoint_wakeup_begin_reading(PinpointBatch **first,
										  PinpointBatch **last);
extern void pinpoint_wakeup_advance(PinpointBatch *next);
extern bool pinpoint_wakeup_end_reading(PinpointBatch *last,
										uint64 delivered);
extern int	pinpoint_wakeup_slots(PinpointSlot *copy, uint64 *backlog);
extern uint64 pinpoint_wakeup_total(void);

/*---- slow_listener.c: who falls far behind ----*/
extern Size pinpoint_slow_listener_shmem_size(void);
extern void pinpoint_slow_listener_shmem_init(void);
extern void pinpoint_slow_listener_check(void);
extern void pinpoint_slow_listener_prepare(void);

/*---- delivery.c: the listener ----*/
extern void pinpoint_deliver_if_woken(void);

#endif							/* PINPOINT_H */
