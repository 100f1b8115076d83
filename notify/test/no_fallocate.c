/*-------------------------------------------------------------------------
 *
 * no_fallocate.c
 *		A file system that cannot allocate space, with a C library that writes
 *		no zeros then, for a server that preloads this library.
 *
 * It concerns only the file of the queue.  The environment variable
 * NO_FALLOCATE contains the path of a file with two numbers: the error of
 * posix_fallocate(), and the number of bytes that the file can have until the
 * disk is full.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A write can be shorter than what was asked for. */
#define MAX_WRITE		50000

static bool
is_queue(int fd)
{
	static const char name[] = "/pg_notify/pg_pinpoint";
	char		link[64];
	char		target[4096];
	ssize_t		n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, target, sizeof(target) - 1) - (ssize_t) strlen(name);
	return n >= 0 && strncmp(target + n, name, strlen(name)) == 0;
}

static void
read_settings(int *error, long *space)
{
	FILE	   *file = fopen(getenv("NO_FALLOCATE"), "r");

	if (file == NULL || fscanf(file, "%d %ld", error, space) != 2)
		abort();
	fclose(file);
}

int
posix_fallocate(int fd, off_t offset, off_t length)
{
	int			(*next) (int, off_t, off_t) = dlsym(RTLD_NEXT, __func__);
	int			error;
	long		space;

	if (!is_queue(fd))
		return next(fd, offset, length);
	read_settings(&error, &space);
	return error;
}

ssize_t
pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
	ssize_t		(*next) (int, const void *, size_t, off_t) =
		dlsym(RTLD_NEXT, __func__);
	int			error;
	long		space;

	if (!is_queue(fd))
		return next(fd, bytes, size, offset);
	read_settings(&error, &space);
	if (offset >= space)
	{
		errno = ENOSPC;
		return -1;
	}
	if (size > MAX_WRITE)
		size = MAX_WRITE;
	if ((off_t) size > space - offset)
		size = space - offset;
	return next(fd, bytes, size, offset);
}
