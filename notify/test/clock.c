/*-------------------------------------------------------------------------
 *
 * clock.c
 *		A clock that a test sets, for a server that preloads this library.
 *
 * gettimeofday(), with which PostgreSQL reads the time, returns a time that
 * differs by a number of seconds.  The environment variable CLOCK_OFFSET
 * contains the path of a file with this number (eight bytes).
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset = NULL;

static const volatile int64_t *
map_offset(void)
{
	static const int64_t none = 0;
	const char *path = getenv("CLOCK_OFFSET");
	int			fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void	   *place = MAP_FAILED;

	if (fd >= 0)
	{
		place = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
	}
	return place == MAP_FAILED ? &none : place;
}

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	struct timespec now;

	(void) tz;
	if (offset == NULL)
		offset = map_offset();
	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return -1;
	tv->tv_sec = now.tv_sec + *offset;
	tv->tv_usec = now.tv_nsec / 1000;
	return 0;
}
