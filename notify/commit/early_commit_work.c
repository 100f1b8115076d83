/*-------------------------------------------------------------------------
 *
 * early_commit_work.c
 *		Does long work of a commit before the commit is announced.
 *
 * After its announcement, a commit holds back the notifications of later
 * commits (see commit_order.c), so the time between the announcement and the
 * commit record should be short.  XACT_EVENT_PRE_COMMIT is the last callback
 * before the record.  After it, PostgreSQL executes these steps, which can
 * take this long:
 *
 *	AtEOXact_Parallel, AfterTriggerEndXact, AtEOXact_LargeObject
 *								short
 *	PreCommit_on_commit_actions	truncates and drops temporary tables: in
 *								proportion to their number
 *	smgrDoPendingSyncs			with wal_level = minimal, writes and syncs files
 *								of tables that this transaction created: in
 *								proportion to their size
 *	PreCommit_Notify			waits for other transactions, if this
 *								transaction also used PostgreSQL's own queue
 *	PreCommit_CheckForSerializationFailure
 *								short
 *
 * This file executes the second and the third step before the announcement, so
 * that little or no work remains for PostgreSQL.  PostgreSQL still executes
 * its own steps, so correctness does not depend on this file.  Libraries that
 * were loaded before this one can execute long pre-commit callbacks after
 * ours.  This cannot be avoided.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/storage.h"
#include "commands/tablecmds.h"
#include "storage/smgr.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/transaction.h"
#include "commit/early_commit_work.h"

static void empty_temporary_tables(void);
static void sync_new_files(void);
static bool is_large(SMgrRelation file);

/*
 * Execute the steps.  Called in XACT_EVENT_PRE_COMMIT, after the last user
 * code.
 *
 * Errors: out of memory, and those that these steps of the commit can raise.
 */
void
pinpoint_early_commit_work(void)
{
	/* It may take long, so it comes before the announcement. */
	AssertNoLockHeld();
	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);

	if (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE)
		empty_temporary_tables();
	if (!XLogIsNeeded())
		sync_new_files();
}

/*
 * ON COMMIT DELETE ROWS and ON COMMIT DROP.
 *
 * PostgreSQL does not drop a table again that is dropped here.  It truncates
 * tables if a flag shows that the transaction has opened a temporary table.
 * All of them are truncated here, so the flag is cleared.  If a callback of
 * another library opens a temporary table later, PostgreSQL sets the flag
 * again.
 */
static void
empty_temporary_tables(void)
{
	PreCommit_on_commit_actions();
	MyXactFlags &= ~XACT_FLAGS_ACCESSEDTEMPNAMESPACE;
}

/*
 * Write and sync the files that PostgreSQL must sync before the commit record.
 * PostgreSQL will sync them again, because it does not know of this, but will
 * find no dirty page.  PostgreSQL writes small files to the WAL instead: they
 * are skipped here.
 */
static void
sync_new_files(void)
{
	Size		size = EstimatePendingSyncsSpace();
	PinpointRelFile *files = palloc(size);
	SMgrRelation *large = palloc(size / sizeof(PinpointRelFile) *
								 sizeof(SMgrRelation));
	int			nlarge = 0;

	/* The last element is all zero. */
	SerializePendingSyncs(size, (char *) files);
	for (PinpointRelFile *file = files; PINPOINT_REL_NUMBER(*file) != 0; file++)
	{
		SMgrRelation smgr = smgropen(*file, PINPOINT_NOT_TEMPORARY);

		if (is_large(smgr))
			large[nlarge++] = smgr;
	}
	smgrdosyncall(large, nlarge);

	pfree(large);
	pfree(files);
}

/*
 * Will PostgreSQL sync this file because of its size, instead of writing it to
 * the WAL?
 */
static bool
is_large(SMgrRelation file)
{
	uint64		nblocks = 0;

	for (ForkNumber fork = 0; fork <= MAX_FORKNUM; fork++)
	{
		if (smgrexists(file, fork))
			nblocks += smgrnblocks(file, fork);
	}
	return nblocks >= (uint64) wal_skip_threshold * 1024 / BLCKSZ;
}
