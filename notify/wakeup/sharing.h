/*-------------------------------------------------------------------------
 *
 * sharing.h
 *		Selects the sessions that receive a notification on a shared channel.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_SHARING_H
#define PINPOINT_SHARING_H

#include "queue/batch.h"
#include "wakeup/channel_entry.h"
#include "wakeup/slots.h"

/*
 * The least readiness (see sharing.c) of a session that receives a
 * notification instead of one that stays in a transaction.
 */
#define PINPOINT_READY_SOON		2

/* Is a notification on a shared channel assigned to a session? */
typedef enum PinpointShare
{
	PINPOINT_SHARE_NONE,		/* no, or it has been delivered */
	PINPOINT_SHARE_ASSIGNED,	/* yes, at its publication */
	PINPOINT_SHARE_REASSIGNED	/* yes, it was reassigned, and is not
								 * delivered */
} PinpointShare;

/* Callback for each session to which a notification is assigned. */
typedef void (*PinpointReceiverVisitor) (int slotno, void *arg);

extern void pinpoint_sharing_set_chains(bool chains);
extern void pinpoint_sharing_reserve(PinpointBatchLayout *layout);
extern uint32 pinpoint_sharing_assign(PinpointBatch *batch, uint32 channel,
									  const PinpointListeners *listeners,
									  PinpointReceiverVisitor visitor,
									  void *arg);
extern PinpointShare pinpoint_sharing_share(PinpointBatch *batch,
											uint32 channel);
extern void pinpoint_sharing_delivered(PinpointBatch *batch, uint32 channel);
extern bool pinpoint_sharing_stalled(PinpointSlot *slot);
extern bool pinpoint_sharing_next_undelivered(PinpointBatch *batch, int slotno,
											  bool unread, uint32 *index,
											  uint32 *channel);
extern bool pinpoint_sharing_any_ready(PinpointBatch *batch, uint32 channel,
									   const PinpointListeners *listeners,
									   Oid group);
extern int	pinpoint_sharing_reassign(PinpointBatch *batch, uint32 index,
									  int slotno, Oid group,
									  const PinpointListeners *listeners,
									  int least);

#endif							/* PINPOINT_SHARING_H */
