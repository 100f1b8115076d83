/*-------------------------------------------------------------------------
 *
 * load_order.c
 *		The place of this library in shared_preload_libraries.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/varlena.h"

#include "sql/load_order.h"

/*
 * Libraries that this one must follow.  citus does not start unless it is
 * first.  plprofiler does not call the function for shared memory of the
 * libraries that were loaded before it.
 */
static const char *const must_precede[] = {"citus", "plprofiler"};

static bool precedes(const char *library);
static const char *name_of(const char *library);

/*
 * Warn if libraries are loaded before this one that could follow it.  Called
 * while the server preloads this library, if an earlier one has installed
 * ProcessUtility_hook.
 */
void
pinpoint_load_order_check(void)
{
	char	   *setting = pstrdup(shared_preload_libraries_string);
	List	   *libraries = NIL;
	ListCell   *lc;
	const char *predecessor = NULL;
	bool		others = false;

	/* The server has parsed it before. */
	(void) SplitDirectoriesString(setting, ',', &libraries);
	foreach(lc, libraries)
	{
		const char *library = name_of(lfirst(lc));

		if (strcmp(library, "pg_pinpoint") == 0)
			break;
		if (precedes(library))
			predecessor = library;
		else
			others = true;
	}

	if (others)
		ereport(WARNING,
				(errmsg("a library that is loaded before pg_pinpoint does not see NOTIFY statements"),
				 predecessor
				 ? errhint("Put pg_pinpoint directly after %s in \"shared_preload_libraries\".",
						   predecessor)
				 : errhint("Put pg_pinpoint first in \"shared_preload_libraries\".")));

	list_free_deep(libraries);
	pfree(setting);
}

/* Must a library be loaded before this one? */
static bool
precedes(const char *library)
{
	for (size_t i = 0; i < lengthof(must_precede); i++)
	{
		if (strcmp(library, must_precede[i]) == 0)
			return true;
	}
	return false;
}

/* The name of a library that may have a path. */
static const char *
name_of(const char *library)
{
	const char *slash = last_dir_separator(library);

	return slash ? slash + 1 : library;
}
