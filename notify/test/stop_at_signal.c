/*-------------------------------------------------------------------------
 *
 * stop_at_signal.c
 *		Stops a process before it signals another one, for a server that
 *		preloads this library.
 *
 * The environment variable STOP_AT_SIGNAL contains the path of a file with a
 * PID and the number of a signal.  This process removes the file and stops
 * itself when it is about to send this signal: SIGUSR1 wakes a session that
 * listens, SIGURG one that waits for its latch, and SIGTERM ends one.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * Does the file contain the PID of this process and this signal?  If so,
 * removes it.
 */
static bool
is_to_stop(int sig)
{
	const char *path = getenv("STOP_AT_SIGNAL");
	FILE	   *file = path ? fopen(path, "r") : NULL;
	int			pid = 0;
	int			wanted = 0;

	if (file == NULL)
		return false;
	if (fscanf(file, "%d %d", &pid, &wanted) != 2)
		pid = 0;
	fclose(file);
	return pid == getpid() && wanted == sig && unlink(path) == 0;
}

int
kill(pid_t pid, int sig)
{
	if (is_to_stop(sig))
		raise(SIGSTOP);
	return (int) syscall(SYS_kill, pid, sig);
}
