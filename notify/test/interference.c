/*-------------------------------------------------------------------------
 *
 * interference.c
 *		A library that disturbs transactions, for the tests.
 *
 * If it is loaded by LOAD, its callbacks run in a commit before those of pg_pinpoint.
 * If it is preloaded before pg_pinpoint, they run after them.
 *
 *	interference.pause			where transactions of this session pause: in
 *								"pre_commit", after the "commit" record, or when
 *								they "drop" an object
 *	interference.gate			they pause while this file exists
 *	interference.fail_idle		number of transactions without a statement that fail
 *								in pre-commit: those that PostgreSQL runs for an
 *								interrupt
 *	interference.lose_interrupts	number of such transactions that have no effect
 *
 * A session that pauses waits for an event of type Extension.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <unistd.h>

#include "access/xact.h"
#include "access/xloginsert.h"
#include "catalog/objectaccess.h"
#include "commands/async.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/message.h"
#include "storage/lwlock.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

typedef enum PausePlace
{
	PAUSE_NOWHERE,
	PAUSE_PRE_COMMIT,
	PAUSE_COMMIT,
	PAUSE_DROP
}			PausePlace;

static const struct config_enum_entry pause_options[] = {
	{"nowhere", PAUSE_NOWHERE, false},
	{"pre_commit", PAUSE_PRE_COMMIT, false},
	{"commit", PAUSE_COMMIT, false},
	{"drop", PAUSE_DROP, false},
	{NULL, 0, false}
};

static int	pause_place = PAUSE_NOWHERE;
static char *gate = NULL;
static int	fail_idle = 0;
static int	lose_interrupts = 0;

static object_access_hook_type prev_object_access = NULL;

PG_FUNCTION_INFO_V1(interference_unlisten_all);
PG_FUNCTION_INFO_V1(interference_emit);
PG_FUNCTION_INFO_V1(interference_look_at_channels);

/*
 * As an extension in C may do it, past the SQL command.
 */
Datum
interference_unlisten_all(PG_FUNCTION_ARGS)
{
	Async_UnlistenAll();
	PG_RETURN_VOID();
}

/*
 * interference_emit(content bytea): write a logical message with the prefix of
 * pg_pinpoint, as nobody can by pg_logical_emit_message().
 */
Datum
interference_emit(PG_FUNCTION_ARGS)
{
	static char prefix[] = "pg_pinpoint\0";
	bytea	   *content = PG_GETARG_BYTEA_PP(0);
	xl_logical_message record = {
		.dbId = MyDatabaseId,
		.transactional = true,
		.prefix_size = sizeof(prefix),
		.message_size = VARSIZE_ANY_EXHDR(content),
	};

	(void) GetCurrentTransactionId();
	XLogBeginInsert();
	XLogRegisterData((char *) &record, SizeOfLogicalMessage);
	XLogRegisterData(prefix, sizeof(prefix));
	XLogRegisterData(VARDATA_ANY(content), VARSIZE_ANY_EXHDR(content));
	(void) XLogInsert(RM_LOGICALMSG_ID, XLOG_LOGICAL_MESSAGE);
	PG_RETURN_VOID();
}

static void
pause_at(PausePlace place)
{
	if (pause_place != (int) place || gate == NULL || gate[0] == '\0')
		return;

	pgstat_report_wait_start(PG_WAIT_EXTENSION);
	while (access(gate, F_OK) == 0)
		pg_usleep(1000);
	pgstat_report_wait_end();
}

/*
 * interference_look_at_channels(partitions int): keep the locks of all partitions of
 * the channel map in shared mode, as somebody does who looks, while the gate exists.
 */
Datum
interference_look_at_channels(PG_FUNCTION_ARGS)
{
	LWLockPadded *locks = GetNamedLWLockTranche("PinpointChannelMap");
	int			n = PG_GETARG_INT32(0);

	for (int i = 0; i < n; i++)
		LWLockAcquire(&locks[i].lock, LW_SHARED);
	pgstat_report_wait_start(PG_WAIT_EXTENSION);
	while (access(gate, F_OK) == 0)
		pg_usleep(1000);
	pgstat_report_wait_end();
	for (int i = n - 1; i >= 0; i--)
		LWLockRelease(&locks[i].lock);
	PG_RETURN_VOID();
}

static bool
is_idle_transaction(void)
{
	return ActivePortal == NULL && debug_query_string == NULL;
}

static void
at_transaction_event(XactEvent event, void *arg)
{
	static bool losing = false;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (is_idle_transaction() && fail_idle > 0)
			{
				fail_idle--;
				ereport(ERROR, (errmsg("interference")));
			}
			if (is_idle_transaction() && lose_interrupts > 0)
			{
				/* pg_pinpoint leaves it to the next one, which never comes */
				lose_interrupts--;
				losing = true;
				notifyInterruptPending = true;
			}
			pause_at(PAUSE_PRE_COMMIT);
			break;
		case XACT_EVENT_COMMIT:
			if (losing)
				notifyInterruptPending = false;
			losing = false;
			pause_at(PAUSE_COMMIT);
			break;
		default:
			break;
	}
}

static void
object_access(ObjectAccessType access, Oid class_id, Oid object_id,
			  int sub_id, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, class_id, object_id, sub_id, arg);
	if (access == OAT_DROP)
		pause_at(PAUSE_DROP);
}

void
_PG_init(void)
{
	DefineCustomEnumVariable("interference.pause",
							 "Where transactions pause.", NULL,
							 &pause_place, PAUSE_NOWHERE, pause_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("interference.gate",
							   "They pause while this file exists.", NULL,
							   &gate, "", PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("interference.fail_idle",
							"So many transactions without a statement fail.",
							NULL, &fail_idle, 0, 0, INT_MAX,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("interference.lose_interrupts",
							"So many of them have no effect.", NULL,
							&lose_interrupts, 0, 0, INT_MAX,
							PGC_USERSET, 0, NULL, NULL, NULL);

	prev_object_access = object_access_hook;
	object_access_hook = object_access;
	RegisterXactCallback(at_transaction_event, NULL);
}
