/*-------------------------------------------------------------------------
 *
 * notify_row.c
 *		The trigger function pinpoint.notify_row().
 *
 * Its arguments are templates of the channel and, optionally, of the payload.
 * {column} stands for the value of a column, as text; {{ and }} stand for
 * braces.  The templates are expanded for the new row and for the old row.  If
 * the channels differ, both are notified, each with the payload of its row.
 * If they are equal, the payload is that of the new row.  If a column of the
 * channel is NULL, there is no notification for this row.  In a payload, NULL
 * is an empty string.
 *
 * A template is parsed once per statement and table.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_attribute.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "sql/listen_notify.h"

/* A literal text, followed by the value of a column. */
typedef struct Part
{
	char	   *text;
	AttrNumber	column;			/* 0 for none, which is the last part */
	FmgrInfo	output;
} Part;

/* The parts up to the first one without a column. */
typedef Part *Template;

typedef struct RowTrigger
{
	Oid			relid;
	Oid			trigger;
	MemoryContext row_context;	/* for the values of one row */
	Template	channel;
	Template	payload;
} RowTrigger;

PG_FUNCTION_INFO_V1(pinpoint_notify_row);

static RowTrigger *prepare(FunctionCallInfo fcinfo, TriggerData *data);
static Template parse(const char *source, Relation rel);
static AttrNumber find_column(const char *name, int len, Relation rel,
							  const char *source);
static char *expand(Template template, HeapTuple row, TupleDesc desc,
					bool null_is_empty);
static void check_length(const char *channel, TriggerData *data);

/*
 * pinpoint.notify_row('channel' [, 'payload']), as AFTER ... FOR EACH ROW.
 *
 * Errors: ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED if it is not called so;
 * those of parse(), check_length() and of a notification.
 */
Datum
pinpoint_notify_row(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	RowTrigger *trigger;
	HeapTuple	rows[2];
	int			nrows = 1;
	TupleDesc	desc;
	const char *first_channel = NULL;
	MemoryContext oldcontext;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager",
						"notify_row")));
	if (!TRIGGER_FIRED_AFTER(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be fired AFTER ROW",
						"notify_row")));

	trigger = fcinfo->flinfo->fn_extra;
	if (trigger == NULL ||
		trigger->relid != RelationGetRelid(data->tg_relation) ||
		trigger->trigger != data->tg_trigger->tgoid)
		trigger = prepare(fcinfo, data);

	rows[0] = data->tg_trigtuple;
	if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
	{
		rows[0] = data->tg_newtuple;
		rows[1] = data->tg_trigtuple;
		nrows = 2;
	}

	desc = RelationGetDescr(data->tg_relation);
	oldcontext = MemoryContextSwitchTo(trigger->row_context);
	for (int i = 0; i < nrows; i++)
	{
		const char *channel = expand(trigger->channel, rows[i], desc, false);

		if (channel == NULL ||
			(first_channel != NULL && strcmp(channel, first_channel) == 0))
			continue;
		first_channel = channel;
		check_length(channel, data);
		pinpoint_statement_notify(channel,
								  expand(trigger->payload, rows[i], desc,
										 true));
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(trigger->row_context);

	return PointerGetDatum(NULL);
}

/*
 * Parse the templates, at the first row of a statement.
 */
static RowTrigger *
prepare(FunctionCallInfo fcinfo, TriggerData *data)
{
	Trigger    *definition = data->tg_trigger;
	RowTrigger *trigger;
	MemoryContext oldcontext;

	if (definition->tgnargs < 1 || definition->tgnargs > 2)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("trigger \"%s\" must have one or two arguments: the channel, and optionally the payload",
						definition->tgname)));

	oldcontext = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	trigger = palloc0(sizeof(RowTrigger));
	trigger->relid = RelationGetRelid(data->tg_relation);
	trigger->trigger = definition->tgoid;
	trigger->row_context = AllocSetContextCreate(CurrentMemoryContext,
												 "pinpoint.notify_row",
												 ALLOCSET_SMALL_SIZES);
	trigger->channel = parse(definition->tgargs[0], data->tg_relation);
	trigger->payload = parse(definition->tgnargs > 1 ? definition->tgargs[1] : "",
							 data->tg_relation);
	MemoryContextSwitchTo(oldcontext);

	fcinfo->flinfo->fn_extra = trigger;
	return trigger;
}

/*
 * Errors: ERRCODE_INVALID_PARAMETER_VALUE for an unmatched brace; those of
 * find_column().
 */
static Template
parse(const char *source, Relation rel)
{
	Template	parts = palloc0((strlen(source) + 1) * sizeof(Part));
	Part	   *part = parts;
	StringInfoData text;

	initStringInfo(&text);
	for (const char *c = source; *c != '\0'; c++)
	{
		if ((*c == '{' || *c == '}') && c[1] == *c)
			appendStringInfoChar(&text, *c++);
		else if (*c == '{' && strchr(c, '}') != NULL)
		{
			const char *end = strchr(c, '}');
			Oid			output;
			bool		is_varlena;

			part->text = pstrdup(text.data);
			resetStringInfo(&text);
			part->column = find_column(c + 1, end - c - 1, rel, source);
			getTypeOutputInfo(TupleDescAttr(RelationGetDescr(rel),
											part->column - 1)->atttypid,
							  &output, &is_varlena);
			fmgr_info(output, &part->output);
			part++;
			c = end;
		}
		else if (*c == '{' || *c == '}')
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unmatched brace in template \"%s\"", source),
					 errhint("Write {{ or }} for a brace.")));
		else
			appendStringInfoChar(&text, *c);
	}
	part->text = text.data;

	return parts;
}

/*
 * Errors: ERRCODE_UNDEFINED_COLUMN; ERRCODE_FEATURE_NOT_SUPPORTED for a
 * virtual generated column, which has no value in a trigger.
 */
static AttrNumber
find_column(const char *name, int len, Relation rel, const char *source)
{
	char	   *column = pnstrdup(name, len);
	AttrNumber	number = SPI_fnumber(RelationGetDescr(rel), column);

	if (number <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist",
						column, RelationGetRelationName(rel)),
				 errdetail("It is in the template \"%s\".", source)));
#ifdef ATTRIBUTE_GENERATED_VIRTUAL
	if (TupleDescAttr(RelationGetDescr(rel), number - 1)->attgenerated ==
		ATTRIBUTE_GENERATED_VIRTUAL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column \"%s\" of relation \"%s\" is a virtual generated column",
						column, RelationGetRelationName(rel)),
				 errdetail("It is in the template \"%s\", and has no value in a trigger.",
						   source)));
#endif
	pfree(column);
	return number;
}

/*
 * Returns NULL if a column is NULL, unless this is an empty string.
 */
static char *
expand(Template template, HeapTuple row, TupleDesc desc, bool null_is_empty)
{
	StringInfoData result;

	/* Most templates are either literal, or "text{column}". */
	if (template->column == 0)
		return template->text;

	initStringInfo(&result);
	for (Part *part = template;; part++)
	{
		Datum		value;
		bool		isnull;

		appendStringInfoString(&result, part->text);
		if (part->column == 0)
			break;
		value = heap_getattr(row, part->column, desc, &isnull);
		if (!isnull)
			appendStringInfoString(&result,
								   OutputFunctionCall(&part->output, value));
		else if (!null_is_empty)
			return NULL;
	}
	return result.data;
}

/*
 * Errors: ERRCODE_INVALID_PARAMETER_VALUE, as for a notification, but with the
 * trigger.
 */
static void
check_length(const char *channel, TriggerData *data)
{
	if (strlen(channel) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("channel name too long"),
				 errdetail("Trigger \"%s\" of relation \"%s\" made a name of %zu bytes. The maximum is %d.",
						   data->tg_trigger->tgname,
						   RelationGetRelationName(data->tg_relation),
						   strlen(channel), NAMEDATALEN - 1)));
}
