/*-------------------------------------------------------------------------
 *
 * replication_status.c
 *		Tells standbys whether this server replicates notifications.
 *
 * Listeners on a standby receive nothing if the primary has pinpoint.replicate off,
 * and cannot distinguish this from a primary without notifications.  This matters when
 * another server becomes the primary, because its configuration may differ.  So a
 * primary writes to the WAL whether it replicates: when it starts, when it has been
 * promoted, and when the setting changes.  A standby disconnects its listeners when
 * "off" follows after another state; see replay.c.
 *
 * Only the waker writes this message, because it has no database and no role: it sees
 * the value of the setting for the server, which ALTER DATABASE, ALTER ROLE and SET
 * can override for sessions.  These overrides, except SET, are in catalogs that all
 * servers of a cluster have in common, so a promotion does not change them.  A server
 * that replicates for some databases or roles only writes "off".
 *
 * The message is a logical message with our prefix, without a transaction and without
 * a database.  Logical decoding ignores messages of other databases, so no replication
 * slot outputs it.  Older versions of this library ignore messages without a
 * transaction.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "replication/message.h"

#include "base/settings.h"
#include "commit/wal_messages.h"
#include "commit/replication_status.h"

static void write_status(const char *status);

/*
 * Write and flush the message, if this server is a primary and this process
 * has not written the current status yet.  The waker calls this repeatedly.
 *
 * Errors: those of writing WAL.
 */
void
pinpoint_replication_status_write(void)
{
	static bool any_written = false;
	static bool written;
	bool		replicates = pinpoint_replicate_notifications && pinpoint_enabled;

	if ((any_written && written == replicates) || RecoveryInProgress() ||
		!XLogIsNeeded() || IsBinaryUpgrade)
		return;
	write_status(replicates ? PINPOINT_STATUS_ON : PINPOINT_STATUS_OFF);
	written = replicates;
	any_written = true;
}

static void
write_status(const char *status)
{
	xl_logical_message record = {
		.dbId = InvalidOid,
		.transactional = false,
		.prefix_size = sizeof(PINPOINT_MESSAGE_PREFIX),
		.message_size = strlen(status),
	};

	XLogBeginInsert();
	XLogRegisterData((char *) &record, SizeOfLogicalMessage);
	XLogRegisterData((char *) PINPOINT_MESSAGE_PREFIX,
					 sizeof(PINPOINT_MESSAGE_PREFIX));
	XLogRegisterData((char *) status, strlen(status));
	XLogFlush(XLogInsert(RM_LOGICALMSG_ID, XLOG_LOGICAL_MESSAGE));
}
