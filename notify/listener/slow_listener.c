/*-------------------------------------------------------------------------
 *
 * slow_listener.c
 *		Warns about a listener that is far behind, or ends its session.
 *
 * A listener with unread notifications keeps a part of the queue, and with a
 * full queue, every NOTIFY fails.  Senders check for this early, because a
 * backlog grows only when they send:
 *
 *	- If half of the queue is in use, there is a WARNING, as in PostgreSQL: to
 *	  the sender and in the server log, at most once in WARNING_INTERVAL.  It
 *	  names the listener that is furthest behind.
 *	- If the backlog of a listener exceeds pinpoint.max_listener_lag, there is
 *	  such a warning (pinpoint.on_lag = warn), or its session ends
 *	  (pinpoint.on_lag = disconnect), so that its client connects again and
 *	  reads the current state, and senders do not fail.
 *
 * See evict.c for how a session ends.
 *
 * On a standby no session sends.  There the waker checks at least twice a
 * second, and the warning is only in the server log.
 *
 * A NOTIFY that finds no space fails with PostgreSQL's own error, and a hint
 * that names the listener that is furthest behind.
 *
 * All of this is done before a commit.  A sender may still fail there, for
 * instance because a message does not fit into memory.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/backend_status.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/counters.h"
#include "base/interval.h"
#include "base/settings.h"
#include "listener/evict.h"
#include "listener/slow_listener.h"
#include "queue/log_storage.h"
#include "queue/message_log.h"
#include "wakeup/slots_read.h"

/* Milliseconds between two warnings, as in PostgreSQL. */
#define WARNING_INTERVAL		5000

/*
 * Milliseconds between two passes over all slots, while a session that was
 * told to end still keeps batches.
 */
#define DISCONNECT_INTERVAL		100

/* All fields are protected by PinpointOrderLock. */
typedef struct SlowListenerControl
{
	TimestampTz last_warning;
	TimestampTz last_disconnect;
} SlowListenerControl;

static SlowListenerControl *slow_listener_control = NULL;

static bool is_time(TimestampTz *last, TimestampTz now, int interval);
static int	furthest_behind(Oid *dboid, uint64 *lag);
static void warn(Size limit);
static void describe(int pid, StringInfo description);

Size
pinpoint_slow_listener_shmem_size(void)
{
	return MAXALIGN(sizeof(SlowListenerControl));
}

void
pinpoint_slow_listener_shmem_init(void *memory)
{
	slow_listener_control = memory;
}

/*
 * Before a commit that notifies, or in a transaction of the waker: check
 * whether a listener is too far behind, and warn about it or end its session.
 *
 * Errors: out of memory.
 */
void
pinpoint_slow_listener_check(void)
{
	Size		kept = pinpoint_message_log_kept();
	Size		limit =
		pinpoint_message_log_lag_limit(pinpoint_max_listener_lag);
	TimestampTz now;
	bool		want_disconnect;
	bool		want_warning;

	AssertNoLockHeld();
	Assert(IsTransactionState());

	if (likely(kept <= limit))
		return;

	/* One sender is sufficient for each action.  Is it this one? */
	want_disconnect = pinpoint_on_lag == PINPOINT_ON_LAG_DISCONNECT &&
		pinpoint_max_listener_lag >= 0 &&
		kept > (Size) pinpoint_max_listener_lag * 1024;
	want_warning = kept >= pinpoint_message_log_capacity() / 2 ||
		!want_disconnect;
	now = GetCurrentTimestamp();

	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	want_disconnect = want_disconnect &&
		is_time(&slow_listener_control->last_disconnect, now,
				DISCONNECT_INTERVAL);
	want_warning = want_warning &&
		is_time(&slow_listener_control->last_warning, now, WARNING_INTERVAL);
	LWLockRelease(PinpointOrderLock);

	if (want_disconnect)
		pinpoint_evict_lagging((Size) pinpoint_max_listener_lag * 1024);
	if (want_warning)
		warn(limit);
}

/*
 * Has the interval (in milliseconds) passed since *last?  If so, sets *last to
 * now.  The caller holds PinpointOrderLock exclusively.
 */
static bool
is_time(TimestampTz *last, TimestampTz now, int interval)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(interval > 0);

	if (!pinpoint_interval_has_passed(*last, now, interval))
		return false;
	*last = now;
	return true;
}

/*
 * Find the listener that is furthest behind.
 *
 * Returns its PID, or 0 if no listener keeps a batch.  Sets *lag to the number
 * of bytes by which it is behind, and *dboid to its database if there is one;
 * both can be NULL.  The caller holds PinpointOrderLock, in shared mode at
 * least.
 */
static int
furthest_behind(Oid *dboid, uint64 *lag)
{
	PinpointSlotOwner furthest = {0};

	AssertHeld(PinpointOrderLock);
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlotOwner owner;

		if (pinpoint_slots_read_owner(i, &owner) && owner.first_sequence != 0 &&
			(furthest.pid == 0 || owner.lag > furthest.lag))
			furthest = owner;
	}
	if (lag != NULL)
		*lag = furthest.lag;
	if (dboid != NULL && furthest.pid != 0)
		*dboid = furthest.dboid;
	return furthest.pid;
}

/*
 * Warn about the listener that is furthest behind.  The server log contains
 * more details than the message to the client, which may not have the
 * privilege to see those of another session.
 *
 * limit: bytes that a listener may be behind.
 */
static void
warn(Size limit)
{
	Size		size = pinpoint_message_log_capacity();
	Size		kept;
	uint64		lag;
	int			pid;
	Oid			dboid;
	StringInfoData description;

	AssertNoLockHeld();
	Assert(limit <= size / 2);

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	pid = furthest_behind(&dboid, &lag);
	kept = pinpoint_message_log_kept();
	LWLockRelease(PinpointOrderLock);

	/* It may have caught up, or keep more bytes than it is behind. */
	if (pid == 0 || !OidIsValid(dboid) ||
		(kept < size / 2 && lag <= limit))
		return;

	/* The waker is not connected to a database. */
	pinpoint_counter_add(OidIsValid(MyDatabaseId) ? MyDatabaseId : dboid,
						 PINPOINT_COUNT_WARNED, 1);
	initStringInfo(&description);
	describe(pid, &description);
	ereport(WARNING,
			(kept >= size / 2 ?
			 errmsg("NOTIFY queue is %.0f%% full",
					100.0 * (double) kept / (double) size) :
			 errmsg("a listener is " UINT64_FORMAT " kB behind in the NOTIFY queue",
					lag / 1024),
			 errdetail("The listener that is furthest behind is the server process with PID %d.",
					   pid),
			 errdetail_log("The listener that is furthest behind is the server process with PID %d%s.",
						   pid, description.data),
			 errhint("The NOTIFY queue cannot be emptied until that process ends its current transaction and its client has read all data sent to it.")));
	pfree(description.data);
}

/*
 * Append user, application and time in transaction of a session.
 */
static void
describe(int pid, StringInfo description)
{
	int			nsessions = pgstat_fetch_stat_numbackends();

	for (int i = 1; i <= nsessions; i++)
	{
		LocalPgBackendStatus *local = PINPOINT_LOCAL_BACKEND_STATUS(i);
		PgBackendStatus *status;
		char	   *role;

		if (local == NULL || local->backendStatus.st_procpid != pid)
			continue;
		status = &local->backendStatus;

		role = GetUserNameFromId(status->st_userid, true);
		if (role != NULL)
			appendStringInfo(description, ", user \"%s\"", role);
		if (status->st_appname[0] != '\0')
			appendStringInfo(description, ", application \"%s\"",
							 status->st_appname);
		if (status->st_xact_start_timestamp != 0)
		{
			long		seconds;
			int			microseconds;

			TimestampDifference(status->st_xact_start_timestamp,
								GetCurrentTimestamp(),
								&seconds, &microseconds);
			appendStringInfo(description, ", in a transaction for %ld s",
							 seconds);
		}
		else
			appendStringInfoString(description, ", in no transaction");
		return;
	}
}

/*
 * Report that there is no space for a batch of size bytes.  The hint names the
 * cause: the transaction itself, a listener, or a slow commit.
 *
 * sender: PID of the session whose commit has been in progress for longest, 0
 * if there is none.
 *
 * Errors: ERRCODE_PROGRAM_LIMIT_EXCEEDED, as when PostgreSQL's own queue is
 * full.
 */
void
pinpoint_slow_listener_report_queue_full(Size size, int sender)
{
	int			listener;
	char	   *hint;

	AssertNoLockHeld();
	pinpoint_counter_add(MyDatabaseId, PINPOINT_COUNT_QUEUE_FULL, 1);
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	listener = furthest_behind(NULL, NULL);
	LWLockRelease(PinpointOrderLock);

	if (size > pinpoint_message_log_capacity())
		hint = psprintf(_("The notifications of this transaction take %zu bytes. Increase \"pinpoint.queue_size\"."),
						size);
	else if (listener != 0)
		hint = psprintf(_("The listener that is furthest behind is the server process with PID %d. The NOTIFY queue cannot be emptied until that process ends its current transaction and its client has read all data sent to it."),
						listener);
	else if (sender != 0)
		hint = psprintf(_("The NOTIFY queue cannot be emptied until the server process with PID %d has committed."),
						sender);
	else
		hint = pstrdup(_("Increase \"pinpoint.queue_size\"."));

	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("too many notifications in the NOTIFY queue"),
			 errhint("%s", hint)));
}

/*
 * What to do if the file of the queue cannot grow.  An error other than a full
 * disk can be permanent: a file system or a sandbox without fallocate(), or a
 * limit on the size of files.  Then the queue must do without the file.
 *
 * error: as in errno.
 */
const char *
pinpoint_slow_listener_no_disk_space_hint(int error)
{
	Assert(error != 0);

	return error == ENOSPC || error == EDQUOT ?
		_("Check free disk space.") :
		_("If this error remains, set \"pinpoint.queue_size\" and \"pinpoint.queue_memory\" to the same value: then the queue needs no file.");
}

/*
 * Report that the file of the queue cannot grow.  The hint names the listener
 * that is furthest behind.
 *
 * error: as in errno.
 *
 * Errors: always, with the code of the file system's error.
 */
void
pinpoint_slow_listener_report_no_disk_space(int error)
{
	int			listener;

	AssertNoLockHeld();
	Assert(error != 0);

	pinpoint_counter_add(MyDatabaseId, PINPOINT_COUNT_DISK_FULL, 1);
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	listener = furthest_behind(NULL, NULL);
	LWLockRelease(PinpointOrderLock);

	errno = error;
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg("could not extend file \"%s\": %m",
					PINPOINT_LOG_FILE_NAME),
			 listener != 0 ?
			 errhint("%s The listener that is furthest behind is the server process with PID %d. The NOTIFY queue cannot be emptied until that process ends its current transaction and its client has read all data sent to it.",
					 pinpoint_slow_listener_no_disk_space_hint(error),
					 listener) :
			 errhint("%s", pinpoint_slow_listener_no_disk_space_hint(error))));
}
