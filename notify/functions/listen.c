/*-------------------------------------------------------------------------
 *
 * listen.c
 *		The functions pinpoint.listen() and pinpoint.unlisten(): LISTEN and
 *		UNLISTEN with channels as parameters.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "functions/listen.h"
#include "sql/listen_notify.h"

PG_FUNCTION_INFO_V1(pinpoint_listen);
PG_FUNCTION_INFO_V1(pinpoint_unlisten);

static void execute_all(FunctionCallInfo fcinfo, PinpointActionKind kind);

/*
 * pinpoint.listen(VARIADIC channels text[]): executes LISTEN for each channel.
 *
 * Errors: those of LISTEN; those of pinpoint_listen_get_channels().  Then it
 * has no effect for any channel.
 */
Datum
pinpoint_listen(PG_FUNCTION_ARGS)
{
	execute_all(fcinfo, PINPOINT_LISTEN);
	PG_RETURN_VOID();
}

/*
 * pinpoint.unlisten(VARIADIC channels text[]): executes UNLISTEN for each
 * channel.
 *
 * Errors: those of UNLISTEN; those of pinpoint_listen_get_channels().
 */
Datum
pinpoint_unlisten(PG_FUNCTION_ARGS)
{
	execute_all(fcinfo, PINPOINT_UNLISTEN);
	PG_RETURN_VOID();
}

static void
execute_all(FunctionCallInfo fcinfo, PinpointActionKind kind)
{
	Datum	   *channels;
	int			n;

	pinpoint_statement_check_action(kind);
	channels = pinpoint_listen_get_channels(&fcinfo->args[0], &n);
	for (int i = 0; i < n; i++)
	{
		char		channel[NAMEDATALEN];

		CHECK_FOR_INTERRUPTS();
		text_to_cstring_buffer(DatumGetTextPP(channels[i]), channel,
							   sizeof(channel));
		pinpoint_statement_execute_action(kind, channel);
	}
}

/*
 * Get a list of channels, of type text[].  Checks the names as pg_notify()
 * does.
 *
 * *nchannels: set to their number.
 *
 * Errors: ERRCODE_NULL_VALUE_NOT_ALLOWED for a NULL list or channel;
 * ERRCODE_INVALID_PARAMETER_VALUE for a name that no channel can have.
 */
Datum *
pinpoint_listen_get_channels(NullableDatum *arg, int *nchannels)
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
		text	   *channel;

		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("null array element not allowed in this context")));
		channel = DatumGetTextPP(channels[i]);
		pinpoint_statement_check_channel_length(VARSIZE_ANY_EXHDR(channel));
	}
	return channels;
}
