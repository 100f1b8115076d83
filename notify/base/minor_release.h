/*-------------------------------------------------------------------------
 *
 * minor_release.h
 *		Minor releases of PostgreSQL with a bug in PostgreSQL's own NOTIFY
 *		queue.
 *
 * Before the releases below, VACUUM could remove the commit status of a
 * transaction while its notifications were still in PostgreSQL's queue.  A
 * listener that read them got the error "could not access status of
 * transaction".  See the release notes of 18.2: "Prevent truncation of CLOG
 * that is still needed by unread NOTIFY messages".  This library does not use
 * that queue, but notifications that it does not intercept still use it.
 *
 * This file needs no other header, so a test can include it in a separate
 * program.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_MINOR_RELEASE_H
#define PINPOINT_MINOR_RELEASE_H

/*
 * Returns the first minor release without the bug if the given one has it,
 * else 0.
 *
 * version: as in server_version_num, for example 150015 for 15.15.
 */
static inline int
pinpoint_queue_bug_fixed_in(int version)
{
	static const int fixed_in[] = {150016, 160012, 170008, 180002};

	for (unsigned i = 0; i < sizeof(fixed_in) / sizeof(fixed_in[0]); i++)
	{
		if (version / 10000 == fixed_in[i] / 10000 && version < fixed_in[i])
			return fixed_in[i];
	}
	return 0;
}

#endif
