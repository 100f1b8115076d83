/*-------------------------------------------------------------------------
 *
 * compat.h
 *		Differences between versions of PostgreSQL.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_COMPAT_H
#define PINPOINT_COMPAT_H

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 200000
#error "pg_pinpoint supports PostgreSQL 15 to 19"
#endif

#if PG_VERSION_NUM >= 160000
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#endif
#include "storage/procsignal.h"
#if PG_VERSION_NUM >= 160000
#include "storage/relfilelocator.h"
#else
#include "storage/relfilenode.h"
#endif
#include "utils/acl.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM >= 170000
#include "storage/procnumber.h"
#else
#include "storage/backendid.h"
#endif

/*
 * A session's place in arrays of MaxBackends elements, counted from 0, and
 * the way back to what SendProcSignal() wants.
 */
#if PG_VERSION_NUM >= 170000
#define PINPOINT_MY_SLOT_NUMBER		((int) MyProcNumber)
#define PINPOINT_PROCSIGNAL_ID(n)	((ProcNumber) (n))
#else
#define PINPOINT_MY_SLOT_NUMBER		(MyBackendId - 1)
#define PINPOINT_PROCSIGNAL_ID(n)	((BackendId) ((n) + 1))
#endif

/* Does this transaction hold a lock in exactly this mode? */
#if PG_VERSION_NUM >= 170000
#define PINPOINT_LOCK_HELD_BY_ME(tag, mode)	LockHeldByMe((tag), (mode), false)
#else
#define PINPOINT_LOCK_HELD_BY_ME(tag, mode)	LockHeldByMe((tag), (mode))
#endif

/* Local ID of a process's transaction. */
#if PG_VERSION_NUM >= 170000
#define PINPOINT_PROC_LXID(proc)	((proc)->vxid.lxid)
#else
#define PINPOINT_PROC_LXID(proc)	((proc)->lxid)
#endif
#define PINPOINT_MY_LXID			PINPOINT_PROC_LXID(MyProc)

/* What pg_stat_activity knows of the nth session, n counted from 1. */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_LOCAL_BACKEND_STATUS(n)	pgstat_get_local_beentry_by_index(n)
#else
#define PINPOINT_LOCAL_BACKEND_STATUS(n)	pgstat_fetch_stat_local_beentry(n)
#endif

/*
 * From libpq/libpq.h, which needs the headers of GSSAPI.  No server package
 * brings those along.
 */
extern bool pq_is_reading_msg(void);

/* Likewise, as far as it is needed. */
typedef struct PinpointCommMethods
{
	void		(*comm_reset) (void);
	int			(*flush) (void);
} PinpointCommMethods;

extern PGDLLIMPORT const PinpointCommMethods *PqCommMethods;

/* The files of a relation that is not temporary. */
#if PG_VERSION_NUM >= 160000
typedef RelFileLocator PinpointRelFile;
#define PINPOINT_REL_NUMBER(file)	((file).relNumber)
#else
typedef RelFileNode PinpointRelFile;
#define PINPOINT_REL_NUMBER(file)	((file).relNode)
#endif
#if PG_VERSION_NUM >= 170000
#define PINPOINT_NOT_TEMPORARY		INVALID_PROC_NUMBER
#else
#define PINPOINT_NOT_TEMPORARY		InvalidBackendId
#endif

/* An event to wait for, as pg_stat_activity shows it: before 17, "Extension". */
#if PG_VERSION_NUM >= 170000
#define PINPOINT_WAIT_EVENT(name)	WaitEventExtensionNew(name)
#else
#define PINPOINT_WAIT_EVENT(name)	PG_WAIT_EXTENSION
#endif

/* What the startup process does about signals now and then. */
#if PG_VERSION_NUM >= 180000
#define PINPOINT_STARTUP_INTERRUPTS()	ProcessStartupProcInterrupts()
#else
#define PINPOINT_STARTUP_INTERRUPTS()	HandleStartupProcInterrupts()
#endif

/* As PostgreSQL 18 spells it. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn					pg_attribute_noreturn()
#endif

/* May roleid execute the function funcid? */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_FUNCTION_ACLCHECK(funcid, roleid) \
	object_aclcheck(ProcedureRelationId, (funcid), (roleid), ACL_EXECUTE)
#else
#define PINPOINT_FUNCTION_ACLCHECK(funcid, roleid) \
	pg_proc_aclcheck((funcid), (roleid), ACL_EXECUTE)
#endif

/* May roleid use names in a schema? */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_SCHEMA_ACLCHECK(nspid, roleid) \
	object_aclcheck(NamespaceRelationId, (nspid), (roleid), ACL_USAGE)
#else
#define PINPOINT_SCHEMA_ACLCHECK(nspid, roleid) \
	pg_namespace_aclcheck((nspid), (roleid), ACL_USAGE)
#endif

/* The parameters of planner_hook, and how they are handed on. */
#if PG_VERSION_NUM >= 190000
#define PINPOINT_PLANNER_PARAMETERS \
	Query *parse, const char *query_string, int cursor_options, \
	ParamListInfo bound_params, struct ExplainState *es
#define PINPOINT_PLANNER_ARGUMENTS \
	parse, query_string, cursor_options, bound_params, es
#else
#define PINPOINT_PLANNER_PARAMETERS \
	Query *parse, const char *query_string, int cursor_options, \
	ParamListInfo bound_params
#define PINPOINT_PLANNER_ARGUMENTS \
	parse, query_string, cursor_options, bound_params
#endif

/* Memory that is going to be read soon. */
#if defined(__GNUC__)
#define PINPOINT_PREFETCH(address)	__builtin_prefetch(address)
#else
#define PINPOINT_PREFETCH(address)	((void) 0)
#endif

/* What pg_get_loaded_modules() tells of the library. */
#if PG_VERSION_NUM >= 180000
#define PINPOINT_MODULE_MAGIC(module) \
	PG_MODULE_MAGIC_EXT(.name = (module), .version = PINPOINT_VERSION)
#else
#define PINPOINT_MODULE_MAGIC(module)	PG_MODULE_MAGIC
#endif

#endif							/* PINPOINT_COMPAT_H */
