/*
 * Prints for each version that is given as an argument, in the form of
 * server_version_num, what pinpoint_queue_fault_fixed_in() returns.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../base/minor_release.h"

int
main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		printf("%s %d\n", argv[i], pinpoint_queue_fault_fixed_in(atoi(argv[i])));
	return 0;
}
