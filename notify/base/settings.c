/*-------------------------------------------------------------------------
 *
 * settings.c
 *		The settings pinpoint.*, described in docs/reference.md.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"
#include "utils/varlena.h"

#include "base/settings.h"

/* In kB, like the maximum of PostgreSQL's own queue. */
#define DEFAULT_QUEUE_SIZE	Min(8 * 1024 * 1024, MAX_KILOBYTES)

/* In kB. */
#define MIN_CHANNEL_MEMORY	1024

/* Maximum of pinpoint.share_limit. */
#define MAX_SHARE_LIMIT		64

/*
 * Maximum of pinpoint.max_payload_size, in bytes.  A payload must fit into one
 * WAL record, and into one message to the client, with up to four times the
 * length after conversion to the encoding of the client.
 */
#define LARGEST_PAYLOAD		(16 * 1024 * 1024)

bool		pinpoint_enabled = true;
int			pinpoint_queue_size = DEFAULT_QUEUE_SIZE;
int			pinpoint_queue_memory = 16 * 1024;
int			pinpoint_channel_memory = -1;
int			pinpoint_max_listener_lag = -1;
int			pinpoint_on_lag = PINPOINT_ON_LAG_WARN;
int			pinpoint_latency_target = 0;
bool		pinpoint_waker = true;
int			pinpoint_max_payload_size = PINPOINT_OWN_MAX_PAYLOAD;
int			pinpoint_share_limit = 2;
bool		pinpoint_fold = false;
bool		pinpoint_replicate_notifications = false;
int			pinpoint_heartbeat_interval = 10 * 1000;
int			pinpoint_max_waiting = -1;
#ifdef USE_ASSERT_CHECKING
int			pinpoint_fault = PINPOINT_FAULT_NONE;
#endif

static char *shared_channels = NULL;
static char *notify_on_listen = NULL;

/* Set when all settings have their values, and can be compared. */
static bool all_settings_known = false;

static const struct config_enum_entry on_lag_options[] = {
	{"warn", PINPOINT_ON_LAG_WARN, false},
	{"disconnect", PINPOINT_ON_LAG_DISCONNECT, false},
	{NULL, 0, false}
};

#ifdef USE_ASSERT_CHECKING
static const struct config_enum_entry fault_options[] = {
	{"none", PINPOINT_FAULT_NONE, false},
	{"arrival_order", PINPOINT_FAULT_ARRIVAL_ORDER, false},
	{"drop_signals", PINPOINT_FAULT_DROP_SIGNALS, false},
	{"counter_first", PINPOINT_FAULT_COUNTER_FIRST, false},
	{"missing_place", PINPOINT_FAULT_MISSING_PLACE, false},
	{"count_late", PINPOINT_FAULT_COUNT_LATE, false},
	{"busy_waker", PINPOINT_FAULT_BUSY_WAKER, false},
	{"no_reserve", PINPOINT_FAULT_NO_RESERVE, false},
	{NULL, 0, false}
};
#endif

static bool check_channels(char **newval, void **extra, GucSource source);
static bool is_in_list(const char *list, const char *channel);
static bool check_channel_memory(int *newval, void **extra, GucSource source);
static bool check_max_listener_lag(int *newval, void **extra,
								   GucSource source);

/*
 * Define the settings.  Called when the library is loaded.
 */
void
pinpoint_settings_define(void)
{
	DefineCustomBoolVariable("pinpoint.enabled",
							 "Enables pg_pinpoint for notifications that a session sends.",
							 "If off, NOTIFY and pg_notify() use PostgreSQL's own queue, which wakes every listener of the database before PostgreSQL 19.",
							 &pinpoint_enabled,
							 true,
							 PGC_SUSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("pinpoint.queue_size",
							"Sets the maximum size of the queue of unread notifications.",
							"The part that exceeds pinpoint.queue_memory is a file in pg_notify.",
							&pinpoint_queue_size,
							DEFAULT_QUEUE_SIZE,
							64,
							MAX_KILOBYTES,
							PGC_POSTMASTER,
							GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pinpoint.queue_memory",
							"Sets the amount of shared memory for the queue of unread notifications.",
							NULL,
							&pinpoint_queue_memory,
							16 * 1024,
							64,
							MAX_KILOBYTES,
							PGC_POSTMASTER,
							GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pinpoint.channel_memory",
							"Sets the amount of shared memory for the channels on which sessions listen.",
							"A channel takes about 135 bytes, plus 13 bytes per listener if it has more than two. A role can use at most about half of the memory. If a channel does not fit, all notifications of the database wake its listener. -1 chooses the size from the number of possible sessions.",
							&pinpoint_channel_memory,
							-1,
							-1,
							MAX_KILOBYTES,
							PGC_POSTMASTER,
							GUC_UNIT_KB,
							check_channel_memory, NULL, NULL);

	DefineCustomIntVariable("pinpoint.max_listener_lag",
							"Sets the backlog of a listener above which pinpoint.on_lag applies.",
							"The backlog is the number of bytes published server-wide since the listener's first unread notification. -1 means no limit.",
							&pinpoint_max_listener_lag,
							-1,
							-1,
							MAX_KILOBYTES,
							PGC_SIGHUP,
							GUC_UNIT_KB,
							check_max_listener_lag, NULL, NULL);

	DefineCustomEnumVariable("pinpoint.on_lag",
							 "Sets the action for a listener whose backlog exceeds pinpoint.max_listener_lag.",
							 "\"warn\" writes a warning, \"disconnect\" ends the session of the listener.",
							 &pinpoint_on_lag,
							 PINPOINT_ON_LAG_WARN,
							 on_lag_options,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("pinpoint.latency_target",
							"Sets the minimum time between two deliveries of notifications to this session.",
							"Each delivery contains all notifications that have arrived meanwhile. Zero delivers each notification immediately.",
							&pinpoint_latency_target,
							0,
							0,
							60 * 60 * 1000,
							PGC_USERSET,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("pinpoint.fold",
							 "Removes duplicates among unread notifications of this session.",
							 "Duplicates have the same channel and payload, and are delivered together.",
							 &pinpoint_fold,
							 false,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("pinpoint.replicate",
							 "Writes notifications to the WAL, for listeners on standbys.",
							 "Each transaction writes its notifications as transactional logical messages.",
							 &pinpoint_replicate_notifications,
							 false,
							 PGC_SUSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomStringVariable("pinpoint.shared_channels",
							   "Lists the channels that this session shares with other sessions of its role when it listens on them.",
							   "Each notification goes to pinpoint.share_limit of the sessions of a role that share the channel. Write names as in LISTEN, and the whole list in single quotes ('\"Jobs\", other'). An asterisk at the end of a name matches any characters.",
							   &shared_channels,
							   "",
							   PGC_USERSET,
							   GUC_LIST_INPUT,
							   check_channels, NULL, NULL);

	DefineCustomIntVariable("pinpoint.share_limit",
							"Sets the number of sharing sessions of a role that receive each notification.",
							"For each role, the value of the session that shared the channel last applies.",
							&pinpoint_share_limit,
							2,
							1,
							MAX_SHARE_LIMIT,
							PGC_USERSET,
							0,
							NULL, NULL, NULL);

	DefineCustomStringVariable("pinpoint.notify_on_listen",
							   "Lists the channels on which this session receives a notification when it begins to listen.",
							   "Only this session receives it. Write names as in pinpoint.shared_channels.",
							   &notify_on_listen,
							   "",
							   PGC_USERSET,
							   GUC_LIST_INPUT,
							   check_channels, NULL, NULL);

	DefineCustomIntVariable("pinpoint.max_payload_size",
							"Sets the maximum length of a payload.",
							"Only notifications that go through pg_pinpoint can have more than 7999 bytes.",
							&pinpoint_max_payload_size,
							PINPOINT_OWN_MAX_PAYLOAD,
							PINPOINT_OWN_MAX_PAYLOAD,
							LARGEST_PAYLOAD,
							PGC_SUSET,
							GUC_UNIT_BYTE,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("pinpoint.waker",
							 "Starts a background worker that signals listeners if there are many.",
							 "If off, senders signal all listeners, and no heartbeats are sent.",
							 &pinpoint_waker,
							 true,
							 PGC_POSTMASTER,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("pinpoint.heartbeat_interval",
							"Sets the time between two notifications on the channel pinpoint_heartbeat.",
							"They show a listener that its connection works. Zero disables them.",
							&pinpoint_heartbeat_interval,
							10 * 1000,
							0,
							60 * 60 * 1000,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pinpoint.max_waiting",
							"Sets the maximum number of sessions of a role in pinpoint.wait().",
							"The value of the session that begins to wait applies. Superusers have no limit. -1 means no limit.",
							&pinpoint_max_waiting,
							-1,
							-1,
							INT_MAX,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);

#ifdef USE_ASSERT_CHECKING
	DefineCustomEnumVariable("pinpoint.debug_fault",
							 "Introduces a fault, to check that tests detect it.",
							 "This is a developer option. Any value other than \"none\" breaks the promises of LISTEN/NOTIFY.",
							 &pinpoint_fault,
							 PINPOINT_FAULT_NONE,
							 fault_options,
							 PGC_SUSET,
							 GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL,
							 NULL, NULL, NULL);
#endif

	MarkGUCPrefixReserved("pinpoint");
}

/*
 * Check whether the settings are consistent.  Called when the server starts,
 * after all of them have their values.  The check hooks cannot do this before.
 *
 * Errors: FATAL, if they are not.
 */
void
pinpoint_settings_check(void)
{
	if (pinpoint_max_listener_lag > pinpoint_queue_size)
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"pinpoint.max_listener_lag\" (%d kB) must not be greater than \"pinpoint.queue_size\" (%d kB)",
						pinpoint_max_listener_lag, pinpoint_queue_size),
				 errhint("Set \"pinpoint.max_listener_lag\" to less than half of \"pinpoint.queue_size\", or to -1 for no limit.")));
	all_settings_known = true;
}

/*
 * The memory must have space for the buckets of the channel map, and for some
 * channels.
 */
static bool
check_channel_memory(int *newval, void **extra, GucSource source)
{
	if (*newval == -1 || *newval >= MIN_CHANNEL_MEMORY)
		return true;

	GUC_check_errdetail("\"pinpoint.channel_memory\" must be at least %d kB, or -1.",
						MIN_CHANNEL_MEMORY);
	return false;
}

/*
 * A limit above the size of the queue would have no effect.
 */
static bool
check_max_listener_lag(int *newval, void **extra, GucSource source)
{
	if (!all_settings_known || *newval <= pinpoint_queue_size)
		return true;

	GUC_check_errdetail("\"pinpoint.max_listener_lag\" must not be greater than \"pinpoint.queue_size\" (%d kB).",
						pinpoint_queue_size);
	return false;
}

/*
 * The value is a list of names.  Each can have an asterisk, at its end.
 */
static bool
check_channels(char **newval, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*newval);
	List	   *names;
	ListCell   *lc;
	bool		ok = SplitIdentifierString(copy, ',', &names);

	if (!ok)
		GUC_check_errdetail("List syntax is invalid.");
	foreach(lc, ok ? names : NIL)
	{
		const char *asterisk = strchr(lfirst(lc), '*');

		if (asterisk != NULL && asterisk[1] != '\0')
		{
			GUC_check_errdetail("An asterisk is allowed only at the end of a name: \"%s\".",
								(char *) lfirst(lc));
			ok = false;
			break;
		}
	}

	list_free(names);
	pfree(copy);
	return ok;
}

/*
 * Does this session share a channel if it listens on it now?
 *
 * Errors: out of memory.
 */
bool
pinpoint_settings_share_channel(const char *channel)
{
	return is_in_list(shared_channels, channel);
}

/*
 * Does this session receive a notification if it begins to listen on a channel
 * now?
 *
 * Errors: out of memory.
 */
bool
pinpoint_settings_notify_on_listen(const char *channel)
{
	return is_in_list(notify_on_listen, channel);
}

/*
 * Does the value of a setting, which check_channels() has checked, contain a
 * channel?
 *
 * Errors: out of memory.
 */
static bool
is_in_list(const char *list, const char *channel)
{
	char	   *copy;
	List	   *names;
	ListCell   *lc;
	bool		result = false;

	if (list[0] == '\0')
		return false;

	copy = pstrdup(list);
	if (!SplitIdentifierString(copy, ',', &names))
		elog(ERROR, "invalid list syntax: %s", list);
	foreach(lc, names)
	{
		const char *name = lfirst(lc);
		size_t		len = strlen(name);

		if (len > 0 && name[len - 1] == '*')
			result = strncmp(channel, name, len - 1) == 0;
		else
			result = strcmp(channel, name) == 0;
		if (result)
			break;
	}
	list_free(names);
	pfree(copy);
	return result;
}
