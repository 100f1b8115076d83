/*-------------------------------------------------------------------------
 *
 * replication_status.c
 *		Tells standbys whether this server replicates notifications.
 *
 * Listeners on a standby hear nothing if its primary has pinpoint.replicate off, and
 * cannot tell this from a primary where nothing is notified.  This matters when another
 * server becomes the primary, whose configuration may be different.  So a primary writes
 * into the WAL what it does: when it starts, when it has been promoted, and when the
 * setting changes.  A standby disconnects its listeners when "off" follows on anything
 * else; see replay.c.
 *
 * Only the waker writes it, as it has no database and no role: what it sees of the
 * setting is the value for the server, which ALTER DATABASE, ALTER ROLE and SET may
 * override for others.  These overrides, but for SET, are in catalogs that all servers
 * of a cluster have in common, so a promotion changes nothing about them.  A server that
 * replicates for some databases or roles only says "off".
 *
 * The message is a logical message with our prefix that belongs to no transaction and no
 * database.  Logical decoding passes over messages of other databases, so no replication
 * slot hands it out; older versions of this library pass over messages that belong to no
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
 * Called by the waker now and then: write whether this server replicates, if it is a
 * primary and has not said so yet.
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
