/*-------------------------------------------------------------------------
 *
 * decoding.h
 *		Declarations that the files of pg_pinpoint_decoding share.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_DECODING_H
#define PINPOINT_DECODING_H

#include "port/atomics.h"

#include "redirect.h"

/* ---- statistics.c ---- */

/*
 * The counters of a session.  The two numbers of entries are current values.
 * The others only grow.
 */
typedef enum PinpointDecodingCounter
{
	PINPOINT_LOOKUPS,
	PINPOINT_HITS,
	PINPOINT_ENTRIES,
	PINPOINT_NEGATIVE_ENTRIES,	/* of the entries */
	PINPOINT_INVALIDATIONS,
	PINPOINT_RESETS,			/* of the invalidations */
	PINPOINT_COUNTERS
} PinpointDecodingCounter;

/*
 * The counters of this session, in shared memory if it has a slot.  Only the
 * session writes them, so an increment need not be atomic.  Reads and writes
 * are atomic, so that a reader does not see a half-written number.
 */
extern pg_atomic_uint64 *pinpoint_statistics_counters;

#define COUNT(counter) \
	SET_GAUGE(counter, 1 + \
			  pg_atomic_read_u64(&pinpoint_statistics_counters[counter]))
#define SET_GAUGE(counter, value) \
	pg_atomic_write_u64(&pinpoint_statistics_counters[counter], \
						(uint64) (value))

extern Size pinpoint_statistics_shmem_size(void);
extern void pinpoint_statistics_shmem_init(void);
extern void pinpoint_statistics_attach(void);

/* ---- standby_snapshot.c ---- */

extern void pinpoint_standby_snapshot_define_setting(void);
extern void pinpoint_standby_snapshot_init(void);
extern Size pinpoint_standby_snapshot_shmem_size(void);
extern void pinpoint_standby_snapshot_shmem_init(void);
extern uint64 pinpoint_standby_snapshots(void);

/* ---- relation_map.c ---- */

extern const PinpointRedirection pinpoint_relation_map_redirections[2];

extern const char *pinpoint_relation_map_objection(void);
extern void pinpoint_relation_map_init(void);

/* ---- pg_pinpoint_decoding.c ---- */

/* Why the library is not active; NULL if it is */
extern const char *pinpoint_decoding_refused_because;

#endif							/* PINPOINT_DECODING_H */
