/*-------------------------------------------------------------------------
 *
 * statistics.c
 *		The functions behind the views of the queue and of the counters.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/check.h"
#include "base/counters.h"
#include "base/preload.h"
#include "commit/commit_order.h"
#include "queue/message_log.h"

PG_FUNCTION_INFO_V1(pinpoint_notification_queue_usage);
PG_FUNCTION_INFO_V1(pinpoint_stat_get_queue);
PG_FUNCTION_INFO_V1(pinpoint_stat_get_notify);
PG_FUNCTION_INFO_V1(pinpoint_stat_reset);

/* A snapshot of what the view pinpoint.stat_queue shows. */
typedef struct QueueStats
{
	PinpointLogStats log;
	PinpointOrderStats order;
} QueueStats;

static void get_queue_stats(QueueStats *stats);

static void
get_queue_stats(QueueStats *stats)
{
	AssertNoLockHeld();
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	pinpoint_commit_order_stats(&stats->order);
	pinpoint_message_log_stats(&stats->log);
	LWLockRelease(PinpointOrderLock);
	Assert(stats->log.used <= stats->log.size);
}

/*
 * pinpoint.notification_queue_usage(): replaces pg_notification_queue_usage().
 *
 * Returns the fraction, 0 to 1, of the queue that is in use: of our queue or
 * of PostgreSQL's own, whichever is larger.
 */
Datum
pinpoint_notification_queue_usage(PG_FUNCTION_ARGS)
{
	QueueStats	stats;
	double		own_usage = DatumGetFloat8(pg_notification_queue_usage(fcinfo));
	double		usage;

	if (PinpointOrderLock == NULL)
		PG_RETURN_FLOAT8(own_usage);

	get_queue_stats(&stats);
	usage = (double) stats.log.used / (double) stats.log.size;
	PG_RETURN_FLOAT8(Max(usage, own_usage));
}

/*
 * pinpoint.stat_get_queue(): one row for the whole server.
 */
Datum
pinpoint_stat_get_queue(PG_FUNCTION_ARGS)
{
#define QUEUE_COLUMNS 6
	QueueStats	stats;
	TupleDesc	tupdesc;
	Datum		values[QUEUE_COLUMNS];
	bool		nulls[QUEUE_COLUMNS] = {false};

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	pinpoint_preload_check();
	get_queue_stats(&stats);
	values[0] = Int64GetDatum((int64) stats.log.size);
	values[1] = Int64GetDatum((int64) stats.log.used);
	values[2] = Int64GetDatum((int64) stats.log.file);
	values[3] = Int64GetDatum((int64) stats.log.batches);
	values[4] = Int64GetDatum((int64) stats.order.in_flight);
	values[5] = Int64GetDatum((int64) stats.order.held_back);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc),
													  values, nulls)));
}

/*
 * pinpoint.stat_get_notify(): one row per database in which anything was
 * counted, and one with a NULL database for those without counters of their
 * own.
 */
Datum
pinpoint_stat_get_notify(PG_FUNCTION_ARGS)
{
#define NOTIFY_COLUMNS (PINPOINT_NCOUNTERS + 2)
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	PinpointCounts *counts;
	int			n;

	pinpoint_preload_check();
	InitMaterializedSRF(fcinfo, 0);
	counts = palloc_array(PinpointCounts, PINPOINT_MAX_COUNTED_DATABASES);

	n = pinpoint_counters_copy(counts);
	for (int i = 0; i < n; i++)
	{
		Datum		values[NOTIFY_COLUMNS];
		bool		nulls[NOTIFY_COLUMNS] = {false};

		values[0] = ObjectIdGetDatum(counts[i].dboid);
		nulls[0] = counts[i].dboid == InvalidOid;
		for (int j = 0; j < PINPOINT_NCOUNTERS; j++)
			values[1 + j] = Int64GetDatum((int64) counts[i].counts[j]);
		values[1 + PINPOINT_MAX_HELD_BACK] =
			Float8GetDatum((double) counts[i].counts[PINPOINT_MAX_HELD_BACK] /
						   1000.0);
		values[NOTIFY_COLUMNS - 1] = TimestampTzGetDatum(counts[i].reset);
		nulls[NOTIFY_COLUMNS - 1] = counts[i].reset == 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 values, nulls);
	}
	return (Datum) 0;
}

/*
 * pinpoint.stat_reset(): resets all counters.
 */
Datum
pinpoint_stat_reset(PG_FUNCTION_ARGS)
{
	pinpoint_preload_check();
	pinpoint_counters_reset();
	PG_RETURN_VOID();
}
