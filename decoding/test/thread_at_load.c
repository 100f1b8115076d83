/*
 * A server library that starts a thread when it is loaded.
 */
#include "postgres.h"

#include <pthread.h>
#include <unistd.h>

#include "fmgr.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static void *
sleep_forever(void *arg)
{
	for (;;)
		pause();
	return arg;
}

void
_PG_init(void)
{
	static pthread_t thread;

	if (pthread_create(&thread, NULL, sleep_forever, NULL) != 0)
		elog(ERROR, "could not create a thread");
}
