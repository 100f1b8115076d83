/*-------------------------------------------------------------------------
 *
 * unfinished.h
 *		Replayed transactions that have sent notifications and have not ended.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_UNFINISHED_H
#define PINPOINT_UNFINISHED_H

#include "standby/wal_message_parser.h"
#include "wakeup/slots.h"

typedef struct PinpointUnfinished
{
	TransactionId xid;
	Oid			dboid;
	uint32		nnotifications;
	bool		left_out;		/* it has notifications that are not in the
								 * WAL */
	bool		begun;			/* others are in the WAL: */
	PinpointBatchWriter writer; /* without a batch if the notifications cannot
								 * be delivered, */
	PinpointEviction incomplete;	/* for this reason */
} PinpointUnfinished;

extern void pinpoint_unfinished_allocate(void *memory);
extern bool pinpoint_unfinished_exist(void);
extern PinpointUnfinished *pinpoint_unfinished_find(TransactionId xid);
extern PinpointUnfinished *pinpoint_unfinished_enter(TransactionId xid,
													 Oid dboid);
extern void pinpoint_unfinished_set_left_out(PinpointUnfinished *transaction);
extern void pinpoint_unfinished_set_incomplete(PinpointUnfinished *transaction,
											   PinpointEviction reason,
											   uint32 nnotifications);
extern void pinpoint_unfinished_add(PinpointUnfinished *transaction,
									const PinpointMessage *message);
extern PinpointBatch *pinpoint_unfinished_remove(PinpointUnfinished *transaction);
extern void pinpoint_unfinished_drop(PinpointUnfinished *transaction);
extern void pinpoint_unfinished_drop_older_than(TransactionId xid);
extern void pinpoint_unfinished_drop_all(void);

/* In a build with assertions: checks the list of this process. */
#ifdef USE_ASSERT_CHECKING
extern void pinpoint_unfinished_check(void);
#else
#define pinpoint_unfinished_check()	((void) 0)
#endif

#endif							/* PINPOINT_UNFINISHED_H */
