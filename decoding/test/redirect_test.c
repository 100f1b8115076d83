/*
 * Redirects a function in programs of every kind.
 *
 * This program is linked with ../redirect.c.  t/002_redirect.pl compiles it
 * several times, with the options and macros that a case needs, and checks its
 * output:
 *
 *	result		redirected, refused or broken
 *	reason		why not
 *	direct		what a direct call returns: original or replacement
 *	pointer		and a call through a pointer
 *	neighbours	whether other functions on the function's pages still work
 *	memory		"writable code" if any memory is writable and executable, or
 *				"unchanged" or "changed": the map of the program's own memory
 *	pages		number of pages of code that no longer belong to the program's
 *				file
 *	pad			whether the first instruction is unchanged
 *	uprobe		"set", or the reason why the kernel refuses it
 *	translation	"Operation not permitted", as the C library translates it
 *
 * Macros:
 *
 *	CALLERS		direct calls that the program has; default 2
 *	EXPECTED	direct calls that it should have; default 2
 *	NAME		the function to ask for; default victim
 *	SHORT		the function is shorter than a jump
 *	STRADDLE	the function begins at the end of a page
 *	LIBRARY		the function comes from a library
 *	LTO			the function comes from another file of the program
 *	THREAD		the program has a second thread
 *	BREAKPOINT	a debugger's breakpoint is on the function's page
 *	UPROBE		a uprobe is on the function's page
 *	EMULATED	an emulator runs the program, as a process with threads of its
 *				own; to be linked with -Wl,--wrap=readdir
 *	NO_EXEC		memory may not become executable; for an emulator, which does
 *				not survive deny.c; to be linked with -Wl,--wrap=mprotect
 *	NO_LOCALE	the C library has no memory for a locale; to be linked with
 *				-Wl,--wrap=newlocale
 *	CATALOGS	a folder with translations of the C library's messages
 *	BAD_PROBE	the "first" or the "second" call of the probe returns false
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <locale.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef CATALOGS
#include <libintl.h>
#endif
#ifdef UPROBE
#include <linux/perf_event.h>
#endif

#include "redirect.h"

#ifndef CALLERS
#define CALLERS 2
#endif
#ifndef EXPECTED
#define EXPECTED 2
#endif
#ifndef NAME
#define NAME "victim"
#endif
#ifndef BAD_PROBE
#define BAD_PROBE ""
#endif

#define ORIGINAL 1000
#define REPLACEMENT 2000
#define PROBED 3000

extern int	victim(int a, int b);
extern int	after(int a);
extern int	uncalled(int a);

/* Exported as the functions are */
int			variable = 1;

/* Not to be inlined, duplicated or thrown away. */
#define ENTIRE __attribute__((noinline, noclone, used))

#ifdef SHORT
__asm__(".text\n"
		".globl victim\n"
		".type victim, @function\n"
		"victim:\n"
#if defined(__x86_64__)
		"	movl $1003, %eax\n"
		"	ret\n"
#else
		"	mov w0, #1003\n"
		"	ret\n"
#endif
		".size victim, . - victim\n");
#elif !defined(LIBRARY) && !defined(LTO)

#ifdef STRADDLE
/* To be compiled with -fno-toplevel-reorder -falign-functions=1 */
__asm__(".text\n"
		".balign 65536\n"
		".skip 65536 - 4\n");
#endif

/*
 * It calls another function, as PostgreSQL's does.  Of a function that calls
 * none, callers in the same file would know which registers it leaves alone.
 */
ENTIRE int
victim(int a, int b)
{
	volatile int sum = a + (getppid() < 0);

	for (int i = 0; i < 3; i++)
		sum += b * i;
	return ORIGINAL + (sum - 3 * b - a) + a + b;
}

ENTIRE int
after(int a)
{
	return a * 7;
}

/* Not called, so that it may have a breakpoint */
ENTIRE int
uncalled(int a)
{
	return a * 9;
}
#endif

static bool probing = false;
static int	probes = 0;

static int
replacement(int a, int b)
{
	return probing ? PROBED : REPLACEMENT + a + b;
}

static bool
probe(void *function)
{
	int			(*call) (int, int) = (int (*) (int, int)) function;
	int			answer;

	probes++;
	if ((probes == 1 && strcmp(BAD_PROBE, "first") == 0) ||
		(probes == 2 && strcmp(BAD_PROBE, "second") == 0))
		return false;
	probing = true;
	answer = call(1, 2);
	probing = false;
	return answer == PROBED;
}

#if CALLERS >= 1
ENTIRE static int
first_caller(int a)
{
	return victim(a, 2) + 1;
}
#endif
#if CALLERS >= 2
ENTIRE static int
second_caller(int a)
{
	return victim(a, 2) + 2;
}
#endif

static const char *
name_of(int answer)
{
	return answer == ORIGINAL + 3 ? "original" :
		answer == REPLACEMENT + 3 ? "replacement" : "neither";
}

/* The lines of /proc/self/maps for memory that is executable. */
static char *
code_maps(bool *writable_code)
{
	static char text[2][65536];
	static int	which = 0;
	char	   *result = text[which++ % 2];
	char		line[4096];
	size_t		length = 0;
	FILE	   *file = fopen("/proc/self/maps", "r");

	if (file == NULL)
	{
		perror("/proc/self/maps");
		exit(1);
	}
	result[0] = '\0';
	while (fgets(line, sizeof(line), file) != NULL)
	{
		char		mode[5];

		if (sscanf(line, "%*s %4s", mode) != 1)
			exit(1);
		if (mode[2] != 'x')
			continue;
		if (mode[1] == 'w')
			*writable_code = true;
		if (length + strlen(line) >= sizeof(text[0]))
			exit(1);
		length += (size_t) sprintf(result + length, "%s", line);
	}
	fclose(file);
	return result;
}

/* How many pages of executable memory belong to no file (or to the kernel) */
static long
pages_of_no_file(char *maps)
{
	long		pages = 0;

	for (char *line = strtok(maps, "\n"); line != NULL; line = strtok(NULL, "\n"))
	{
		uintptr_t	start,
					end;
		char		file[4096] = "";

		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %4095s", &start, &end, file) < 2)
			exit(1);
		if (file[0] == '\0')
			pages += (long) ((end - start) / (uintptr_t) sysconf(_SC_PAGESIZE));
	}
	return pages;
}

#ifdef EMULATED
/* The emulator's threads are those that the program has not started. */
static char emulator_threads[16][32];

struct dirent *__real_readdir(DIR *dir);
struct dirent *__wrap_readdir(DIR *dir);

static void
find_emulator_threads(void)
{
	DIR		   *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int			found = 0;

	while (dir != NULL && (entry = __real_readdir(dir)) != NULL)
	{
		if (atoi(entry->d_name) != getpid() && entry->d_name[0] != '.' &&
			found < 16)
			snprintf(emulator_threads[found++], 32, "%.31s", entry->d_name);
	}
	closedir(dir);
}

/* Passes them over. */
struct dirent *
__wrap_readdir(DIR *dir)
{
	struct dirent *entry;
	bool		emulator;

	do
	{
		entry = __real_readdir(dir);
		emulator = false;
		for (int i = 0; i < 16 && entry != NULL; i++)
			emulator = emulator ||
				strcmp(entry->d_name, emulator_threads[i]) == 0;
	} while (emulator);
	return entry;
}
#endif

#ifdef NO_EXEC
int			__wrap_mprotect(void *pages, size_t length, int protection);

int
__wrap_mprotect(void *pages, size_t length, int protection)
{
	(void) pages;
	(void) length;
	(void) protection;
	errno = EPERM;
	return -1;
}
#endif

#ifdef NO_LOCALE
locale_t	__wrap_newlocale(int mask, const char *name, locale_t base);

locale_t
__wrap_newlocale(int mask, const char *name, locale_t base)
{
	(void) mask;
	(void) name;
	(void) base;
	errno = ENOMEM;
	return (locale_t) 0;
}
#endif

#ifdef THREAD
static void *
sleep_forever(void *arg)
{
	for (;;)
		pause();
	return arg;
}
#endif

#if defined(BREAKPOINT) || defined(UPROBE) || defined(CATALOGS)
static void
require(bool condition, const char *what)
{
	if (!condition)
	{
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
		exit(1);
	}
}
#endif

#if defined(BREAKPOINT) || defined(UPROBE)
static unsigned char *
page_of(void *address)
{
	uintptr_t	size = (uintptr_t) sysconf(_SC_PAGESIZE);

	return (unsigned char *) ((uintptr_t) address & ~(size - 1));
}
#endif

#ifdef BREAKPOINT
/* As ptrace() does it: the page becomes the process's own. */
static void
set_breakpoint(void *function)
{
#if defined(__x86_64__)
	const unsigned char breakpoint = 0xcc;	/* int3 */
#else
	const uint32_t breakpoint = 0xd4200000; /* brk #0 */
#endif
	int			memory = open("/proc/self/mem", O_RDWR);

	require(pwrite(memory, &breakpoint, sizeof(breakpoint),
				   (off_t) (uintptr_t) function) ==
			sizeof(breakpoint), "/proc/self/mem");
	close(memory);
}
#endif

#ifdef UPROBE
/* The offset in the program's file of an address in its code */
static int
find_offset(struct dl_phdr_info *info, size_t size, void *arg)
{
	uint64_t   *offset = arg;
	uintptr_t	address = (uintptr_t) *offset - info->dlpi_addr;

	(void) size;
	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		const		ElfW(Phdr) *segment = &info->dlpi_phdr[i];

		if (segment->p_type == PT_LOAD && address >= segment->p_vaddr &&
			address - segment->p_vaddr < segment->p_filesz)
			*offset = address - segment->p_vaddr + segment->p_offset;
	}
	return 1;
}

/* As bpftrace and perf do it, in all processes of this program */
static void
set_uprobe(void *function)
{
	struct perf_event_attr event = {.size = sizeof(event), .sample_period = 1};
	FILE	   *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
	uint64_t	offset = (uintptr_t) function;
	char		program[4096] = "";

	if (file == NULL || fscanf(file, "%u", &event.type) != 1)
	{
		printf("uprobe not in this kernel\n");
		exit(0);
	}
	fclose(file);
	require(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0, "readlink");
	dl_iterate_phdr(find_offset, &offset);
	event.config1 = (uintptr_t) program;
	event.config2 = offset;
	if (syscall(SYS_perf_event_open, &event, -1, 0, -1,
				PERF_FLAG_FD_CLOEXEC) < 0)
	{
		printf("uprobe %s\n", strerror(errno));
		exit(0);
	}
	printf("uprobe set\n");
}
#endif

int
main(void)
{
	PinpointRedirection redirection = {
		.function = NAME,
		.callers = EXPECTED,
		.replacement = replacement,
		.probe = probe
	};
	static const char *const results[] = {"redirected", "refused", "broken"};
	const char *reason = NULL;
	bool		writable_code = false;
	char	   *maps_before;
	char	   *maps_after;
	int			(*volatile pointer) (int, int) = dlsym(RTLD_DEFAULT, "victim");
	unsigned char pad[4];

#ifdef EMULATED
	find_emulator_threads();
#endif
#ifdef CATALOGS
	require(setlocale(LC_ALL, "C.UTF-8") != NULL &&
			setenv("LANGUAGE", "xx", 1) == 0 &&
			bindtextdomain("libc", CATALOGS) != NULL, "a locale");
	printf("translation %s\n", strerror(EPERM));
#endif
#ifdef THREAD
	pthread_t	thread;

	if (pthread_create(&thread, NULL, sleep_forever, NULL) != 0)
		return 1;
#endif
	if (pointer == NULL)
		pointer = victim;
	memcpy(pad, (void *) pointer, sizeof(pad));

#if defined(BREAKPOINT) || defined(UPROBE)
	require(page_of(uncalled) == page_of(victim), "the functions are not on the same page");
#endif
#ifdef BREAKPOINT
	set_breakpoint(uncalled);
#endif
#ifdef UPROBE
	set_uprobe(uncalled);
#endif

	maps_before = code_maps(&writable_code);
	printf("result %s\n", results[pinpoint_redirect(&redirection, &reason)]);
	maps_after = code_maps(&writable_code);

	printf("reason %s\n", reason == NULL ? "none" : reason);
#if CALLERS >= 2
	{
		int			first = first_caller(1) - 1;
		int			second = second_caller(1) - 2;

		printf("direct %s\n", first == second ? name_of(first) : "differ");
	}
#endif
	printf("pointer %s\n", name_of(pointer(1, 2)));
#if !defined(SHORT) && !defined(LIBRARY) && !defined(LTO)
	printf("neighbours %s\n", after(6) == 42 ? "work" : "broken");
#endif
#ifdef UPROBE
	printf("probed %s\n", uncalled(6) == 54 ? "works" : "broken");
#endif
	printf("memory %s\n", writable_code ? "writable code" :
		   strcmp(maps_before, maps_after) == 0 ? "unchanged" : "changed");
	printf("pages %ld\n", pages_of_no_file(maps_after) - pages_of_no_file(maps_before));
	printf("pad %s\n", memcmp(pad, (void *) pointer, sizeof(pad)) == 0 ? "kept" : "gone");
	return 0;
}
