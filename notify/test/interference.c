/*-------------------------------------------------------------------------
 *
 * interference.c
 *		A library that disturbs transactions, for the tests.
 *
 * If it is loaded by LOAD, its callbacks run in a commit before those of
 * pg_pinpoint. If it is preloaded before pg_pinpoint, they run after them.
 *
 *	interference.pause			where transactions of this session pause: in
 *								"pre_commit", after the "commit" record, after
 *								the "release" of their locks, before PostgreSQL
 *								signals sessions that listen, or when they
 *								"drop" an object; in a transaction without a
 *								statement, only "idle", which is its pre-commit;
 *								if the library is preloaded before pg_pinpoint,
 *								also
 *								"before_commit_prepared", and
 *								"after_commit_prepared"
 *	interference.gate			they pause while this file exists
 *	interference.fail_idle		number of transactions without a statement that
 *								fail in pre-commit: those that PostgreSQL runs
 *								for an interrupt
 *	interference.lose_interrupts	number of such transactions that have no
 *									effect
 *	interference.fail_commit_prepared	COMMIT PREPARED fails after it has
 *										committed the
 *								prepared transaction, if the library is
 *								preloaded before pg_pinpoint
 *	interference.worker			a file that tells the workers of subscriptions
 *								where to pause or to fail: see in_worker()
 *
 * A session that pauses waits for an event of type Extension.  If it is to
 * end, it does so when the file is gone, unless that is after the commit
 * record.
 *
 * interference_fail_barrier() makes the processing of a barrier fail at exit.
 * interference_fail_allocations() makes single allocations of memory fail;
 * interference.allocations does this in the processes of a server that
 * preloads the library after pg_pinpoint.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE				/* for dl_iterate_phdr() and dladdr() */
#include "postgres.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "access/xloginsert.h"
#include "catalog/objectaccess.h"
#include "commands/async.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/memnodes.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "replication/logicalworker.h"
#include "replication/message.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/procsignal.h"
#include "storage/shmem.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#if PG_VERSION_NUM >= 170000
#include "utils/memutils_internal.h"
#endif
#include "utils/resowner.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

typedef enum PausePlace
{
	PAUSE_NOWHERE,
	PAUSE_PRE_COMMIT,
	PAUSE_COMMIT,
	PAUSE_RELEASE,
	PAUSE_IDLE,
	PAUSE_DROP,
	PAUSE_BEFORE_COMMIT_PREPARED,
	PAUSE_AFTER_COMMIT_PREPARED
}			PausePlace;

static const struct config_enum_entry pause_options[] = {
	{"nowhere", PAUSE_NOWHERE, false},
	{"pre_commit", PAUSE_PRE_COMMIT, false},
	{"commit", PAUSE_COMMIT, false},
	{"release", PAUSE_RELEASE, false},
	{"idle", PAUSE_IDLE, false},
	{"drop", PAUSE_DROP, false},
	{"before_commit_prepared", PAUSE_BEFORE_COMMIT_PREPARED, false},
	{"after_commit_prepared", PAUSE_AFTER_COMMIT_PREPARED, false},
	{NULL, 0, false}
};

static int	pause_place = PAUSE_NOWHERE;
static char *gate = NULL;
static char *worker_file = NULL;
static int	fail_idle = 0;
static int	lose_interrupts = 0;
static bool fail_commit_prepared = false;

static object_access_hook_type prev_object_access = NULL;
static ProcessUtility_hook_type prev_process_utility = NULL;

#if PG_VERSION_NUM >= 170000
#define ALLOC_ARGS				MemoryContext context, Size size, int flags
#define PASS_ALLOC_ARGS			context, size, flags
#define ALLOCATION_FAILURE \
	MemoryContextAllocationFailure(context, size, flags)
#else
#define ALLOC_ARGS				MemoryContext context, Size size
#define PASS_ALLOC_ARGS			context, size
#define ALLOCATION_FAILURE		NULL
#endif

#define MAX_FRAMES				100
#define NEAR_FRAMES				8

/*
 * A file that the test writes while the session is idle: see
 * interference_fail_allocations().
 */
typedef struct Allocations
{
	int64		fail;			/* this allocation fails, counted from 1; 0:
								 * none, and they are not counted */
	int64		all;			/* count also those not of pg_pinpoint */
	int64		pid;			/* of this process; 0: of any that has the
								 * file */
	int64		counted;
	int64		failed;
} Allocations;

static char *allocations_file = NULL;
static volatile Allocations *allocations = NULL;
static void *(*next_alloc) (ALLOC_ARGS) = NULL;
static uintptr_t code_start = 0;
static uintptr_t code_end = 0;

PG_FUNCTION_INFO_V1(interference_listen);
PG_FUNCTION_INFO_V1(interference_unlisten);
PG_FUNCTION_INFO_V1(interference_notify);
PG_FUNCTION_INFO_V1(interference_unlisten_all);
PG_FUNCTION_INFO_V1(interference_start_worker);
PG_FUNCTION_INFO_V1(interference_emit);
PG_FUNCTION_INFO_V1(interference_look_at_channels);
PG_FUNCTION_INFO_V1(interference_hold_reassignment);
PG_FUNCTION_INFO_V1(interference_fail_allocations);
PG_FUNCTION_INFO_V1(interference_fail_barrier);

/*
 * As an extension in C may do it, past the SQL commands.
 */
Datum
interference_listen(PG_FUNCTION_ARGS)
{
	Async_Listen(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

Datum
interference_unlisten(PG_FUNCTION_ARGS)
{
	Async_Unlisten(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

Datum
interference_notify(PG_FUNCTION_ARGS)
{
	Async_Notify(text_to_cstring(PG_GETARG_TEXT_PP(0)), NULL);
	PG_RETURN_VOID();
}

Datum
interference_unlisten_all(PG_FUNCTION_ARGS)
{
	Async_UnlistenAll();
	PG_RETURN_VOID();
}

/*
 * A background worker that listens, and logs what it receives.
 */
PGDLLEXPORT void interference_worker(Datum database);

void
interference_worker(Datum database)
{
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(database),
											  InvalidOid, 0);
	SetConfigOption("log_min_messages", "info", PGC_SUSET, PGC_S_OVERRIDE);
	StartTransactionCommand();
	Async_Listen(MyBgworkerEntry->bgw_extra);
	CommitTransactionCommand();
	for (;;)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		ProcessNotifyInterrupt(false);
	}
}

/*
 * interference_start_worker(channel text, library text): start it.
 */
Datum
interference_start_worker(PG_FUNCTION_ARGS)
{
	BackgroundWorker worker = {
		.bgw_flags =
		BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_name = "interference",
		.bgw_type = "interference",
		.bgw_function_name = "interference_worker",
		.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId),
	};

	strlcpy(worker.bgw_extra, text_to_cstring(PG_GETARG_TEXT_PP(0)),
			sizeof(worker.bgw_extra));
	strlcpy(worker.bgw_library_name, text_to_cstring(PG_GETARG_TEXT_PP(1)),
			sizeof(worker.bgw_library_name));
	PG_RETURN_BOOL(RegisterDynamicBackgroundWorker(&worker, NULL));
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

/*
 * Does PostgreSQL run this transaction for an interrupt?
 */
static bool
is_idle_transaction(void)
{
	return ActivePortal == NULL && debug_query_string == NULL;
}

static void
pause_at(PausePlace place)
{
	if (pause_place != (int) place || gate == NULL || gate[0] == '\0' ||
		is_idle_transaction() != (place == PAUSE_IDLE))
		return;

	pgstat_report_wait_start(PG_WAIT_EXTENSION);
	while (access(gate, F_OK) == 0)
		pg_usleep(1000);
	pgstat_report_wait_end();

	/* After the commit record, a transaction cannot fail. */
	if (place != PAUSE_COMMIT && place != PAUSE_RELEASE)
		CHECK_FOR_INTERRUPTS();
}

/*
 * interference_look_at_channels(partitions int): keep the locks of all
 * partitions of the channel map in shared mode, as somebody does who looks,
 * while the gate exists.
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

/*
 * Find the code of pg_pinpoint, as a callback of dl_iterate_phdr().
 */
static int
find_pg_pinpoint(struct dl_phdr_info *info, size_t size, void *arg)
{
	if (strstr(info->dlpi_name, "/pg_pinpoint.so") == NULL)
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		if (info->dlpi_phdr[i].p_type == PT_LOAD &&
			(info->dlpi_phdr[i].p_flags & PF_X))
		{
			code_start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			code_end = code_start + info->dlpi_phdr[i].p_memsz;
		}
	}
	return 1;
}

typedef struct Stack
{
	void	   *frames[MAX_FRAMES];
	int			nframes;
} Stack;

/*
 * Callback of _Unwind_Backtrace().  Not every C library has backtrace().
 */
static _Unwind_Reason_Code
add_frame(struct _Unwind_Context *context, void *arg)
{
	Stack	   *stack = arg;

	stack->frames[stack->nframes++] = (void *) _Unwind_GetIP(context);
	return stack->nframes < MAX_FRAMES ? _URC_NO_REASON : _URC_END_OF_STACK;
}

/*
 * Write a stack to the server's log.
 */
static void
log_stack(const Stack *stack)
{
	for (int i = 0; i < stack->nframes; i++)
	{
		Dl_info		info = {0};

		(void) dladdr(stack->frames[i], &info);
		dprintf(STDERR_FILENO, "%s(%s) [%p]\n",
				info.dli_fname ? info.dli_fname : "",
				info.dli_sname ? info.dli_sname : "",
				stack->frames[i]);
	}
}

/*
 * Is pg_pinpoint allocating memory, by few calls?
 */
static bool
is_of_pg_pinpoint(const Stack *stack)
{
	for (int i = 0; i < Min(stack->nframes, NEAR_FRAMES); i++)
	{
		if ((uintptr_t) stack->frames[i] >= code_start &&
			(uintptr_t) stack->frames[i] < code_end)
			return true;
	}
	return false;
}

/*
 * Is PostgreSQL committing a prepared transaction?  If memory runs out there,
 * it keeps the locks of this transaction, and a later PREPARE TRANSACTION ends
 * the server, with any library or none.
 */
static bool
is_of_commit_prepared(const Stack *stack)
{
	for (int i = 0; i < Min(stack->nframes, NEAR_FRAMES); i++)
	{
		Dl_info		info;

		if (dladdr(stack->frames[i], &info) != 0 &&
			info.dli_saddr == (void *) FinishPreparedTransaction)
			return true;
	}
	return false;
}

static void *
count_alloc(ALLOC_ARGS)
{
	Stack		stack;

	if (allocations->fail == 0 ||
		(allocations->pid != 0 && allocations->pid != MyProcPid))
		return next_alloc(PASS_ALLOC_ARGS);

	stack.nframes = 0;
	(void) _Unwind_Backtrace(add_frame, &stack);
	if ((!allocations->all && !is_of_pg_pinpoint(&stack)) ||
		++allocations->counted != allocations->fail)
		return next_alloc(PASS_ALLOC_ARGS);

	if (is_of_commit_prepared(&stack))
	{
		allocations->fail++;	/* the next one fails instead */
		return next_alloc(PASS_ALLOC_ARGS);
	}

	/* The server's log shows where it was, in case that this goes wrong. */
	allocations->failed++;
	dprintf(STDERR_FILENO, "interference: allocation " INT64_FORMAT " of PID %d fails\n",
			allocations->fail, MyProcPid);
	log_stack(&stack);
	return ALLOCATION_FAILURE;
}

/*
 * From now on, this process and those that it forks count their allocations in
 * memory contexts, and let one of them fail, as the file says.
 *
 * All contexts of a kind share one table of functions.  It is constant, so the
 * process makes its own copy of the page writable.
 */
static void
fail_allocations(const char *file)
{
	int			fd = open(file, O_RDWR);
	MemoryContextMethods *methods = unconstify(MemoryContextMethods *,
											   CurrentMemoryContext->methods);
	uintptr_t	page = sysconf(_SC_PAGESIZE);
	uintptr_t	start = (uintptr_t) methods & ~(page - 1);
	Stack		stack = {.nframes = 0};

	if (fd < 0)
		elog(ERROR, "could not open file \"%s\": %m", file);
	allocations = mmap(NULL, sizeof(Allocations), PROT_READ | PROT_WRITE,
					   MAP_SHARED, fd, 0);
	close(fd);
	if (allocations == MAP_FAILED ||
		mprotect((void *) start, 2 * page, PROT_READ | PROT_WRITE) != 0)
		elog(ERROR, "could not change memory: %m");

	/* The first call may load a library. */
	(void) _Unwind_Backtrace(add_frame, &stack);
	(void) dl_iterate_phdr(find_pg_pinpoint, NULL);
	next_alloc = methods->alloc;
	methods->alloc = count_alloc;
}

/*
 * interference_fail_allocations(file text): the same for this session.
 */
Datum
interference_fail_allocations(PG_FUNCTION_ARGS)
{
	fail_allocations(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

/*
 * interference_hold_reassignment(size bigint): keep the lock that a session
 * takes at its end, to reassign its notifications, while the gate exists.
 *
 * size: that of the shared memory of turn.c, which begins with the number of
 * steps of the holder; this session increments it.  NULL: it does not, as a
 * session that is stopped.
 */
Datum
interference_hold_reassignment(PG_FUNCTION_ARGS)
{
	LWLock	   *lock = &GetNamedLWLockTranche("PinpointReassignment")->lock;
	pg_atomic_uint64 *steps = NULL;
	bool		found;

	if (!PG_ARGISNULL(0))
		steps = ShmemInitStruct("pg_pinpoint turns", PG_GETARG_INT64(0),
								&found);
	LWLockAcquire(lock, LW_EXCLUSIVE);
	pgstat_report_wait_start(PG_WAIT_EXTENSION);
	while (access(gate, F_OK) == 0)
	{
		if (steps != NULL)
			pg_atomic_fetch_add_u64(steps, 1);
		if (ProcSignalBarrierPending)
			ProcessProcSignalBarrier();
		pg_usleep(1000);
	}
	pgstat_report_wait_end();
	LWLockRelease(lock);
	PG_RETURN_VOID();
}

/*
 * A file could not be closed: the message about it fails, once.
 */
static void
fail_message(ErrorData *edata)
{
	if (edata->elevel != LOG)
		return;
	emit_log_hook = NULL;
	ereport(ERROR, (errmsg("interference: the barrier fails")));
}

/*
 * Close the files of relations, so that PostgreSQL fails to do so.
 */
static void
close_relations(int code, Datum arg)
{
	DIR		   *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	emit_log_hook = fail_message;
	while (dir != NULL && (entry = readdir(dir)) != NULL)
	{
		char		link[MAXPGPATH];
		char		target[MAXPGPATH] = "";

		snprintf(link, sizeof(link), "/proc/self/fd/%s", entry->d_name);
		if (readlink(link, target, sizeof(target) - 1) > 0 &&
			strstr(target, "/base/") != NULL)
			close(atoi(entry->d_name));
	}
	if (dir != NULL)
		closedir(dir);
}

/*
 * interference_fail_barrier(): when this session ends, the first barrier that
 * it processes fails, with data_sync_retry, if a relation's file is open.  The
 * session has executed LISTEN before: so this happens before pg_pinpoint's
 * callback.
 */
Datum
interference_fail_barrier(PG_FUNCTION_ARGS)
{
	before_shmem_exit(close_relations, (Datum) 0);
	PG_RETURN_VOID();
}

/*
 * The first worker of a subscription that comes to an event does what the file
 * says, which then is empty:
 *
 *	pre_commit pause XID	pauses in the transaction that commits this
 *							prepared one, while the file exists
 *	pre_commit fail XID		fails there
 *	prepare pause 0			pauses after the record of PREPARE TRANSACTION
 */
static void
in_worker(const char *event)
{
	char		where[16];
	char		action[16];
	TransactionId xid;
	FILE	   *file;
	int			nread;

	if (!IsLogicalWorker() || (file = fopen(worker_file, "r")) == NULL)
		return;
	nread = fscanf(file, "%15s %15s %u", where, action, &xid);
	fclose(file);
	if (nread != 3 || strcmp(where, event) != 0 ||
		(TransactionIdIsValid(xid) && !TransactionIdDidCommit(xid)))
		return;

	if (truncate(worker_file, 0) != 0)
		elog(ERROR, "could not truncate file \"%s\": %m", worker_file);
	if (strcmp(action, "fail") == 0)
		ereport(ERROR, (errmsg("interference: the worker fails")));
	pgstat_report_wait_start(PG_WAIT_EXTENSION);
	while (access(worker_file, F_OK) == 0)
		pg_usleep(1000);
	pgstat_report_wait_end();
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
			pause_at(PAUSE_IDLE);
			in_worker("pre_commit");
			break;
		case XACT_EVENT_PREPARE:
			in_worker("prepare");
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
release_resources(ResourceReleasePhase phase, bool is_commit,
				  bool is_top_level, void *arg)
{
	if (phase == RESOURCE_RELEASE_AFTER_LOCKS && is_commit && is_top_level)
		pause_at(PAUSE_RELEASE);
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

static void
process_utility(PlannedStmt *pstmt, const char *query_string,
				bool read_only_tree, ProcessUtilityContext context,
				ParamListInfo params, QueryEnvironment *query_env,
				DestReceiver *dest, QueryCompletion *qc)
{
	bool		commits_prepared = IsA(pstmt->utilityStmt, TransactionStmt) &&
		((TransactionStmt *) pstmt->utilityStmt)->kind ==
		TRANS_STMT_COMMIT_PREPARED;

	if (commits_prepared)
		pause_at(PAUSE_BEFORE_COMMIT_PREPARED);
	(prev_process_utility ? prev_process_utility : standard_ProcessUtility)
		(pstmt, query_string, read_only_tree, context, params, query_env, dest,
		 qc);
	if (commits_prepared)
		pause_at(PAUSE_AFTER_COMMIT_PREPARED);
	if (commits_prepared && fail_commit_prepared)
		ereport(ERROR, (errmsg("COMMIT PREPARED fails")));
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
	DefineCustomStringVariable("interference.worker",
							   "What the workers of subscriptions do.", NULL,
							   &worker_file, "", PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("interference.fail_idle",
							"So many transactions without a statement fail.",
							NULL, &fail_idle, 0, 0, INT_MAX,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("interference.lose_interrupts",
							"So many of them have no effect.", NULL,
							&lose_interrupts, 0, 0, INT_MAX,
							PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("interference.fail_commit_prepared",
							 "COMMIT PREPARED fails after the commit.",
							 NULL, &fail_commit_prepared, false,
							 PGC_USERSET, 0, NULL, NULL, NULL);

	if (process_shared_preload_libraries_in_progress)
	{
		DefineCustomStringVariable("interference.allocations",
								   "See interference_fail_allocations().",
								   NULL, &allocations_file, "",
								   PGC_POSTMASTER, 0, NULL, NULL, NULL);
		if (allocations_file[0] != '\0')
			fail_allocations(allocations_file);
	}

	prev_object_access = object_access_hook;
	object_access_hook = object_access;
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	RegisterXactCallback(at_transaction_event, NULL);
	RegisterResourceReleaseCallback(release_resources, NULL);
}
