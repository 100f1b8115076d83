/*-------------------------------------------------------------------------
 *
 * hand_on.h
 *		What was given to a session that leaves goes to another.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_HAND_ON_H
#define PINPOINT_HAND_ON_H

/* Does the session still share a channel? */
typedef bool (*PinpointStillShares) (const char *channel);

extern void pinpoint_hand_on(PinpointStillShares still_shares);

#endif							/* PINPOINT_HAND_ON_H */
