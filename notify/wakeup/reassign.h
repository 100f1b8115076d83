/*-------------------------------------------------------------------------
 *
 * reassign.h
 *		Reassigns notifications of a session that stops sharing a channel, or
 *		that stays in a transaction.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_REASSIGN_H
#define PINPOINT_REASSIGN_H

/* Callback: does this session still share a channel? */
typedef bool (*PinpointStillShares) (const char *channel);

extern Size pinpoint_reassign_shmem_size(void);
extern void pinpoint_reassign_shmem_init(void *memory);
extern void pinpoint_reassign(PinpointStillShares still_shares);
extern bool pinpoint_reassign_stalled(void);

#endif							/* PINPOINT_REASSIGN_H */
