/*-------------------------------------------------------------------------
 *
 * log_storage.c
 *		The storage of the message log: one address range, partly shared memory,
 *		partly a file.
 *
 * The postmaster maps the range, and all processes inherit it, so it has the
 * same address in each process.  The first part (pinpoint.queue_memory) is
 * shared memory.  The rest, up to pinpoint.queue_size, is a sparse file in
 * pg_notify/, mapped directly after the memory.  The message log prefers low
 * addresses, so it uses the file only while the backlog of listeners exceeds
 * the memory.
 *
 * The disk space of the file is allocated in steps, each before the file is
 * written to.  If the disk is full, the sender gets an error before its
 * commit, and a write to the range cannot fail.  When no block of the file is
 * in use, the space is returned.
 *
 * PostgreSQL excludes the contents of pg_notify/ from base backups.  They are
 * not needed after a restart, so this library truncates the file at each
 * start.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/wait_event.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/settings.h"
#include "queue/log_storage.h"

/* The file grows by this many bytes at a time. */
#define GROWTH_STEP			((Size) 16 * 1024 * 1024)

/* In a build with assertions, free space is filled with this byte. */
#define FREED_BYTE			0x7F

/* Set by the postmaster, inherited by all processes, constant. */
static char *log_range = NULL;
static Size log_range_size = 0;
static Size log_memory_size = 0;	/* size of the first part */
static int	log_file = -1;		/* descriptor of the second part, -1 if there
								 * is none */
static uint32 file_wait_event = 0;	/* for waits while the file grows or
									 * shrinks */

static void *map_range(void *address, Size size, int protection, int flags,
					   int fd);
static void empty_file(int code, Datum arg);
static int	allocate(off_t offset, Size size);
static int	write_zeros(off_t offset, Size size);

/*
 * mmap().
 *
 * Errors: FATAL, if it fails.
 */
static void *
map_range(void *address, Size size, int protection, int flags, int fd)
{
	void	   *result = mmap(address, size, protection, flags, fd, 0);

	if (result == MAP_FAILED)
		ereport(FATAL,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not map %zu bytes for the queue of notifications: %m",
						size),
				 errhint("Reduce \"pinpoint.queue_memory\" (now %d kB) or \"pinpoint.queue_size\" (now %d kB).",
						 pinpoint_queue_memory, pinpoint_queue_size)));
	return result;
}

/*
 * Create the range, empty.  The postmaster calls this at start and at restart
 * after a crash.
 *
 * unit: a power of two.  The size of the part that needs no file is a multiple
 * of it, unless there is no file.
 *
 * Returns the address of the range.
 *
 * Errors: FATAL, if memory or the file cannot be created.
 */
char *
pinpoint_log_storage_create(Size unit)
{
	Size		page = (Size) sysconf(_SC_PAGESIZE);
	Size		new_size;

	Assert(!IsUnderPostmaster);
	Assert(unit > 0 && (unit & (unit - 1)) == 0);

	/* No process uses the old range any more. */
	if (log_range != NULL)
		munmap(log_range, log_range_size);
	if (log_file >= 0)
		close(log_file);
	log_file = -1;

	/* The file must begin at a page boundary. */
	new_size = pinpoint_log_storage_requested_size();
	log_memory_size = TYPEALIGN(Max(page, unit),
								mul_size(pinpoint_queue_memory, 1024));
	log_memory_size = Min(log_memory_size, new_size);

	log_range = map_range(NULL, new_size, PROT_NONE,
						  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	log_range_size = new_size;
	map_range(log_range, log_memory_size, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1);

	if (log_range_size > log_memory_size)
	{
		static bool callback_registered = false;

		file_wait_event = PINPOINT_WAIT_EVENT("PinpointQueueFile");
		if (!callback_registered)
			on_proc_exit(empty_file, (Datum) 0);
		callback_registered = true;

		log_file = BasicOpenFile(PINPOINT_LOG_FILE_NAME,
								 O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);
		if (log_file < 0)
			ereport(FATAL,
					(errcode_for_file_access(),
					 errmsg("could not create file \"%s\": %m",
							PINPOINT_LOG_FILE_NAME)));
		(void) fcntl(log_file, F_SETFD, FD_CLOEXEC);

		/* No process accesses addresses beyond the end of the file. */
		map_range(log_range + log_memory_size, log_range_size - log_memory_size,
				  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, log_file);
	}
#ifdef MADV_DONTDUMP
	(void) madvise(log_range, log_range_size, MADV_DONTDUMP);
#endif

	return log_range;
}

/*
 * Callback at the end of the postmaster: free the disk space.
 */
static void
empty_file(int code, Datum arg)
{
	pinpoint_log_storage_shrink(log_memory_size);
}

/*
 * Size of the whole range according to the settings, in bytes.
 */
Size
pinpoint_log_storage_requested_size(void)
{
	return TYPEALIGN((Size) sysconf(_SC_PAGESIZE),
					 mul_size(pinpoint_queue_size, 1024));
}

/*
 * Size of the whole range, and of the part that needs no file, in bytes.
 */
Size
pinpoint_log_storage_size(void)
{
	return log_range_size;
}

Size
pinpoint_log_storage_memory_size(void)
{
	return log_memory_size;
}

/*
 * Allocate disk space.  Called before a commit.
 *
 * *usable: bytes at the beginning of the range that can be used; set to the
 * new value.  wanted: bytes that are needed, at most the size of the range.
 *
 * Returns 0, or an errno value.  In the latter case nothing has changed.
 *
 * The caller holds PinpointStorageLock exclusively, and not PinpointOrderLock.
 */
int
pinpoint_log_storage_grow(Size *usable, Size wanted)
{
	Size		new_usable = *usable;

	AssertHeldExclusive(PinpointStorageLock);
	AssertNotHeld(PinpointOrderLock);
	Assert(log_file >= 0);
	Assert(*usable >= log_memory_size && wanted <= log_range_size);

	while (new_usable < wanted)
	{
		Size		step = Min(GROWTH_STEP, log_range_size - new_usable);
		int			rc;

		pgstat_report_wait_start(file_wait_event);
		rc = allocate((off_t) (new_usable - log_memory_size), step);
		pgstat_report_wait_end();

		if (rc != 0)
		{
			/* Free the space that *usable does not include. */
			if (ftruncate(log_file, (off_t) (*usable - log_memory_size)) != 0)
				elog(LOG_SERVER_ONLY, "could not truncate file \"%s\": %m",
					 PINPOINT_LOG_FILE_NAME);
			return rc;
		}
		new_usable += step;
	}
	*usable = new_usable;
	return 0;
}

/*
 * Allocate a part of the file.  Returns 0, or an errno value.
 *
 * Not every file system can allocate space.  Then posix_fallocate() of glibc
 * writes zeros, and that of other C libraries, for instance musl, fails.
 */
static int
allocate(off_t offset, Size size)
{
	int			rc;

	do
		rc = posix_fallocate(log_file, offset, (off_t) size);
	while (rc == EINTR);

	/* POSIX says EINVAL, and Linux EOPNOTSUPP. */
	if (rc == EINVAL || rc == EOPNOTSUPP)
		rc = write_zeros(offset, size);
	return rc;
}

/*
 * The same for a file system that cannot allocate.  No process uses this part
 * of the file yet.
 */
static int
write_zeros(off_t offset, Size size)
{
	static const char zeros[64 * 1024] = {0};

	while (size > 0)
	{
		ssize_t		written = pwrite(log_file, zeros,
									 Min(size, sizeof(zeros)), offset);

		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return errno;
		if (written == 0)
			return ENOSPC;
		offset += written;
		size -= written;
	}
	return 0;
}

/*
 * Free disk space.  No block of the file is in use.
 *
 * usable: bytes at the beginning of the range that remain usable.
 *
 * The caller holds PinpointStorageLock exclusively, and not PinpointOrderLock.
 * The postmaster calls this at its end without a lock.
 */
void
pinpoint_log_storage_shrink(Size usable)
{
	static bool failed = false;
	int			rc;

	AssertHeldExclusive(PinpointStorageLock);
	AssertNotHeld(PinpointOrderLock);
	Assert(usable >= log_memory_size && usable <= log_range_size);

	pgstat_report_wait_start(file_wait_event);
	rc = ftruncate(log_file, (off_t) (usable - log_memory_size));
	pgstat_report_wait_end();

	/* The next step would fail for the same reason. */
	if (rc != 0 && !failed)
		ereport(LOG_SERVER_ONLY,
				(errcode_for_file_access(),
				 errmsg("could not truncate file \"%s\": %m",
						PINPOINT_LOG_FILE_NAME)));
	failed = rc != 0;
}

#ifdef USE_ASSERT_CHECKING
/*
 * Overwrite free space, so that a process that still reads it fails.  Not in
 * the file, whose pages may be on disk only.
 *
 * offset, size: a part of the range, in bytes.
 */
void
pinpoint_log_storage_overwrite(Size offset, Size size)
{
	Assert(offset + size <= log_range_size);
	if (offset + size <= log_memory_size)
		memset(log_range + offset, FREED_BYTE, size);
}

/*
 * Is free space still as it was overwritten?
 */
bool
pinpoint_log_storage_is_overwritten(Size offset, Size size)
{
	const char *start = log_range + offset;

	Assert(offset + size <= log_range_size);
	return offset + size > log_memory_size ||
		(start[0] == FREED_BYTE && memcmp(start, start + 1, size - 1) == 0);
}
#endif
