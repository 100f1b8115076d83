/*-------------------------------------------------------------------------
 *
 * pg_pinpoint.c
 *		Loads the library: settings, hooks, callbacks, shared memory.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/guc.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/counters.h"
#include "base/hash.h"
#include "base/locks.h"
#include "base/minor_release.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "commit/commit_order.h"
#include "hooks.h"
#include "listener/evict.h"
#include "listener/slow_listener.h"
#include "live/applied_prepared.h"
#include "live/watch.h"
#include "positions/position_text.h"
#include "positions/positions.h"
#include "positions/waiters.h"
#include "queue/message_log.h"
#include "standby/replay.h"
#include "standby/replay_blockers.h"
#include "standby/replication_status.h"
#include "standby/unfinished.h"
#include "transaction_events.h"
#include "waker.h"
#include "wakeup/channel_map.h"
#include "wakeup/publication.h"
#include "wakeup/reassign.h"
#include "wakeup/slots.h"
#include "wakeup/turn.h"
#include "wakeup/waker_list.h"
#include "wakeup/waker_progress.h"
#include "wakeup/wakeup.h"

PINPOINT_MODULE_MAGIC("pg_pinpoint");

void		_PG_init(void);

PG_FUNCTION_INFO_V1(pinpoint_check_schema);

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/*
 * The parts of this library that the postmaster initializes, in this order, at
 * start and at restart after a crash.
 *
 * size: of shared memory, in bytes.  NULL if the part needs none.
 * init: gets this memory, which begins on a cache line, and is zero.
 */
typedef struct PinpointPart
{
	const char *name;			/* in pg_shmem_allocations */
	Size		(*size) (void);
	void		(*init) (void *memory);
} PinpointPart;

static const PinpointPart parts[] = {
	{"channel hash", NULL, pinpoint_hash_init},
	{"channel map", pinpoint_channel_map_shmem_size,
	pinpoint_channel_map_shmem_init},
	{"position key", pinpoint_position_text_shmem_size,
	pinpoint_position_text_shmem_init},
	{"positions", pinpoint_positions_shmem_size,
	pinpoint_positions_shmem_init},
	{"replication status", pinpoint_replication_status_shmem_size,
	pinpoint_replication_status_shmem_init},
	{"commit order", pinpoint_commit_order_shmem_size,
	pinpoint_commit_order_shmem_init},
	{"message log", pinpoint_message_log_shmem_size,
	pinpoint_message_log_shmem_init},
	{"waker list", pinpoint_waker_list_shmem_size,
	pinpoint_waker_list_shmem_init},
	{"waker progress", pinpoint_waker_progress_shmem_size,
	pinpoint_waker_progress_shmem_init},
	{"sessions", pinpoint_slots_shmem_size,
	pinpoint_slots_shmem_init},
	{"waiters", pinpoint_waiters_shmem_size,
	pinpoint_waiters_shmem_init},
	{"turns", pinpoint_turn_shmem_size,
	pinpoint_turn_shmem_init},
	{"reassignment", pinpoint_reassign_shmem_size,
	pinpoint_reassign_shmem_init},
	{"publication", NULL, pinpoint_publication_init},
	{"wakeup", NULL, pinpoint_wakeup_init},
	{"eviction", pinpoint_evict_shmem_size,
	pinpoint_evict_shmem_init},
	{"unfinished", NULL, pinpoint_unfinished_allocate},
	{"replay", pinpoint_replay_blockers_shmem_size,
	pinpoint_replay_blockers_shmem_init},
	{"slow listeners", pinpoint_slow_listener_shmem_size,
	pinpoint_slow_listener_shmem_init},
	{"counters", pinpoint_counters_shmem_size,
	pinpoint_counters_shmem_init},
	{"applied transactions", pinpoint_applied_prepared_shmem_size,
	pinpoint_applied_prepared_shmem_init},
};

/*
 * With assertions, some bytes follow the memory of each part.  They must keep
 * their value: a part writes only to the memory that it has asked for.
 */
#ifdef USE_ASSERT_CHECKING
#define GUARD_SIZE	PG_CACHE_LINE_SIZE
#define GUARD_BYTE	0x5A
static char *guards[lengthof(parts)];
#else
#define GUARD_SIZE	0
#endif

static void request_shmem(void);
static void startup_shmem(void);
static void init_part(int number);
#ifdef USE_ASSERT_CHECKING
static void check_guards(XactEvent event, void *arg);
#endif
static void check_minor_release(void);

/*
 * Called when the library is loaded.
 *
 * A server that does not preload the library can still load it, for instance
 * during pg_upgrade or when a dump is restored.  Then it installs no hooks,
 * and functions that need shared memory raise an error when they are called.
 *
 * Errors: the library was preloaded from another file.  The second copy would
 * have separate variables, and would act as if the library were not preloaded.
 */
void
_PG_init(void)
{
	void	  **preloaded = find_rendezvous_variable("pg_pinpoint");

	if (*preloaded != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_pinpoint was loaded from another file when the server started"),
				 errhint("In \"shared_preload_libraries\" write pg_pinpoint, without a path, and restart the server.")));

	if (!process_shared_preload_libraries_in_progress)
	{
		if (creating_extension && !IsBinaryUpgrade)
			ereport(WARNING,
					(errmsg("pg_pinpoint has no effect unless it is loaded via \"shared_preload_libraries\""),
					 errhint("Add pg_pinpoint to \"shared_preload_libraries\" in postgresql.conf and restart the server.")));

		/* A dump can be restored whose tables are watched. */
		pinpoint_watch_register_provider();
		return;
	}

	*preloaded = &PinpointMyTransaction;
	pinpoint_settings_define();

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;

	pinpoint_hooks_install();
	pinpoint_waker_register();
	pinpoint_replay_init();

	pinpoint_transaction_events_register();
#ifdef USE_ASSERT_CHECKING
	RegisterXactCallback(check_guards, NULL);
#endif
}

/*
 * pinpoint_check_schema() returns void
 *		Called by CREATE EXTENSION.
 *
 * Errors: the schema that the extension creates exists.  CREATE SCHEMA would
 * raise the same error, but without a hint.
 */
Datum
pinpoint_check_schema(PG_FUNCTION_ARGS)
{
	if (OidIsValid(get_namespace_oid("pinpoint", true)))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_SCHEMA),
				 errmsg("schema \"%s\" already exists", "pinpoint"),
				 errdetail("The extension pg_pinpoint creates this schema, and does not use an existing one."),
				 errhint("Rename the schema with ALTER SCHEMA, or drop it, and execute CREATE EXTENSION again.")));
	PG_RETURN_VOID();
}

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	for (int i = 0; i < (int) lengthof(parts); i++)
		if (parts[i].size)
			RequestAddinShmemSpace(CACHELINEALIGN(add_size(parts[i].size(),
														   GUARD_SIZE)));
	pinpoint_locks_request();
}

static void
startup_shmem(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	pinpoint_settings_check();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	pinpoint_locks_init();
	for (int i = 0; i < (int) lengthof(parts); i++)
		init_part(i);
	LWLockRelease(AddinShmemInitLock);

	ereport(LOG,
			(errmsg("pg_pinpoint %s is active on PostgreSQL %s, with a NOTIFY queue of %d kB, %d kB of it in memory",
					PINPOINT_VERSION, PG_VERSION, pinpoint_queue_size,
					Min(pinpoint_queue_memory, pinpoint_queue_size))));
	check_minor_release();
}

static void
init_part(int number)
{
	const PinpointPart *part = &parts[number];
	void	   *memory = NULL;

	if (part->size)
	{
		bool		found;

		memory = ShmemInitStruct(psprintf("pg_pinpoint %s", part->name),
								 add_size(part->size(), GUARD_SIZE), &found);
		Assert(!found);
		Assert((void *) CACHELINEALIGN(memory) == memory);
#ifdef USE_ASSERT_CHECKING
		guards[number] = (char *) memory + part->size();
		memset(guards[number], GUARD_BYTE, GUARD_SIZE);
#endif
	}
	part->init(memory);
}

#ifdef USE_ASSERT_CHECKING
/*
 * Called at the end of each transaction.
 */
static void
check_guards(XactEvent event, void *arg)
{
	for (int i = 0; i < (int) lengthof(parts); i++)
		for (int byte = 0; guards[i] != NULL && byte < GUARD_SIZE; byte++)
			Assert(guards[i][byte] == GUARD_BYTE);
}
#endif

/*
 * Warn about a minor release that should be updated.  The release of the
 * server can differ from that of the headers.
 */
static void
check_minor_release(void)
{
	int			version = atoi(GetConfigOption("server_version_num", false, false));
	int			fixed_in = pinpoint_queue_bug_fixed_in(version);

	if (fixed_in != 0)
		ereport(WARNING,
				(errmsg("PostgreSQL %d.%d has a bug in its own NOTIFY queue",
						version / 10000, version % 10000),
				 errdetail("After a VACUUM, a slow listener can fail with \"could not access status of transaction\". Only notifications that do not go through pg_pinpoint are affected."),
				 errhint("Update PostgreSQL to %d.%d or later.",
						 fixed_in / 10000, fixed_in % 10000)));
}
