/*
 * Runs a command without the permission that the first argument names:
 *
 *	exec	make memory executable: mprotect() with PROT_EXEC fails with EPERM,
 *			as under systemd's MemoryDenyWriteExecute
 *	move	move memory: mremap() fails with EPERM
 *
 * The system call is denied by a seccomp filter, which the command's children
 * inherit.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LENGTH(array) \
	(sizeof(array) / sizeof((array)[0]))
#define LOAD(field) \
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define DENY \
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
#define ALLOW \
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int
main(int argc, char **argv)
{
	/* The low half of an argument: both CPUs are little-endian. */
	struct sock_filter no_exec[] = {
		LOAD(nr),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 3),
		LOAD(args[2]),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
		DENY,
		ALLOW
	};
	struct sock_filter no_move[] = {
		LOAD(nr),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
		DENY,
		ALLOW
	};
	struct sock_fprog program;

	if (argc < 3)
	{
		fprintf(stderr, "usage: deny exec|move COMMAND ...\n");
		return 2;
	}
	if (strcmp(argv[1], "exec") == 0)
		program = (struct sock_fprog) {LENGTH(no_exec), no_exec};
	else
		program = (struct sock_fprog) {LENGTH(no_move), no_move};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
	{
		perror("could not deny the system call");
		return 1;
	}
	execvp(argv[2], argv + 2);
	perror(argv[2]);
	return 1;
}
