/*-------------------------------------------------------------------------
 *
 * channel_statistics.c
 *		The functions behind the views of channels.
 *
 * Channel names of other databases may be in another encoding, so they are
 * shown as NULL.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "base/check.h"
#include "base/preload.h"
#include "wakeup/channel_map.h"
#include "wakeup/slots_read.h"

PG_FUNCTION_INFO_V1(pinpoint_stat_get_channels);
PG_FUNCTION_INFO_V1(pinpoint_stat_get_listening);

/* A channel; or, if listeners are collected, a channel and one of them. */
typedef struct Row
{
	Oid			dboid;
	char		channel[NAMEDATALEN];
	int			nlisteners;
	int			nsharers;
	int			ngroups;		/* sharing groups */
	uint64		transactions;
	int			slotno;			/* of the listener */
	Oid			group;			/* its sharing group; InvalidOid if none */
} Row;

typedef struct Rows
{
	Row		   *rows;
	Size		nrows;			/* in use */
	Size		length;			/* allocated */
	Size		missed;			/* rows for which there was no space */
} Rows;

static void collect(PinpointChannelVisitor visitor, Rows *rows);
static Row *add_row(Rows *rows, Oid dboid, const char *channel);
static void add_channel(Oid dboid, const char *channel,
						const PinpointListeners *listeners, void *arg);
static void add_listeners(Oid dboid, const char *channel,
						  const PinpointListeners *listeners, void *arg);
static Datum name_of(Row *row, bool *isnull);
static int *pids_by_slot(void);

/*
 * Call the visitor for all channels, with space for all rows that it adds.
 *
 * Errors: out of memory.
 */
static void
collect(PinpointChannelVisitor visitor, Rows *rows)
{
	rows->length = 1024;
	for (;;)
	{
		rows->rows = palloc_extended(rows->length * sizeof(Row),
									 MCXT_ALLOC_HUGE);
		rows->nrows = 0;
		rows->missed = 0;
		pinpoint_channel_map_visit(visitor, rows);
		if (rows->missed == 0)
			break;
		rows->length += 2 * rows->missed;
		pfree(rows->rows);
	}
}

/*
 * Add a row.  Returns NULL if there is no space.  The caller holds the lock of
 * a partition of the channel map, so this must not fail or allocate memory.
 */
static Row *
add_row(Rows *rows, Oid dboid, const char *channel)
{
	Row		   *row;

	Assert(pinpoint_lock_highest_rank() == PINPOINT_RANK_CHANNEL_MAP);
	Assert(rows->nrows <= rows->length);

	if (rows->nrows == rows->length)
	{
		rows->missed++;
		return NULL;
	}
	row = &rows->rows[rows->nrows++];
	row->dboid = dboid;
	strlcpy(row->channel, channel, NAMEDATALEN);
	return row;
}

static void
add_channel(Oid dboid, const char *channel,
			const PinpointListeners *listeners, void *arg)
{
	Row		   *row = add_row(arg, dboid, channel);

	if (row == NULL)
		return;
	row->nlisteners = listeners->nslots + listeners->nsharers;
	row->nsharers = listeners->nsharers;
	row->ngroups = 0;
	for (int i = 0; i < listeners->nsharers;
		 i += pinpoint_channel_entry_group_size(listeners, i))
		row->ngroups++;
	row->transactions = pg_atomic_read_u64(listeners->transactions);
}

static void
add_listeners(Oid dboid, const char *channel,
			  const PinpointListeners *listeners, void *arg)
{
	/* Sessions that share the channel come after the others. */
	for (int i = 0; i < listeners->nslots + listeners->nsharers; i++)
	{
		Row		   *row = add_row(arg, dboid, channel);

		if (row == NULL)
			continue;
		row->slotno = pinpoint_channel_entry_listener(listeners, i)->slotno;
		row->group = pinpoint_channel_entry_listener(listeners, i)->group;
	}
}

static Datum
name_of(Row *row, bool *isnull)
{
	*isnull = row->dboid != MyDatabaseId;
	return *isnull ? (Datum) 0 : CStringGetTextDatum(row->channel);
}

/*
 * pinpoint.stat_get_channels(): one row per channel that is listened on.
 */
Datum
pinpoint_stat_get_channels(PG_FUNCTION_ARGS)
{
#define CHANNEL_COLUMNS 6
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Rows		rows;

	pinpoint_preload_check();
	InitMaterializedSRF(fcinfo, 0);
	collect(add_channel, &rows);

	for (Size i = 0; i < rows.nrows; i++)
	{
		Row		   *row = &rows.rows[i];
		Datum		values[CHANNEL_COLUMNS];
		bool		nulls[CHANNEL_COLUMNS] = {false};

		values[0] = ObjectIdGetDatum(row->dboid);
		values[1] = name_of(row, &nulls[1]);
		values[2] = Int32GetDatum(row->nlisteners);
		values[3] = Int32GetDatum(row->nsharers);
		values[4] = Int64GetDatum((int64) row->transactions);
		values[5] = Int32GetDatum(row->ngroups);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 values, nulls);
	}
	return (Datum) 0;
}

/*
 * Returns an array with the PID of the listening session in each slot, else 0.
 */
static int *
pids_by_slot(void)
{
	int		   *pids = palloc_array(int, MaxBackends);

	for (int i = 0; i < MaxBackends; i++)
		pids[i] = pinpoint_slots_read_pid(i);
	return pids;
}

/*
 * pinpoint.stat_get_listening(): one row per session and channel that it
 * listens on.
 *
 * A slot can get another owner while the channels are read.  A row is shown
 * only if the slot had the same owner before and after.
 */
Datum
pinpoint_stat_get_listening(PG_FUNCTION_ARGS)
{
#define LISTENING_COLUMNS 5
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Rows		rows;
	int		   *before;
	int		   *after;

	pinpoint_preload_check();
	InitMaterializedSRF(fcinfo, 0);
	before = pids_by_slot();
	collect(add_listeners, &rows);
	after = pids_by_slot();

	for (Size i = 0; i < rows.nrows; i++)
	{
		Row		   *row = &rows.rows[i];
		int			pid = before[row->slotno];
		Datum		values[LISTENING_COLUMNS];
		bool		nulls[LISTENING_COLUMNS] = {false};

		if (pid == 0 || pid != after[row->slotno])
			continue;
		values[0] = Int32GetDatum(pid);
		values[1] = ObjectIdGetDatum(row->dboid);
		values[2] = name_of(row, &nulls[2]);
		values[3] = BoolGetDatum(OidIsValid(row->group));
		values[4] = ObjectIdGetDatum(row->group);
		nulls[4] = !OidIsValid(row->group);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 values, nulls);
	}
	return (Datum) 0;
}
