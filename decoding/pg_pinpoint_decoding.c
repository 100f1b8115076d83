/*-------------------------------------------------------------------------
 *
 * pg_pinpoint_decoding.c
 *		Initialization: redirects the server's functions to this library, when
 *		the postmaster loads it.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/guc.h"

#include "compat.h"
#include "decoding.h"
#include "redirect.h"

PINPOINT_MODULE_MAGIC("pg_pinpoint_decoding");

void		_PG_init(void);

PG_FUNCTION_INFO_V1(pinpoint_decoding_check_schema);

/* Version of the running server, in the format of PG_VERSION_NUM */
int			pinpoint_decoding_server_version;

const char *pinpoint_decoding_refused_because = "not preloaded";

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/* Only forked processes inherit the change that the postmaster has made. */
#ifdef EXEC_BACKEND
static const bool processes_are_executed = true;
#else
static const bool processes_are_executed = false;
#endif

/* What is in shared memory */
static const struct
{
	Size		(*size) (void);
	void		(*init) (void);
}			shared_structs[] = {
	{pinpoint_statistics_shmem_size, pinpoint_statistics_shmem_init},
	{pinpoint_standby_snapshot_shmem_size,
	pinpoint_standby_snapshot_shmem_init},
};

static bool probing = false;
static bool probe_arrived;

static const char *activate(void);
static const char *redirect(const PinpointRedirection *redirection);
static void activate_relation_map(void);
static Oid	look_up_relation(Oid reltablespace, RelFileNumber relfilenumber);
static bool probe(void *function);
static void request_shmem(void);
static void startup_shmem(void);

void
_PG_init(void)
{
	void	  **preloaded = find_rendezvous_variable("pg_pinpoint_decoding");

	/* A second copy would have separate, uninitialized variables. */
	if (*preloaded != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_pinpoint_decoding was loaded from another file when the server started"),
				 errhint("In \"shared_preload_libraries\" write pg_pinpoint_decoding, without a path, and restart the server.")));

	/*
	 * A session loads the library to create the extension, or to show its
	 * views.  This must work on a server that does not use the library,
	 * because a database with the extension may be restored or upgraded
	 * there.
	 */
	if (!process_shared_preload_libraries_in_progress)
		return;

	*preloaded = &pinpoint_decoding_refused_because;
	pinpoint_standby_snapshot_define_setting();
	MarkGUCPrefixReserved("pinpoint_decoding");

	pinpoint_decoding_refused_because = activate();
	if (pinpoint_decoding_refused_because != NULL)
	{
		ereport(WARNING,
				(errmsg("pg_pinpoint_decoding is not active: %s",
						pinpoint_decoding_refused_because),
				 errdetail("Logical decoding works as it does without the library.")));
		return;
	}

	pinpoint_standby_snapshot_init();

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;

	ereport(LOG,
			(errmsg("pg_pinpoint_decoding is active"),
			 errdetail("The server's function %s is redirected to the library.",
					   PINPOINT_SERVER_FUNCTION)));
	activate_relation_map();
}

/*
 * Redirect the server's function.  Returns NULL, or the reason why nothing was
 * changed.
 *
 * Errors: FATAL if the redirection has failed after the change.
 */
static const char *
activate(void)
{
	/*
	 * Callers in PostgreSQL 15 to 19: logical decoding, and the function
	 * pg_filenode_relation().
	 */
	static const PinpointRedirection redirection = {
		.function = PINPOINT_SERVER_FUNCTION,
		.callers = 2,
		.replacement = look_up_relation,
		.probe = probe
	};

	Assert(!IsUnderPostmaster);
	if (processes_are_executed)
		return "the server starts its processes with EXEC_BACKEND";

	/*
	 * Only the minor release can differ from PG_VERSION_NUM: PostgreSQL does
	 * not load a library that was built for another major version.
	 */
	pinpoint_decoding_server_version =
		atoi(GetConfigOption("server_version_num", false, false));
	Assert(pinpoint_decoding_server_version / 10000 == PG_VERSION_NUM / 10000);

	return redirect(&redirection);
}

/*
 * Redirect one function.  Returns and raises the same as activate().
 */
static const char *
redirect(const PinpointRedirection *redirection)
{
	const char *reason;

	switch (pinpoint_redirect(redirection, &reason))
	{
		case PINPOINT_REDIRECTED:
			return NULL;
		case PINPOINT_REFUSED:
			return reason;
		case PINPOINT_BROKEN:
			break;
	}
	ereport(FATAL,
			(errmsg("pg_pinpoint_decoding could not be activated: %s", reason),
			 errhint("Remove pg_pinpoint_decoding from \"shared_preload_libraries\".")));
	return NULL;				/* keep compiler quiet */
}

/*
 * Redirect the functions of the subscriber's relation map.  The first one
 * alone has no effect, and the second one is not redirected alone.
 */
static void
activate_relation_map(void)
{
	const char *reason;

	reason = pinpoint_relation_map_objection();
	if (reason == NULL)
	{
		pinpoint_relation_map_init();
		reason = redirect(&pinpoint_relation_map_redirections[0]);
	}
	if (reason == NULL)
		reason = redirect(&pinpoint_relation_map_redirections[1]);
	if (reason != NULL)
		ereport(WARNING,
				(errmsg("pg_pinpoint_decoding is not active in subscribers: %s",
						reason),
				 errdetail("Subscribers work as they do without the library.")));
	else
		ereport(LOG,
				(errmsg("pg_pinpoint_decoding is active in subscribers")));
}

/*
 * The replacement: calls of the server's function arrive here.
 */
static Oid
look_up_relation(Oid reltablespace, RelFileNumber relfilenumber)
{
	static bool attached = false;

	if (unlikely(!attached))
	{
		if (probing)
		{
			Assert(pinpoint_decoding_refused_because != NULL);
			probe_arrived = true;
			return InvalidOid;
		}
		pinpoint_statistics_attach();
		attached = true;
	}
	Assert(!probing && pinpoint_decoding_refused_because == NULL);
	return RelidByRelfilenumber(reltablespace, relfilenumber);
}

static bool
probe(void *function)
{
	Oid			(*call) (Oid, RelFileNumber) =
		(Oid (*) (Oid, RelFileNumber)) function;

	probe_arrived = false;
	probing = true;
	call(InvalidOid, InvalidOid);
	probing = false;
	return probe_arrived;
}

/*
 * pinpoint_decoding_check_schema() returns void
 *		Called by CREATE EXTENSION.
 *
 * Errors: the schema that the extension creates exists.  CREATE SCHEMA would
 * raise the same error, but without a hint.
 */
Datum
pinpoint_decoding_check_schema(PG_FUNCTION_ARGS)
{
	if (OidIsValid(get_namespace_oid("pinpoint_decoding", true)))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_SCHEMA),
				 errmsg("schema \"%s\" already exists", "pinpoint_decoding"),
				 errdetail("The extension pg_pinpoint_decoding creates this schema, and does not use an existing one."),
				 errhint("Rename the schema with ALTER SCHEMA, or drop it, and execute CREATE EXTENSION again.")));
	PG_RETURN_VOID();
}

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	for (unsigned i = 0; i < lengthof(shared_structs); i++)
		RequestAddinShmemSpace(shared_structs[i].size());
	RequestNamedLWLockTranche("PinpointDecodingStatistics", 1);
}

static void
startup_shmem(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (unsigned i = 0; i < lengthof(shared_structs); i++)
		shared_structs[i].init();
	LWLockRelease(AddinShmemInitLock);
}
