/*
 * Prints the result of pinpoint_queue_bug_fixed_in() for each argument, a
 * version in the format of server_version_num.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../base/minor_release.h"

int
main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		printf("%s %d\n", argv[i], pinpoint_queue_bug_fixed_in(atoi(argv[i])));
	return 0;
}
