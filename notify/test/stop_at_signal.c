/*-------------------------------------------------------------------------
 *
 * stop_at_signal.c
 *		Stops a process before it signals another one, for a server that
 *		preloads this library.
 *
 * The environment variable STOP_AT_SIGNAL contains the path of a file with a
 * PID.  This process removes the file and stops itself when it is about to
 * send the signal with which PostgreSQL wakes a session that listens.  Setting
 * a latch sends another signal.
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
 * Does the file contain the PID of this process?  If so, removes it.
 */
static bool
is_to_stop(void)
{
	const char *path = getenv("STOP_AT_SIGNAL");
	FILE	   *file = path ? fopen(path, "r") : NULL;
	int			pid = 0;

	if (file == NULL)
		return false;
	if (fscanf(file, "%d", &pid) != 1)
		pid = 0;
	fclose(file);
	return pid == getpid() && unlink(path) == 0;
}

int
kill(pid_t pid, int sig)
{
	if (sig == SIGUSR1 && is_to_stop())
		raise(SIGSTOP);
	return (int) syscall(SYS_kill, pid, sig);
}
