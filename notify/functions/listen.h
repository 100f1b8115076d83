/*-------------------------------------------------------------------------
 *
 * listen.h
 *		The functions pinpoint.listen() and pinpoint.unlisten().
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_LISTEN_H
#define PINPOINT_LISTEN_H

extern Datum *pinpoint_listen_get_channels(NullableDatum *arg, int *nchannels);

#endif							/* PINPOINT_LISTEN_H */
