/*-------------------------------------------------------------------------
 *
 * pg_pinpoint.c
 *		Wiring: settings, shared memory, and the events of a transaction.
 *
 * The order of a commit, as far as it concerns us:
 *
 *	deferred triggers			the last user code that may LISTEN or NOTIFY
 *	XACT_EVENT_PRE_COMMIT		everything that may fail is done here
 *	commit record, flush, synchronous replication, visible to others
 *	XACT_EVENT_COMMIT			stamp: the place in the commit order is known
 *	locks released
 *	RESOURCE_RELEASE_AFTER_LOCKS	LISTENs and UNLISTENs take effect, then
 *								the batch is published
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "pinpoint.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

/* As much as PostgreSQL's own queue holds, in kB. */
#define DEFAULT_QUEUE_SIZE	Min(8 * 1024 * 1024, MAX_KILOBYTES)

/* Settings */
bool		pinpoint_enabled = true;
int			pinpoint_queue_size = DEFAULT_QUEUE_SIZE;	/* kB */
int			pinpoint_queue_memory = 16 * 1024;	/* kB */
int			pinpoint_max_listener_lag = -1; /* kB; no limit if negative */
int			pinpoint_on_lag = PINPOINT_ON_LAG_WARN;
int			pinpoint_latency_target = 0;	/* ms */
int			pinpoint_fault = PINPOINT_FAULT_NONE;

static const struct config_enum_entry on_lag_options[] = {
	{"warn", PINPOINT_ON_LAG_WARN, false},
	{"disconnect", PINPOINT_ON_LAG_DISCONNECT, false},
	{NULL, 0, false}
};

static const struct config_enum_entry fault_options[] = {
	{"none", PINPOINT_FAULT_NONE, false},
	{"arrival_order", PINPOINT_FAULT_ARRIVAL_ORDER, false},
	{"lookup", PINPOINT_FAULT_LOOKUP, false},
	{NULL, 0, false}
};

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/*
 * Has the current transaction passed its pre-commit?  Has it passed its commit
 * record, with something left to do?
 */
static bool pre_committed = false;
static bool committed = false;

static void define_settings(void);
static bool check_max_listener_lag(int *newval, void **extra,
								   GucSource source);
static void request_shmem(void);
static void startup_shmem(void);
static void at_transaction_event(XactEvent event, void *arg);
static void at_subtransaction_event(SubXactEvent event,
									SubTransactionId my_subid,
									SubTransactionId parent_subid, void *arg);
static void at_resource_release(ResourceReleasePhase phase, bool is_commit,
								bool is_top_level, void *arg);
static void pre_commit(void);
static void end_transaction(void);
static void at_exit(int code, Datum arg);

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_pinpoint must be loaded via shared_preload_libraries"),
				 errhint("Add pg_pinpoint to shared_preload_libraries in postgresql.conf and restart the server.")));

	define_settings();

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;

	pinpoint_statement_init();

	RegisterXactCallback(at_transaction_event, NULL);
	RegisterSubXactCallback(at_subtransaction_event, NULL);
	RegisterResourceReleaseCallback(at_resource_release, NULL);
}

static void
define_settings(void)
{
	DefineCustomBoolVariable("pinpoint.enabled",
							 "Sends notifications by pg_pinpoint.",
							 "If off, NOTIFY and pg_notify() use PostgreSQL's own queue and wake every listener of the database.",
							 &pinpoint_enabled,
							 true,
							 PGC_SUSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("pinpoint.queue_size",
							"Sets the size of the queue of notifications that are not yet read.",
							"What does not fit into pinpoint.queue_memory goes to a file in pg_notify.",
							&pinpoint_queue_size,
							DEFAULT_QUEUE_SIZE,
							64,
							MAX_KILOBYTES,
							PGC_POSTMASTER,
							GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pinpoint.queue_memory",
							"Sets how much of the queue of notifications is kept in shared memory.",
							NULL,
							&pinpoint_queue_memory,
							16 * 1024,
							64,
							MAX_KILOBYTES,
							PGC_POSTMASTER,
							GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pinpoint.max_listener_lag",
							"Sets how much a listener may leave unread before something is done about it.",
							"What is done says pinpoint.on_lag. -1 means no limit.",
							&pinpoint_max_listener_lag,
							-1,
							-1,
							MAX_KILOBYTES,
							PGC_SIGHUP,
							GUC_UNIT_KB,
							check_max_listener_lag, NULL, NULL);

	DefineCustomEnumVariable("pinpoint.on_lag",
							 "Sets what is done about a listener that is behind by more than pinpoint.max_listener_lag.",
							 "\"warn\" writes a warning, \"disconnect\" ends the session that listens.",
							 &pinpoint_on_lag,
							 PINPOINT_ON_LAG_WARN,
							 on_lag_options,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("pinpoint.latency_target",
							"Sets the time to collect notifications before they are delivered to this session.",
							"A session that waits for notifications gets them at most once in this time, and then all of them. Zero delivers each at once.",
							&pinpoint_latency_target,
							0,
							0,
							60 * 60 * 1000,
							PGC_USERSET,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomEnumVariable("pinpoint.debug_fault",
							 "Plants a fault, to see that the tests catch it.",
							 "This is a developer option. Anything but \"none\" breaks the promises of LISTEN/NOTIFY.",
							 &pinpoint_fault,
							 PINPOINT_FAULT_NONE,
							 fault_options,
							 PGC_SUSET,
							 GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL,
							 NULL, NULL, NULL);

	MarkGUCPrefixReserved("pinpoint");
}

/*
 * A limit that the queue can never reach would never do anything.  When the
 * server starts, this may be called before pinpoint.queue_size is known, so
 * startup_shmem() looks again.
 */
static bool
check_max_listener_lag(int *newval, void **extra, GucSource source)
{
	if (PinpointOrderLock == NULL || *newval <= pinpoint_queue_size)
		return true;

	GUC_check_errdetail("\"pinpoint.max_listener_lag\" must not be greater than \"pinpoint.queue_size\" (%d kB).",
						pinpoint_queue_size);
	return false;
}

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	RequestAddinShmemSpace(pinpoint_channel_map_shmem_size());
	RequestAddinShmemSpace(pinpoint_commit_order_shmem_size());
	RequestAddinShmemSpace(pinpoint_message_log_shmem_size());
	RequestAddinShmemSpace(pinpoint_wakeup_shmem_size());
	RequestAddinShmemSpace(pinpoint_slow_listener_shmem_size());

	/* As they are seen in pg_stat_activity.wait_event */
	RequestNamedLWLockTranche("PinpointOrder", 1);
	RequestNamedLWLockTranche("PinpointChannelMap", 1);
	RequestNamedLWLockTranche("PinpointStorage", 1);
}

static void
startup_shmem(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	if (pinpoint_max_listener_lag > pinpoint_queue_size)
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"pinpoint.max_listener_lag\" (%d kB) must not be greater than \"pinpoint.queue_size\" (%d kB)",
						pinpoint_max_listener_lag, pinpoint_queue_size),
				 errhint("Set \"pinpoint.max_listener_lag\" to less than half of \"pinpoint.queue_size\", or to -1 for no limit.")));

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	pinpoint_channel_map_shmem_init();
	pinpoint_commit_order_shmem_init();
	pinpoint_message_log_shmem_init();
	pinpoint_wakeup_shmem_init();
	pinpoint_slow_listener_shmem_init();
	LWLockRelease(AddinShmemInitLock);
}

static void
at_transaction_event(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			pre_committed = true;
			if (pinpoint_pending_exists())
				pre_commit();
			else
				pinpoint_deliver_if_woken();
			break;

		case XACT_EVENT_COMMIT:
			if (pinpoint_pending_exists())
			{
				pinpoint_commit_order_stamp();
				committed = true;
			}
			else
				end_transaction();
			break;

		case XACT_EVENT_ABORT:
			pinpoint_commit_order_withdraw();
			pinpoint_channel_map_abort(pinpoint_pending_actions());
			pinpoint_statement_at_abort();
			end_transaction();
			break;

		case XACT_EVENT_PRE_PREPARE:
			pre_committed = true;
			if (pinpoint_pending_exists())
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has executed LISTEN, UNLISTEN, or NOTIFY")));
			break;

		case XACT_EVENT_PREPARE:
			end_transaction();
			break;

		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			/* workers neither listen nor notify */
			break;
	}
}

static void
at_subtransaction_event(SubXactEvent event, SubTransactionId my_subid,
						SubTransactionId parent_subid, void *arg)
{
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		pinpoint_pending_at_subcommit();
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		pinpoint_pending_at_subabort();
		pinpoint_statement_at_abort();
	}
}

/*
 * The last moment at which a LISTEN or NOTIFY may fail.
 */
static void
pre_commit(void)
{
	static bool exit_callback_registered = false;
	MemoryContext oldcontext;

	if (!exit_callback_registered)
	{
		before_shmem_exit(at_exit, (Datum) 0);
		exit_callback_registered = true;
	}

	oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	if (pinpoint_pending_actions() != NIL)
		pinpoint_channel_map_prepare(pinpoint_pending_actions());
	if (pinpoint_pending_notifications() != NIL)
		pinpoint_commit_order_announce(pinpoint_pending_notifications());
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Called for every resource owner of the transaction, children first, and in
 * three phases.  Act once: when the locks of the transaction are gone.
 */
static void
at_resource_release(ResourceReleasePhase phase, bool is_commit,
					bool is_top_level, void *arg)
{
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS || !committed ||
		!is_commit || !is_top_level ||
		CurrentResourceOwner != TopTransactionResourceOwner)
		return;

	if (pinpoint_pending_actions() != NIL)
		pinpoint_channel_map_commit(pinpoint_pending_actions());
	pinpoint_commit_order_publish();
	end_transaction();
}

static void
end_transaction(void)
{
	pinpoint_pending_reset();
	pre_committed = false;
	committed = false;
	if (pinpoint_wakeup_registered())
		pinpoint_slow_listener_prepare();
}

/*
 * Has the transaction settled what it will do?  What other libraries do in
 * their own callbacks after that is too late for us.
 */
bool
pinpoint_pre_committed(void)
{
	return pre_committed;
}

/*
 * The session ends, possibly within a transaction.  Give up the slot first:
 * from then on nobody keeps or wakes anything for this session.
 */
static void
at_exit(int code, Datum arg)
{
	pinpoint_wakeup_unregister();
	if (committed)
		pinpoint_commit_order_publish();
	else
		pinpoint_commit_order_withdraw();
	pinpoint_message_log_give_back();
	pinpoint_channel_map_at_exit();
}

/*
 * Do something that may fail, where failing is not allowed: after commit, and
 * while aborting.  (While exiting, PostgreSQL turns every error into FATAL, and
 * goes on with the next exit callback: only the last thing that a callback does
 * may be done in this way.)
 *
 * consequence: what becomes of it, for the server log.
 *
 * Returns false if the action failed.  PinpointOrderLock, if the caller held
 * it, is released then.  Otherwise nothing changed.
 */
bool
pinpoint_guard(void (*action) (void *arg), void *arg, const char *consequence)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ResourceOwner oldowner = CurrentResourceOwner;
	uint32		interrupt_holdoff = InterruptHoldoffCount;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;
	bool		exit_on_any_error = ExitOnAnyError;
	bool		locked = LWLockHeldByMe(PinpointOrderLock);
	volatile bool ok = true;
	volatile int cause = 0;

	/*
	 * An owner that is being released takes no new resources, and what may be
	 * mapped here is for the rest of the session anyway.
	 */
	CurrentResourceOwner = NULL;
	ExitOnAnyError = false;

	PG_TRY();
	{
		action(arg);
	}
	PG_CATCH();
	{
		/*
		 * The error has reset the counters that hold off interrupts, in which
		 * every lock held counts as one.
		 */
		cause = geterrcode();
		LWLockReleaseAll();
		InterruptHoldoffCount = interrupt_holdoff - (locked ? 1 : 0);
		QueryCancelHoldoffCount = cancel_holdoff;

		MemoryContextSwitchTo(oldcontext);
		FlushErrorState();
		ok = false;
	}
	PG_END_TRY();

	ExitOnAnyError = exit_on_any_error;
	CurrentResourceOwner = oldowner;

	if (!ok)
		ereport(LOG,
				(errmsg("pg_pinpoint could not access its channel map"),
				 errdetail("The error was SQLSTATE %s. The consequence is that %s.",
						   unpack_sql_state(cause), consequence)));
	return ok;
}
