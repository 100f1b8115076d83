/*-------------------------------------------------------------------------
 *
 * compat.h
 *		The one place that knows PostgreSQL versions.
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

#include "storage/latch.h"
#include "storage/procsignal.h"
#include "utils/acl.h"

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

/* Local ID of the current transaction. */
#if PG_VERSION_NUM >= 170000
#define PINPOINT_MY_LXID			(MyProc->vxid.lxid)
#else
#define PINPOINT_MY_LXID			(MyProc->lxid)
#endif

/* What pg_stat_activity knows of the nth session, n counted from 1. */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_LOCAL_BACKEND_STATUS(n)	pgstat_get_local_beentry_by_index(n)
#else
#define PINPOINT_LOCAL_BACKEND_STATUS(n)	pgstat_fetch_stat_local_beentry(n)
#endif

/*
 * What PostgreSQL waits with for its client, see libpq/libpq.h.  That header
 * needs those of GSSAPI, which no server package brings along.
 */
extern PGDLLIMPORT WaitEventSet *FeBeWaitSet;
#define PINPOINT_CLIENT_SOCKET_POS	0

/* What a planner_hook gets last, and hands on. */
#if PG_VERSION_NUM >= 190000
#define PINPOINT_PLANNER_PARAMETER	, ExplainState *es
#define PINPOINT_PLANNER_ARGUMENT	, es
#else
#define PINPOINT_PLANNER_PARAMETER
#define PINPOINT_PLANNER_ARGUMENT
#endif

/* May roleid execute the function funcid? */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_FUNCTION_ACLCHECK(funcid, roleid) \
	object_aclcheck(ProcedureRelationId, (funcid), (roleid), ACL_EXECUTE)
#else
#define PINPOINT_FUNCTION_ACLCHECK(funcid, roleid) \
	pg_proc_aclcheck((funcid), (roleid), ACL_EXECUTE)
#endif

#endif							/* PINPOINT_COMPAT_H */
