/*-------------------------------------------------------------------------
 *
 * early_commit_work.c
 *		What PostgreSQL does in a commit before the commit record, done ahead.
 *
 * From its announcement on a commit holds back the notifications of later ones
 * (see commit_order.c), so what lies between the announcement and the commit
 * record should be short.  XACT_EVENT_PRE_COMMIT is the last moment in which we
 * are called before the record.  This is what PostgreSQL does after that, and
 * how long it can take:
 *
 *	AtEOXact_Parallel, AfterTriggerEndXact, AtEOXact_LargeObject
 *								short
 *	PreCommit_on_commit_actions	truncates and drops temporary tables: in
 *								proportion to their number
 *	smgrDoPendingSyncs			with wal_level = minimal, writes and syncs files
 *								of tables made in this transaction: in proportion
 *								to their size
 *	PreCommit_Notify			waits for others, if the transaction has sent
 *								something PostgreSQL's own way, too
 *	PreCommit_CheckForSerializationFailure
 *								short
 *
 * The two in the middle we do ahead of the announcement, so that there is little
 * or nothing left for PostgreSQL to do.  It does its own work all the same, so
 * nothing depends on ours being complete.  What libraries do in pre-commit
 * callbacks that run after ours is beyond our reach: those are libraries that
 * were loaded before us.
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

#include "base/compat.h"
#include "commit/early_commit_work.h"

static void empty_temporary_tables(void);
static void sync_new_files(void);
static bool is_large(SMgrRelation file);

/*
 * To be called in XACT_EVENT_PRE_COMMIT, when no user code runs any more.
 *
 * Errors: whatever the commit itself could fail with.
 */
void
pinpoint_early_commit_work(void)
{
	if (MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE)
		empty_temporary_tables();
	if (!XLogIsNeeded())
		sync_new_files();
}

/*
 * ON COMMIT DELETE ROWS and ON COMMIT DROP.
 *
 * PostgreSQL will not drop again what is dropped.  It truncates a table in every
 * transaction that has accessed any temporary one, which it learns from a flag
 * that is set wherever one is opened.  They have been truncated now, so the flag
 * goes; should another library's callback still open one, it will be back.
 */
static void
empty_temporary_tables(void)
{
	PreCommit_on_commit_actions();
	MyXactFlags &= ~XACT_FLAGS_ACCESSEDTEMPNAMESPACE;
}

/*
 * Write and sync the files that PostgreSQL will have to sync before the commit
 * record.  It will do so again, since it does not know of this, but then finds
 * nothing dirty.  Files that are small go to the WAL instead, and are left to it.
 */
static void
sync_new_files(void)
{
	Size		size = EstimatePendingSyncsSpace();
	PinpointRelFile *files = palloc(size);
	SMgrRelation *large = palloc(size / sizeof(PinpointRelFile) *
								 sizeof(SMgrRelation));
	int			nlarge = 0;

	/* All zero is the end. */
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
 * Will PostgreSQL sync this file, and not log it?
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
