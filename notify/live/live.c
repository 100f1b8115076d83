/*-------------------------------------------------------------------------
 *
 * live.c
 *		Statements, and changes of catalogs, that concern watched tables.
 *
 * Most changes of a watched table are noticed at the end of the transaction,
 * without a hook; see changes.c.  hooks.c calls this file for the rest:
 *
 *	before a statement		is track_counts off?
 *	SECURITY LABEL			register the provider of the labels, and lock them
 *	COMMIT PREPARED			notify the changes of the prepared transaction
 *	ALTER, DROP TABLE		the table changes, which may have another name now
 *	CREATE, ALTER, DROP		other rows of the table are visible
 *	POLICY, ... ROW LEVEL
 *	SECURITY
 *	ATTACH, DETACH, DROP,	the rows of the parent change
 *	INHERIT, NO INHERIT
 *	DROP EXTENSION			remove all labels
 *	DROP FUNCTION			the database can have had hypertables
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_policy.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/compat.h"
#include "base/transaction.h"
#include "live/changes.h"
#include "live/live.h"
#include "live/uncounted.h"
#include "live/watch.h"
#include "live/watched_tables.h"
#include "sql/replacement.h"

static bool may_write(Node *stmt);
static bool is_row_security(AlterTableStmt *stmt);
static void child_changed(Oid child, Oid parent);
static bool has_left_before(Relation child, Oid parent);
static void relation_altered(Oid relid);
static void policy_changed(Oid policy);
static void relation_dropped(Oid relid);

/*
 * Before a utility statement.  Returns whether to call
 * pinpoint_live_after_utility().
 *
 * Errors: those of pinpoint_watch_before_security_label().
 */
bool
pinpoint_live_before_utility(Node *stmt)
{
	pinpoint_changes_at_statement(may_write(stmt));
	if (IsA(stmt, SecLabelStmt))
		pinpoint_watch_before_security_label(((SecLabelStmt *) stmt)->provider);
	return IsA(stmt, AlterTableStmt) &&
		is_row_security((AlterTableStmt *) stmt);
}

/*
 * May a statement write to a table?  If not, its transaction need not look for
 * tables that it has written to.
 */
static bool
may_write(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_TransactionStmt:
		case T_ListenStmt:
		case T_UnlistenStmt:
		case T_NotifyStmt:
			return false;
		default:
			return true;
	}
}

/*
 * Does a statement enable or disable row-level security?
 */
static bool
is_row_security(AlterTableStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		switch (((AlterTableCmd *) lfirst(lc))->subtype)
		{
			case AT_EnableRowSecurity:
			case AT_DisableRowSecurity:
			case AT_ForceRowSecurity:
			case AT_NoForceRowSecurity:
				return true;
			default:
				break;
		}
	}
	return false;
}

/*
 * Row-level security of a table was enabled or disabled.  Before 17, PostgreSQL
 * calls no hook.
 *
 * The statement has locked its table.  Its name is not looked up, because it
 * may have another meaning than when the statement did so: other sessions can
 * create and rename tables.  A query of an ancestor does not apply row-level
 * security of this table.
 */
void
pinpoint_live_after_utility(void)
{
	ListCell   *lc;

	if (PinpointMyTransaction.phase != PINPOINT_RUNNING ||
		!pinpoint_watched_tables_exist())
		return;
	foreach(lc, pinpoint_watched_tables_locked_channels(AccessExclusiveLock))
		pinpoint_changes_report_channel(lfirst(lc));
}

/*
 * Called by object_access_hook: a catalog has changed.
 */
void
pinpoint_live_at_access(ObjectAccessType access, Oid class_id, Oid object_id,
						int sub_id, void *arg)
{
	if (access == OAT_POST_ALTER && class_id == InheritsRelationId)
		child_changed(object_id, ((ObjectAccessPostAlter *) arg)->auxiliary_id);
	else if (access == OAT_DROP && class_id == RelationRelationId &&
			 sub_id == 0)
		relation_dropped(object_id);
	else if (class_id == RelationRelationId &&
			 ((access == OAT_POST_ALTER &&
			   !((ObjectAccessPostAlter *) arg)->is_internal) ||
			  (access == OAT_POST_CREATE && sub_id != 0) || access == OAT_DROP))
		relation_altered(object_id);
	else if (class_id == PolicyRelationId)
		policy_changed(object_id);
	else if (access == OAT_DROP && class_id == ExtensionRelationId)
	{
		pinpoint_uncounted_at_drop_extension(object_id);
		if (pinpoint_replacement_is_extension(object_id))
			pinpoint_watch_remove_all();
	}
}

/*
 * A table has become a partition or a child, or is none any more.  So the rows
 * of the parent have changed.  A new child without children is an exception: it
 * has only rows that this transaction has inserted, and these are counted.  If
 * the child has been rewritten, it may have had another access method, which
 * did not count them.
 *
 * A chunk of a hypertable may have changed while it was one, which can only be
 * seen now.
 */
static void
child_changed(Oid child, Oid parent)
{
	Relation	rel = relation_open(child, NoLock);
	bool		has_left = has_left_before(rel, parent);
	bool		is_new;

	is_new = rel->rd_createSubid != InvalidSubTransactionId &&
		PINPOINT_REWRITTEN_SUBID(rel) == InvalidSubTransactionId &&
		!rel->rd_rel->relhassubclass &&
		!pinpoint_uncounted_relation(rel->rd_rel);
	relation_close(rel, NoLock);
	if (has_left || PinpointMyTransaction.phase != PINPOINT_RUNNING)
		return;

	pinpoint_watch_inheritance_changed(child, parent);
	if (is_new || !pinpoint_watched_tables_exist())
		return;
	pinpoint_changes_report_table(parent);
	if (pinpoint_uncounted_any_hypertable())
		pinpoint_changes_report_table(child);
}

/*
 * Is the child a partition whose DETACH CONCURRENTLY has begun in an earlier
 * transaction, so that this one completes it?  The earlier one has removed the
 * rows from the parent, and notified; see changes.c.
 *
 * Then the parent is not locked in mode AccessExclusiveLock.  All statements
 * that remove the rows of a partition lock the parent in this mode.  A table
 * that is being attached is not marked as a partition yet; a new one is, but
 * then the parent is locked, too.
 *
 * If the statement is cancelled in this transaction, the partition has to be
 * detached by a further statement.  So this library reads no catalogs here,
 * which can process interrupts.  It does so before the commit if the database
 * can have uncounted tables.
 */
static bool
has_left_before(Relation child, Oid parent)
{
	return child->rd_rel->relispartition &&
		!pinpoint_table_locked_by_me(parent, AccessExclusiveLock);
}

/*
 * A relation or one of its columns was altered, or a column was added or will
 * be dropped.  ALTER TABLE can change all rows, and a query may find another
 * table by the name now.  So a client has to execute its query again.  The
 * statement has locked the table: watch() waits.
 */
static void
relation_altered(Oid relid)
{
	ListCell   *lc;

	if (PinpointMyTransaction.phase != PINPOINT_RUNNING ||
		relid < FirstNormalObjectId || !pinpoint_watched_tables_exist())
		return;
	foreach(lc, pinpoint_watched_tables_to_notify(relid))
		pinpoint_changes_report_channel(lfirst(lc));
}

/*
 * A policy of row-level security was created or altered, or will be dropped.
 * DROP POLICY locks the table afterwards, so the channels are determined before
 * the commit.
 */
static void
policy_changed(Oid policy)
{
	Relation	policies;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	if (PinpointMyTransaction.phase != PINPOINT_RUNNING)
		return;

	/* With this snapshot, a row of the current command is visible. */
	policies = table_open(PolicyRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_policy_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(policy));
	scan = systable_beginscan(policies, PolicyOidIndexId, true, SnapshotSelf,
							  1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_policy policy_row = (Form_pg_policy) GETSTRUCT(tuple);

		pinpoint_changes_report_table(policy_row->polrelid);
	}
	systable_endscan(scan);
	table_close(policies, AccessShareLock);
}

/*
 * A relation will be dropped, with its label.  If it is a partition or a
 * child, so are rows of its ancestors.
 */
static void
relation_dropped(Oid relid)
{
	char		relkind = get_rel_relkind(relid);
	const char *channel;
	List	   *ancestors;
	ListCell   *lc;

	if ((relkind != RELKIND_RELATION && relkind != RELKIND_MATVIEW &&
		 relkind != RELKIND_FOREIGN_TABLE &&
		 relkind != RELKIND_PARTITIONED_TABLE) ||
		PinpointMyTransaction.phase != PINPOINT_RUNNING ||
		get_rel_persistence(relid) == RELPERSISTENCE_TEMP ||
		!pinpoint_watched_tables_exist())
		return;

	channel = pinpoint_watched_table_channel(relid);
	if (channel != NULL)
		pinpoint_changes_report_channel(channel);
	ancestors = list_delete_first(pinpoint_watched_table_with_ancestors(relid));
	foreach(lc, ancestors)
		pinpoint_changes_report_table(lfirst_oid(lc));
}
