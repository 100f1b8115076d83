/*-------------------------------------------------------------------------
 *
 * clock.c
 *		Clocks that a test sets, for a server that preloads this library.
 *
 * The environment variable CLOCKS contains the path of a file with two numbers
 * of eight bytes:
 *
 *	seconds		gettimeofday(), with which PostgreSQL reads the time, returns a
 *				time that differs by so many seconds
 *	step		microseconds of processor time that a process has used between
 *				two readings of it; -1: the real processor time
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef struct Clocks
{
	int64_t		seconds;
	int64_t		step;
}			Clocks;

static const volatile Clocks *
map_clocks(void)
{
	static const Clocks real = {0, -1};
	const char *path = getenv("CLOCKS");
	int			fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void	   *place = MAP_FAILED;

	if (fd >= 0)
	{
		place = mmap(NULL, sizeof(Clocks), PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
	}
	return place == MAP_FAILED ? &real : place;
}

static const volatile Clocks *
clocks(void)
{
	static const volatile Clocks *mapped = NULL;

	if (mapped == NULL)
		mapped = map_clocks();
	return mapped;
}

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	struct timespec now;

	(void) tz;
	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return -1;
	tv->tv_sec = now.tv_sec + clocks()->seconds;
	tv->tv_usec = now.tv_nsec / 1000;
	return 0;
}

int
clock_gettime(clockid_t clock, struct timespec *time)
{
	static int	(*next) (clockid_t, struct timespec *) = NULL;
	static int64_t used = 0;

	if (clock == CLOCK_PROCESS_CPUTIME_ID && clocks()->step >= 0)
	{
		used += clocks()->step;
		time->tv_sec = used / 1000000;
		time->tv_nsec = used % 1000000 * 1000;
		return 0;
	}
	if (next == NULL)
		*(void **) &next = dlsym(RTLD_NEXT, "clock_gettime");
	return next(clock, time);
}
