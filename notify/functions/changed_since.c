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
#include "miscadmin.h"
#include "port/atomics.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "base/first_number.h"
#include "base/hash.h"
#include "base/preload.h"
#include "functions/changed_since.h"
#include "functions/listen.h"
#include "listener/listening.h"
#include "positions/position_text.h"
#include "positions/positions.h"
#include "sql/pending.h"

PG_FUNCTION_INFO_V1(pinpoint_position);
PG_FUNCTION_INFO_V1(pinpoint_changed_since);

static bool get_position(NullableDatum *arg, uint64 *counter);
static bool channel_changed(Datum channel, uint64 counter);
static bool begins_to_listen(const char *channel);
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

	pinpoint_preload_check();
	pinpoint_changed_since_check_isolation("pinpoint.position()");
	counter = pinpoint_positions_counter();

	/*
	 * The counter is read before later snapshots are taken.  The partner is
	 * pinpoint_commit_order_publish(), which counts a transaction after it
	 * has become visible.  Without the barrier, a snapshot could be older
	 * than the position: the client would not see a row, and no later call
	 * would report its channel.
	 */
	pg_memory_barrier();
	PG_RETURN_TEXT_P(position_text(counter));
}

/*
 * pinpoint.changed_since(position text, VARIADIC channels text[]): returns the
 * channels that were notified in this
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
	static PinpointRowType row_type = {InvalidOid, NULL};
	PinpointQuery query;

	pinpoint_preload_check();
	pinpoint_changed_since_check_isolation("pinpoint.changed_since()");
	pinpoint_changed_since_get_arguments(&fcinfo->args[0], &fcinfo->args[1],
										 &query);
	pinpoint_changed_since_execute(&query);
	PG_RETURN_DATUM(pinpoint_changed_since_result(&query,
												  pinpoint_changed_since_row_type(fcinfo, &row_type)));
}

/*
 * Get the arguments of a query: the position, and the list of channels.
 *
 * Errors: see pinpoint_changed_since().
 */
void
pinpoint_changed_since_get_arguments(NullableDatum *position,
									 NullableDatum *channels,
									 PinpointQuery *query)
{
	query->counter = 0;
	query->known = get_position(position, &query->counter);
	query->channels = pinpoint_listen_get_channels(channels, &query->nchannels);
}

/*
 * Find the channels that have changed, and move them to the front of the
 * array.  If there are none, the array is unchanged.
 *
 * Errors: the statement is cancelled.
 */
void
pinpoint_changed_since_execute(PinpointQuery *query)
{
	PinpointLook look;

	Assert(query->nchannels >= 0);
	Assert(!query->known || query->counter >= PINPOINT_FIRST_NUMBER);

	pinpoint_positions_begin_look(&look);

	/* A position above the counter was never returned. */
	if (!query->known || query->counter > look.counter ||
		pinpoint_positions_all_changed(query->counter))
		look.all = true;

	query->nchanged = 0;
	for (int i = 0; i < query->nchannels; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (look.all || channel_changed(query->channels[i], query->counter))
			query->channels[query->nchanged++] = query->channels[i];
	}
	query->next = look.counter;
}

/*
 * The row type of changed_since(), which is pinpoint.changes, or an anonymous
 * one at version 1.0 of the extension; and of wait().  Clients may call these
 * very often, so it is looked up once in each session, and again if the
 * extension was created anew or updated.
 *
 * known: of this function alone; empty at first.
 */
TupleDesc
pinpoint_changed_since_row_type(FunctionCallInfo fcinfo, PinpointRowType *known)
{
	if (known->function != fcinfo->flinfo->fn_oid)
	{
		TupleDesc	tupdesc;
		MemoryContext oldcontext;

		if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "return type must be a row type");
		oldcontext = MemoryContextSwitchTo(TopMemoryContext);
		known->tupdesc = BlessTupleDesc(CreateTupleDescCopy(tupdesc));
		MemoryContextSwitchTo(oldcontext);
		known->function = fcinfo->flinfo->fn_oid;
	}
	return known->tupdesc;
}

/*
 * The row that changed_since() and wait() return.
 */
Datum
pinpoint_changed_since_result(PinpointQuery *query, TupleDesc row_type)
{
	Datum		values[2];
	bool		nulls[2] = {false, false};

	values[0] = PointerGetDatum(construct_array(query->channels,
												query->nchanged, TEXTOID,
												-1, false, TYPALIGN_INT));
	values[1] = PointerGetDatum(position_text(query->next));
	return HeapTupleGetDatum(heap_form_tuple(row_type, values, nulls));
}

/*
 * Check that the transaction takes a new snapshot for each statement.  Above
 * READ COMMITTED, it would not see the changes that are reported.
 *
 * Errors: ERRCODE_FEATURE_NOT_SUPPORTED.
 */
void
pinpoint_changed_since_check_isolation(const char *function)
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
	if (!pinpoint_position_text_parse(position, counter, &known))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
				 errmsg("invalid input syntax for position: \"%s\"", position),
				 errhint("Use a result of pinpoint.position() or pinpoint.changed_since(), the position of a heartbeat, or NULL.")));
	return known;
}

/*
 * Was a channel notified since the position with this counter?  The name was
 * checked before.
 *
 * Also true if this transaction begins to listen on it: a notification that is
 * published before the commit of the LISTEN may not arrive.
 */
static bool
channel_changed(Datum channel, uint64 counter)
{
	text	   *name = DatumGetTextPP(channel);
	char		buffer[NAMEDATALEN];

	text_to_cstring_buffer(name, buffer, sizeof(buffer));
	return pinpoint_positions_changed(buffer, counter) ||
		(pinpoint_pending_exists() && begins_to_listen(buffer));
}

/*
 * Has this transaction executed LISTEN on a channel on which this session did
 * not listen before?  Also true if that is in doubt: then the commit may enter
 * the channel anew.
 */
static bool
begins_to_listen(const char *channel)
{
	uint32		hash = pinpoint_hash_channel(channel);
	uint64		since;
	bool		shared;

	return pinpoint_pending_listens(channel, hash) &&
		(pinpoint_listening_in_doubt() ||
		 !pinpoint_listening_on(channel, hash, &since, &shared));
}

static text *
position_text(uint64 counter)
{
	char		position[PINPOINT_POSITION_LENGTH + 1];

	pinpoint_position_text_format(counter, MyDatabaseId, position);
	return cstring_to_text_with_len(position, PINPOINT_POSITION_LENGTH);
}
