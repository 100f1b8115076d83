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
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#if PG_VERSION_NUM >= 160000
#include "storage/relfilelocator.h"
#else
#include "storage/relfilenode.h"
#include "storage/shmem.h"
#endif
#include "utils/acl.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM >= 170000
#include "storage/procnumber.h"
#else
#include "storage/backendid.h"
#endif

/*
 * Index of this session in arrays of MaxBackends elements, counted from 0, and
 * the argument of SendProcSignal() for a given index.
 */
#if PG_VERSION_NUM >= 170000
#define PINPOINT_MY_SLOT_NUMBER		((int) MyProcNumber)
#define PINPOINT_PROCSIGNAL_ID(n)	((ProcNumber) (n))
#else
#define PINPOINT_MY_SLOT_NUMBER		(MyBackendId - 1)
#define PINPOINT_PROCSIGNAL_ID(n)	((BackendId) ((n) + 1))
#endif

/* Does this process hold the lock in exactly this mode? */
#if PG_VERSION_NUM >= 170000
#define PINPOINT_LOCK_HELD_BY_ME(tag, mode)	LockHeldByMe((tag), (mode), false)
#else
#define PINPOINT_LOCK_HELD_BY_ME(tag, mode)	LockHeldByMe((tag), (mode))
#endif

/*
 * Does this process hold the lock on a table of its database, in exactly this
 * mode?
 */
static inline bool
pinpoint_table_locked_by_me(Oid relid, LOCKMODE lockmode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	return PINPOINT_LOCK_HELD_BY_ME(&tag, lockmode);
}

/*
 * Has this process no locks in a partition of the lock table?  Locks of the
 * fast path are in none.
 */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_NO_LOCKS_IN_PARTITION(n) \
	dlist_is_empty(&MyProc->myProcLocks[n])
#else
/* SHMQueueEmpty() has an assertion that fails if a lock is added meanwhile. */
#define PINPOINT_NO_LOCKS_IN_PARTITION(n) \
	(SHMQueueNext(&MyProc->myProcLocks[n], &MyProc->myProcLocks[n], 0) == NULL)
#endif

/*
 * The groups of slots of the fast path in the entry of a process, and the bits
 * of the locks that are held in one.  The caller holds fpInfoLock.
 */
#if PG_VERSION_NUM >= 180000
StaticAssertDecl(FP_LOCK_SLOTS_PER_GROUP == 16, "a group has 16 slots");
#define PINPOINT_FAST_PATH_GROUPS	FastPathLockGroupsPerBackend
#define PINPOINT_FAST_PATH_BITS(proc, group)	((proc)->fpLockBits[group])
#else
StaticAssertDecl(FP_LOCK_SLOTS_PER_BACKEND == 16, "there are 16 slots");
#define PINPOINT_FAST_PATH_GROUPS	1
#define PINPOINT_FAST_PATH_BITS(proc, group)	((proc)->fpLockBits)
#endif

/* The subtransaction that gave a relation other storage in this transaction. */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_REWRITTEN_SUBID(rel)	((rel)->rd_firstRelfilelocatorSubid)
#else
#define PINPOINT_REWRITTEN_SUBID(rel)	((rel)->rd_firstRelfilenodeSubid)
#endif

/* Local ID of a process's transaction. */
#if PG_VERSION_NUM >= 170000
#define PINPOINT_PROC_LXID(proc)	((proc)->vxid.lxid)
#else
#define PINPOINT_PROC_LXID(proc)	((proc)->lxid)
#endif
#define PINPOINT_MY_LXID			PINPOINT_PROC_LXID(MyProc)

/* The entry of pg_stat_activity for the nth session, n counted from 1. */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_LOCAL_BACKEND_STATUS(n)	pgstat_get_local_beentry_by_index(n)
#else
#define PINPOINT_LOCAL_BACKEND_STATUS(n)	pgstat_fetch_stat_local_beentry(n)
#endif

/*
 * From libpq/libpq.h, which includes headers of GSSAPI.  The packages with the
 * headers of PostgreSQL do not require these.
 */
extern bool pq_is_reading_msg(void);

/* The first members of PQcommMethods, also from libpq/libpq.h. */
typedef struct PinpointCommMethods
{
	void		(*comm_reset) (void);
	int			(*flush) (void);
} PinpointCommMethods;

extern PGDLLIMPORT const PinpointCommMethods *PqCommMethods;

/*
 * The wait events of the connection to the client, NULL without a client; the
 * number of these events, and of the one of the socket.  Also from
 * libpq/libpq.h.
 */
extern PGDLLIMPORT struct WaitEventSet *FeBeWaitSet;

#define PINPOINT_FEBE_SOCKET	0
#define PINPOINT_FEBE_EVENTS	3

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

/* A wait event as pg_stat_activity shows it.  Before 17: "Extension". */
#if PG_VERSION_NUM >= 170000
#define PINPOINT_WAIT_EVENT(name)	WaitEventExtensionNew(name)
#else
#define PINPOINT_WAIT_EVENT(name)	PG_WAIT_EXTENSION
#endif

/* Processes the interrupts of the startup process. */
#if PG_VERSION_NUM >= 180000
#define PINPOINT_STARTUP_INTERRUPTS()	ProcessStartupProcInterrupts()
#else
#define PINPOINT_STARTUP_INTERRUPTS()	HandleStartupProcInterrupts()
#endif

/*
 * Does a process own a replication slot?  The caller holds the slot's mutex.
 */
#if PG_VERSION_NUM >= 190000
#define PINPOINT_OWNS_SLOT(process, slot) \
	((slot)->active_proc == GetNumberFromPGProc(process))
#else
#define PINPOINT_OWNS_SLOT(process, slot) \
	((slot)->active_pid == (process)->pid)
#endif

/*
 * Has the startup process asked this process to end its transaction, its
 * session or its use of a replication slot?  It does so when the time has
 * passed for which settings allow a conflict.  Before 19, it does not mark the
 * process for a replication slot.  The marks for buffer pins are ignored,
 * because all processes get them.
 */
#if PG_VERSION_NUM >= 190000
#define PINPOINT_HAS_RECOVERY_CONFLICT(proc) \
	((pg_atomic_read_u32(&(proc)->pendingRecoveryConflicts) & \
	  ((1 << RECOVERY_CONFLICT_DATABASE) | \
	   (1 << RECOVERY_CONFLICT_TABLESPACE) | \
	   (1 << RECOVERY_CONFLICT_LOCK) | \
	   (1 << RECOVERY_CONFLICT_SNAPSHOT) | \
	   (1 << RECOVERY_CONFLICT_LOGICALSLOT))) != 0)
#else
#define PINPOINT_HAS_RECOVERY_CONFLICT(proc) \
	(*(volatile bool *) &(proc)->recoveryConflictPending)
#endif

/* The name that it has since PostgreSQL 18. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn					pg_attribute_noreturn()
#endif

/* Checks whether roleid can execute the function funcid; an AclResult. */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_FUNCTION_ACLCHECK(funcid, roleid) \
	object_aclcheck(ProcedureRelationId, (funcid), (roleid), ACL_EXECUTE)
#else
#define PINPOINT_FUNCTION_ACLCHECK(funcid, roleid) \
	pg_proc_aclcheck((funcid), (roleid), ACL_EXECUTE)
#endif

/* Checks whether roleid has USAGE on a schema; an AclResult. */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_SCHEMA_ACLCHECK(nspid, roleid) \
	object_aclcheck(NamespaceRelationId, (nspid), (roleid), ACL_USAGE)
#else
#define PINPOINT_SCHEMA_ACLCHECK(nspid, roleid) \
	pg_namespace_aclcheck((nspid), (roleid), ACL_USAGE)
#endif

/* Does roleid own a relation? */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_OWNS_RELATION(relid, roleid) \
	object_ownercheck(RelationRelationId, (relid), (roleid))
#else
#define PINPOINT_OWNS_RELATION(relid, roleid) \
	pg_class_ownercheck((relid), (roleid))
#endif

/* Checks the privileges for the tables of a Query; includes executor.h. */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_CHECK_PERMISSIONS(query) \
	((void) ExecCheckPermissions((query)->rtable, (query)->rteperminfos, true))
#else
#define PINPOINT_CHECK_PERMISSIONS(query) \
	((void) ExecCheckRTPerms((query)->rtable, true))
#endif

/* The OID in a PgStat_TableStatus. */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_COUNTED_TABLE(status)	((status)->id)
#else
#define PINPOINT_COUNTED_TABLE(status)	((status)->t_id)
#endif

/*
 * The next lock of a process in a partition of the lock table, NULL if there is
 * none; the first one if previous is NULL.  The caller holds the lock of the
 * partition.
 */
static inline PROCLOCK *
pinpoint_next_proclock(PGPROC *proc, int partition, PROCLOCK *previous)
{
#if PG_VERSION_NUM >= 160000
	dlist_head *list = &proc->myProcLocks[partition];

	if (previous == NULL)
		return dlist_is_empty(list) ? NULL :
			dlist_head_element(PROCLOCK, procLink, list);
	return !dlist_has_next(list, &previous->procLink) ? NULL :
		dlist_container(PROCLOCK, procLink,
						dlist_next_node(list, &previous->procLink));
#else
	SHM_QUEUE  *list = &proc->myProcLocks[partition];

	return (PROCLOCK *) SHMQueueNext(list,
									 previous == NULL ? list :
									 &previous->procLink,
									 offsetof(PROCLOCK, procLink));
#endif
}

/* The parameters of planner_hook, and the arguments for the next hook. */
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

/* The same for ExecutorRun_hook. */
#if PG_VERSION_NUM >= 180000
#define PINPOINT_EXECUTOR_RUN_PARAMETERS \
	QueryDesc *query, ScanDirection direction, uint64 count
#define PINPOINT_EXECUTOR_RUN_ARGUMENTS \
	query, direction, count
#else
#define PINPOINT_EXECUTOR_RUN_PARAMETERS \
	QueryDesc *query, ScanDirection direction, uint64 count, bool once
#define PINPOINT_EXECUTOR_RUN_ARGUMENTS \
	query, direction, count, once
#endif

/* Of a ModifyTable; NULL before PostgreSQL 17. */
#if PG_VERSION_NUM >= 170000
#define PINPOINT_MERGE_JOIN_CONDITIONS(modify) \
	((Node *) (modify)->mergeJoinConditions)
#else
#define PINPOINT_MERGE_JOIN_CONDITIONS(modify)	NULL
#endif

/* The file that requests a promotion, until PostgreSQL 15; may be NULL. */
#if PG_VERSION_NUM >= 160000
#define PINPOINT_PROMOTE_TRIGGER_FILE	NULL
#else
#define PINPOINT_PROMOTE_TRIGGER_FILE	PromoteTriggerFile
#endif

/* Loads memory that will be read soon into the cache. */
#if defined(__GNUC__)
#define PINPOINT_PREFETCH(address)	__builtin_prefetch(address)
#else
#define PINPOINT_PREFETCH(address)	((void) 0)
#endif

/* Name and version are shown by pg_get_loaded_modules(). */
#if PG_VERSION_NUM >= 180000
#define PINPOINT_MODULE_MAGIC(module) \
	PG_MODULE_MAGIC_EXT(.name = (module), .version = PINPOINT_VERSION)
#else
#define PINPOINT_MODULE_MAGIC(module)	PG_MODULE_MAGIC
#endif

#endif							/* PINPOINT_COMPAT_H */
