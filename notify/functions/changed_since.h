/*-------------------------------------------------------------------------
 *
 * changed_since.h
 *		The functions pinpoint.position() and pinpoint.changed_since().
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_CHANGED_SINCE_H
#define PINPOINT_CHANGED_SINCE_H


/* The arguments of a query, and its result. */
typedef struct PinpointQuery
{
	bool		known;			/* the position is known here */
	uint64		counter;		/* of the position */
	Datum	   *channels;		/* text.  After the query, the first nchanged
								 * of them have changed */
	int			nchannels;
	int			nchanged;
	uint64		next;			/* the counter of the next position */
} PinpointQuery;

/* The row type of a function, as found in this session. */
typedef struct PinpointRowType
{
	Oid			function;		/* InvalidOid: not looked up yet */
	TupleDesc	tupdesc;		/* in TopMemoryContext */
} PinpointRowType;

extern void pinpoint_changed_since_check_isolation(const char *function);
extern void pinpoint_changed_since_get_arguments(NullableDatum *position,
												 NullableDatum *channels,
												 PinpointQuery *query);
extern void pinpoint_changed_since_execute(PinpointQuery *query);
extern TupleDesc pinpoint_changed_since_row_type(FunctionCallInfo fcinfo,
												 PinpointRowType *known);
extern Datum pinpoint_changed_since_result(PinpointQuery *query,
										   TupleDesc row_type);

#endif							/* PINPOINT_CHANGED_SINCE_H */
