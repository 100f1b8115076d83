/*-------------------------------------------------------------------------
 *
 * listener_statistics.c
 *		The functions behind the views of listening and of waiting sessions.
 *
 * As in pg_stat_activity, every role can see that a session exists.  Only
 * roles with the privileges of its role or of pg_read_all_stats can see the
 * details.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "base/preload.h"
#include "positions/waiters.h"
#include "wakeup/slots_read.h"

PG_FUNCTION_INFO_V1(pinpoint_stat_get_listeners);
PG_FUNCTION_INFO_V1(pinpoint_stat_get_waiting);

static bool may_see(Oid roleid);
static const char *state_name(PinpointWakeState state);

static bool
may_see(Oid roleid)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		has_privs_of_role(GetUserId(), roleid);
}

static const char *
state_name(PinpointWakeState state)
{
	switch (state)
	{
		case PINPOINT_IDLE:
			return "idle";
		case PINPOINT_RESTING:
			return "resting";
		case PINPOINT_SIGNALLED:
			return "signalled";
		case PINPOINT_READING:
			return "reading";
		case PINPOINT_READING_AGAIN:
			return "reading again";
	}
	return "unknown";
}

/*
 * pinpoint.stat_get_listeners(): one row per session that listens.
 */
Datum
pinpoint_stat_get_listeners(PG_FUNCTION_ARGS)
{
#define LISTENER_COLUMNS 10
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	PinpointListenerStats *listeners;
	int			n;

	pinpoint_preload_check();
	InitMaterializedSRF(fcinfo, 0);
	listeners = palloc_array(PinpointListenerStats, MaxBackends);

	n = pinpoint_slots_read_all(listeners);
	for (int i = 0; i < n; i++)
	{
		PinpointListenerStats *l = &listeners[i];
		Datum		values[LISTENER_COLUMNS] = {0};
		bool		nulls[LISTENER_COLUMNS];

		memset(nulls, true, sizeof(nulls));
		values[0] = Int32GetDatum(l->pid);
		values[1] = ObjectIdGetDatum(l->dboid);
		nulls[0] = nulls[1] = false;
		if (l->pid == MyProcPid || may_see(l->roleid))
		{
			values[2] = CStringGetTextDatum(state_name(l->state));
			values[3] = Int32GetDatum((int32) l->nchannels);
			values[4] = Int64GetDatum((int64) l->wakeups);
			values[5] = Int64GetDatum((int64) l->delivered);
			values[6] = Int64GetDatum((int64) l->backlog_bytes);
			values[7] = Int64GetDatum((int64) l->backlog_batches);
			values[8] = TimestampTzGetDatum(l->oldest_unread);
			values[9] = BoolGetDatum(l->wakes_for_all);
			memset(&nulls[2], false, sizeof(nulls) - 2 * sizeof(bool));
			nulls[8] = l->oldest_unread == 0;
		}
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 values, nulls);
	}
	return (Datum) 0;
}

/*
 * pinpoint.stat_get_waiting(): one row per session in pinpoint.wait().
 */
Datum
pinpoint_stat_get_waiting(PG_FUNCTION_ARGS)
{
#define WAITER_COLUMNS 4
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	PinpointWaiterStats *waiters;
	int			n;

	pinpoint_preload_check();
	InitMaterializedSRF(fcinfo, 0);
	waiters = palloc_array(PinpointWaiterStats, MaxBackends);

	n = pinpoint_waiters_copy(waiters);
	for (int i = 0; i < n; i++)
	{
		PinpointWaiterStats *w = &waiters[i];
		bool		sees = may_see(w->roleid);
		Datum		values[WAITER_COLUMNS];
		bool		nulls[WAITER_COLUMNS] = {false, false, !sees, !sees};

		values[0] = Int32GetDatum(w->pid);
		values[1] = ObjectIdGetDatum(w->dboid);
		values[2] = Int32GetDatum(w->nchannels);
		values[3] = TimestampTzGetDatum(w->since);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 values, nulls);
	}
	return (Datum) 0;
}
