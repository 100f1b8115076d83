/*-------------------------------------------------------------------------
 *
 * changed_since.c
 *		The functions pinpoint.position() and pinpoint.changed_since(); see
 *		positions.c.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "port/atomics.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/locks.h"
#include "commit/positions.h"

PG_FUNCTION_INFO_V1(pinpoint_position);
PG_FUNCTION_INFO_V1(pinpoint_changed_since);

static void check_isolation(const char *function);
static bool get_position(NullableDatum *arg, uint64 *counter);
static Datum *get_channels(NullableDatum *arg, int *nchannels);
static bool channel_changed(Datum channel, uint64 counter);
static TupleDesc row_type(FunctionCallInfo fcinfo);
static text *position_text(uint64 counter);

/*
 * pinpoint.position(): returns the current position, for
 * pinpoint.changed_since().
 *
 * Errors: ERRCODE_FEATURE_NOT_SUPPORTED above READ COMMITTED.
 */
Datum
pinpoint_position(PG_FUNCTION_ARGS)
{
	uint64		counter;

	pinpoint_check_preloaded();
	check_isolation("pinpoint.position()");
	counter = pinpoint_positions_counter();

	/* The counter is read before later snapshots are taken. */
	pg_memory_barrier();
	PG_RETURN_TEXT_P(position_text(counter));
}

/*
 * pinpoint.changed_since(position text, VARIADIC channels text[], OUT changed
 * text[], OUT position text): returns the channels that were notified in this
 * database since a position, in the given order, and the position for the next
 * call.  If the position is NULL or not known here, it returns all channels.
 *
 * Errors: ERRCODE_FEATURE_NOT_SUPPORTED above READ COMMITTED;
 * ERRCODE_INVALID_TEXT_REPRESENTATION if the text is not a position;
 * ERRCODE_NULL_VALUE_NOT_ALLOWED for a NULL list or channel;
 * ERRCODE_INVALID_PARAMETER_VALUE for a name that no channel can have.
 */
Datum
pinpoint_changed_since(PG_FUNCTION_ARGS)
{
	PinpointLook look;
	uint64		counter = 0;
	bool		known;
	Datum	   *channels;
	int			nchannels;
	int			nchanged = 0;
	Datum		values[2];
	bool		nulls[2] = {false, false};

	pinpoint_check_preloaded();
	check_isolation("pinpoint.changed_since()");
	known = get_position(&fcinfo->args[0], &counter);
	channels = get_channels(&fcinfo->args[1], &nchannels);

	pinpoint_positions_begin_look(&look);

	/* A position above the counter was never returned. */
	if (!known || counter > look.counter ||
		pinpoint_positions_all_changed(counter))
		look.all = true;

	for (int i = 0; i < nchannels; i++)
	{
		/* Changed channels move to the front of the array. */
		if (look.all ||
			channel_changed(channels[i], counter))
			channels[nchanged++] = channels[i];
	}

	values[0] = PointerGetDatum(construct_array(channels, nchanged, TEXTOID,
												-1, false, TYPALIGN_INT));
	values[1] = PointerGetDatum(position_text(look.counter));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(row_type(fcinfo), values,
													  nulls)));
}

/*
 * Check that the transaction takes a new snapshot for each statement.  Above
 * READ COMMITTED, it would not see the changes that are reported.
 *
 * Errors: ERRCODE_FEATURE_NOT_SUPPORTED.
 */
static void
check_isolation(const char *function)
{
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be used in a transaction of isolation level %s",
						function,
						XactIsoLevel == XACT_SERIALIZABLE ? "SERIALIZABLE" :
						"REPEATABLE READ"),
				 errdetail("The snapshot of this transaction is older than the position."),
				 errhint("Use a READ COMMITTED transaction, or set \"default_transaction_isolation\" to \"read committed\".")));
}

/*
 * Get the counter of a position.  Returns false if the position is NULL or not
 * known here.
 *
 * Errors: ERRCODE_INVALID_TEXT_REPRESENTATION.
 */
static bool
get_position(NullableDatum *arg, uint64 *counter)
{
	char	   *position;
	bool		known;

	if (arg->isnull)
		return false;

	position = TextDatumGetCString(arg->value);
	if (!pinpoint_positions_parse(position, counter, &known))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
				 errmsg("invalid input syntax for position: \"%s\"", position),
				 errhint("Use a result of pinpoint.position() or pinpoint.changed_since(), the position of a heartbeat, or NULL.")));
	return known;
}

/*
 * Get the channels.  Checks their names as pg_notify() does.
 *
 * Errors: ERRCODE_NULL_VALUE_NOT_ALLOWED, ERRCODE_INVALID_PARAMETER_VALUE.
 */
static Datum *
get_channels(NullableDatum *arg, int *nchannels)
{
	Datum	   *channels;
	bool	   *nulls;

	if (arg->isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("list of channels cannot be null")));

	deconstruct_array(DatumGetArrayTypeP(arg->value), TEXTOID, -1, false,
					  TYPALIGN_INT, &channels, &nulls, nchannels);
	for (int i = 0; i < *nchannels; i++)
	{
		Size		len;

		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("null array element not allowed in this context")));
		len = VARSIZE_ANY_EXHDR(DatumGetTextPP(channels[i]));
		if (len == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("channel name cannot be empty")));
		if (len >= NAMEDATALEN)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("channel name too long")));
	}
	return channels;
}

/*
 * Was a channel notified since the position with this counter?  The name was
 * checked before.
 */
static bool
channel_changed(Datum channel, uint64 counter)
{
	text	   *name = DatumGetTextPP(channel);
	char		buffer[NAMEDATALEN];

	text_to_cstring_buffer(name, buffer, sizeof(buffer));
	return pinpoint_positions_changed(buffer, counter);
}

/*
 * The row type of changed_since().  Clients may call it very often, so the
 * type is looked up once in each session.
 */
static TupleDesc
row_type(FunctionCallInfo fcinfo)
{
	static TupleDesc row_type = NULL;

	if (row_type == NULL)
	{
		TupleDesc	tupdesc;
		MemoryContext oldcontext;

		if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "return type must be a row type");
		oldcontext = MemoryContextSwitchTo(TopMemoryContext);
		row_type = BlessTupleDesc(CreateTupleDescCopy(tupdesc));
		MemoryContextSwitchTo(oldcontext);
	}
	return row_type;
}

static text *
position_text(uint64 counter)
{
	char		position[PINPOINT_POSITION_LENGTH + 1];

	pinpoint_positions_format(counter, position);
	return cstring_to_text_with_len(position, PINPOINT_POSITION_LENGTH);
}
