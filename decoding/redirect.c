/*-------------------------------------------------------------------------
 *
 * redirect.c
 *		Redirects a function of the running program to one of this library.
 *
 * PostgreSQL has no hook for its maps of relations.  Therefore the first
 * instructions of its functions are replaced with a jump to our functions.
 * This is done once for each, in the postmaster, while it loads its
 * libraries.  Every server process is forked from it later and inherits the
 * change.  No file is changed, and a restart without the library undoes the
 * change.
 *
 * How
 *
 * The page on which the function begins (or two, if the jump crosses the end
 * of the first) is copied to new memory, and the jump is written to the copy.
 * The copy is made executable and tested.  Only then does it replace the
 * original, in one system call.  So
 *
 *	- the server's own pages are never writable, and no page is ever writable
 *	  and executable at the same time;
 *	- a step that can be refused is executed before anything is changed;
 *	- at no time can an incomplete jump be executed.
 *
 * What can go wrong, and how it is handled
 *
 *	other CPU or system			refused at compile time: see the #if below
 *	no such function, or not	refused: find_function() looks up the name with
 *	the program's own			the dynamic loader, and among the symbols that
 *								the program's file exports
 *	function not in the code	refused: it must be in a segment that is
 *	of the program				readable, executable and not writable
 *	function too short			refused: by the size in the symbol table
 *	its pages were changed		refused: the copy must be equal to the program's
 *	before						file.  A uprobe or a debugger's breakpoint would
 *								become part of the copy, and would not be known
 *								or removed there: the next process that
 *								executes it dies of SIGTRAP.
 *	callers that do not call	refused: with link-time optimization, the
 *	it, but a copy of it		function can be part of its callers.  Its
 *								direct calls are counted in the program's
 *								code, and there must be as many as in the
 *								source.  A caller with its own copy is not
 *								detected if another call was duplicated, or
 *								if bytes that are no instruction look like a
 *								call.  Such a caller uses PostgreSQL's own
 *								function: it is not faster, and not wrong
 *								(see relation_map.c for an exception).
 *	callers that know which		not detected, and not possible here: the
 *	registers it preserves		server's function calls others through
 *								pointers, so no compiler can know this
 *	another thread				refused: it could execute code on the page
 *	executable memory that		refused: SELinux (execmem), systemd's
 *	was written is forbidden	MemoryDenyWriteExecute, PR_SET_MDWE
 *	the jump does not work		refused: the copy is called before it is used
 *	the page cannot be replaced	refused if the original is still there; if it
 *								is not, or if the check after the replacement
 *								fails, the server must not start
 *
 * Signal handlers need no special treatment: for them, the replacement of the
 * page is one step.
 *
 * A page that was part of the program's file is then part of no file.  perf,
 * which looks up names by file, does not know its functions, and a uprobe that
 * is set later is set in the file only.  On aarch64, the page is not protected
 * by BTI.
 *
 * This file needs nothing of PostgreSQL but a macro, so test/redirect_test.c
 * can test it with programs of every kind.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* RTLD_DEFAULT, dl_iterate_phdr(), mremap() */
#endif

#include "pg_config.h"			/* USE_ASSERT_CHECKING */

/* There are assertions if PostgreSQL has some. */
#ifndef USE_ASSERT_CHECKING
#define NDEBUG
#endif

#include "redirect.h"

#if defined(__linux__) && \
	((defined(__x86_64__) && defined(__LP64__)) || \
	 (defined(__aarch64__) && defined(__AARCH64EL__) && defined(__LP64__)))

#include <assert.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <locale.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of the longest jump: a landing pad, the jump, and the address */
#define MAX_JUMP_LENGTH		20

/* The program's executable file, mapped to memory */
typedef struct File
{
	const unsigned char *bytes;
	size_t		size;
} File;

/* The function, and the segment of the program's code that contains it */
typedef struct Function
{
	unsigned char *start;
	size_t		size;			/* in the symbol table */
	uintptr_t	symbol_value;	/* address in the symbol table */
	const unsigned char *code;
	size_t		code_size;
	size_t		code_offset;	/* offset of the segment in the file */
} Function;

static char reason_text[256];

static bool refuse(const char *format,...)
			__attribute__((format(printf, 1, 2)));
static const char *error_text(int error);
static PinpointRedirectResult redirect(const PinpointRedirection *redirection,
									   const File *file);
static bool map_file(File *file);
static const void *part_of_file(const File *file, size_t offset, size_t size);
static const Elf64_Sym *find_symbol(const File *file, const char *name);
static bool find_function(const File *file, const char *name,
						  Function *function);
static int	find_code(struct dl_phdr_info *info, size_t size, void *arg);
static bool is_single_threaded(void);
static size_t write_jump(unsigned char *at, const unsigned char *original,
						 void *target);
static int	count_calls(const Function *function);
static bool is_from_file(const File *file, const Function *function,
						 const unsigned char *pages,
						 const unsigned char *copy, size_t length);
static bool is_mapped(void *pages, size_t length);

#ifdef USE_ASSERT_CHECKING
static bool has_only_the_jump(const unsigned char *pages,
							  const unsigned char *copy,
							  size_t length, size_t offset,
							  const unsigned char *jump, size_t jump_length);
static bool is_code(const unsigned char *pages, size_t length);
#endif

/*
 * Redirect a function.
 *
 * reason: set to NULL if the result is PINPOINT_REDIRECTED, else to a message.
 */
PinpointRedirectResult
pinpoint_redirect(const PinpointRedirection *redirection, const char **reason)
{
	PinpointRedirectResult result = PINPOINT_REFUSED;
	File		file = {0};

	assert(redirection->function != NULL && redirection->callers >= 0);
	assert(redirection->replacement != NULL && redirection->probe != NULL);

	reason_text[0] = '\0';
	if (map_file(&file))
	{
		result = redirect(redirection, &file);
		munmap((void *) file.bytes, file.size);
	}
	assert((result == PINPOINT_REDIRECTED) == (reason_text[0] == '\0'));
	*reason = result == PINPOINT_REDIRECTED ? NULL : reason_text;
	return result;
}

static PinpointRedirectResult
redirect(const PinpointRedirection *redirection, const File *file)
{
	Function	function;
	unsigned char jump[MAX_JUMP_LENGTH];
	size_t		jump_length;
	size_t		page_size = (size_t) sysconf(_SC_PAGESIZE);
	unsigned char *pages;
	unsigned char *copy;
	size_t		offset;
	size_t		length;
	int			calls;

	if (!find_function(file, redirection->function, &function))
		return PINPOINT_REFUSED;

	jump_length = write_jump(jump, function.start, redirection->replacement);
	assert(jump_length > 0 && jump_length <= sizeof(jump));
	if (function.size < jump_length)
	{
		refuse("the function %s has %zu bytes, and the jump needs %zu",
			   redirection->function, function.size, jump_length);
		return PINPOINT_REFUSED;
	}

	calls = count_calls(&function);
	if (calls < redirection->callers)
	{
		refuse("the program calls the function %s in %d places instead of %d, as after link-time optimization",
			   redirection->function, calls, redirection->callers);
		return PINPOINT_REFUSED;
	}

	if (!is_single_threaded())
		return PINPOINT_REFUSED;

	/* Prepare the new pages. */
	offset = (uintptr_t) function.start % page_size;
	pages = function.start - offset;
	length = (offset + jump_length + page_size - 1) / page_size * page_size;
	assert((uintptr_t) pages % page_size == 0 && length % page_size == 0);
	assert(offset + jump_length <= length && length <= 2 * page_size);

	copy = mmap(NULL, length, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (copy == MAP_FAILED)
	{
		refuse("could not allocate memory: %s", error_text(errno));
		return PINPOINT_REFUSED;
	}
	memcpy(copy, pages, length);
	if (!is_from_file(file, &function, pages, copy, length))
	{
		refuse("the code of the function %s differs from the program's file: there may be a uprobe, a breakpoint or a patch",
			   redirection->function);
		munmap(copy, length);
		return PINPOINT_REFUSED;
	}
	assert(memcmp(copy, pages, length) == 0);
	memcpy(copy + offset, jump, jump_length);
	if (mprotect(copy, length, PROT_READ | PROT_EXEC) != 0)
	{
		refuse("could not make memory executable: %s", error_text(errno));
		munmap(copy, length);
		return PINPOINT_REFUSED;
	}
	__builtin___clear_cache((char *) copy, (char *) copy + length);
	assert(has_only_the_jump(pages, copy, length, offset, jump, jump_length));
	assert(is_code(copy, length));
	if (!redirection->probe(copy + offset))
	{
		refuse("the jump to the replacement does not work");
		munmap(copy, length);
		return PINPOINT_REFUSED;
	}

	/* Replace the original pages. */
	assert(is_code(pages, length));
	assert(is_single_threaded());
	if (mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED,
			   pages) == MAP_FAILED)
	{
		refuse("could not replace the memory of the function %s: %s",
			   redirection->function, error_text(errno));
		munmap(copy, length);
		return is_mapped(pages, length) ? PINPOINT_REFUSED : PINPOINT_BROKEN;
	}
	__builtin___clear_cache((char *) pages, (char *) pages + length);
	if (memcmp(function.start, jump, jump_length) != 0 ||
		!redirection->probe(function.start))
	{
		refuse("the function %s does not jump to its replacement",
			   redirection->function);
		return PINPOINT_BROKEN;
	}
	assert(is_code(pages, length));
	return PINPOINT_REDIRECTED;
}

/* Store the reason.  Always returns false. */
static bool
refuse(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vsnprintf(reason_text, sizeof(reason_text), format, args);
	va_end(args);
	return false;
}

/*
 * Returns the text of an error in English, whatever the program's locale is:
 * the reason is also shown where the encoding is another one, and may not
 * contain all characters.
 */
static const char *
error_text(int error)
{
	locale_t	locale = newlocale(LC_ALL_MASK, "C", (locale_t) 0);
	static char number[32];

	if (locale != (locale_t) 0)
		return strerror_l(error, locale);

	/* out of memory */
	snprintf(number, sizeof(number), "error %d", error);
	return number;
}

/*
 * Map the program's executable file for reading.  Returns false if this fails.
 *
 * The mapping is shared, because the kernel writes the breakpoints of uprobes
 * into private mappings, even into those that are not executable.
 */
static bool
map_file(File *file)
{
	int			fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct stat status;
	void	   *bytes = MAP_FAILED;
	int			error;

	if (fd >= 0 && fstat(fd, &status) == 0)
		bytes = mmap(NULL, (size_t) status.st_size, PROT_READ, MAP_SHARED,
					 fd, 0);
	error = errno;
	if (fd >= 0)
		close(fd);
	if (bytes == MAP_FAILED)
		return refuse("could not read the program's file, /proc/self/exe: %s",
					  error_text(error));

	file->bytes = bytes;
	file->size = (size_t) status.st_size;
	return true;
}

/* Returns the address of a part of the file, NULL if the file is shorter. */
static const void *
part_of_file(const File *file, size_t offset, size_t size)
{
	if (offset > file->size || size > file->size - offset)
		return NULL;
	return file->bytes + offset;
}

/*
 * Find a name among the symbols that the program exports or imports.  Returns
 * NULL if it is not there.
 *
 * Only the file contains the size of a function on every system: glibc has
 * dladdr1() for it, musl has no such function.
 */
static const Elf64_Sym *
find_symbol(const File *file, const char *name)
{
	const		Elf64_Ehdr *header = part_of_file(file, 0, sizeof(*header));
	const		Elf64_Shdr *sections;

	if (header == NULL || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
		return NULL;
	sections = part_of_file(file, header->e_shoff,
							header->e_shnum * sizeof(*sections));
	if (sections == NULL)
		return NULL;

	for (size_t i = 0; i < header->e_shnum; i++)
	{
		const		Elf64_Shdr *strings;
		const		Elf64_Sym *symbols;
		const char *names;

		if (sections[i].sh_type != SHT_DYNSYM ||
			sections[i].sh_link >= header->e_shnum)
			continue;
		strings = &sections[sections[i].sh_link];
		symbols = part_of_file(file, sections[i].sh_offset,
							   sections[i].sh_size);
		names = part_of_file(file, strings->sh_offset, strings->sh_size);
		if (symbols == NULL || names == NULL ||
			strings->sh_size == 0 || names[strings->sh_size - 1] != '\0')
			continue;
		for (size_t j = 0; j < sections[i].sh_size / sizeof(*symbols); j++)
		{
			if (symbols[j].st_name < strings->sh_size &&
				strcmp(names + symbols[j].st_name, name) == 0)
				return &symbols[j];
		}
	}
	return NULL;
}

/*
 * Find the function, and the segment of the program's code that contains it.
 * Returns false if the program has none, for instance if only a library
 * exports the name.
 */
static bool
find_function(const File *file, const char *name, Function *function)
{
	void	   *address = dlsym(RTLD_DEFAULT, name);
	const		Elf64_Sym *symbol = find_symbol(file, name);

	if (address == NULL)
		return refuse("the program has no function %s", name);
	if (symbol == NULL || symbol->st_shndx == SHN_UNDEF)
		return refuse("the function %s is not in the code of the program", name);
	if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
		return refuse("the symbol %s is not a function", name);

	memset(function, 0, sizeof(*function));
	function->start = address;
	function->size = symbol->st_size;
	function->symbol_value = symbol->st_value;

	dl_iterate_phdr(find_code, function);
	if (function->code == NULL)
		return refuse("the function %s is not in the code of the program", name);
	assert(function->start >= function->code &&
		   function->start + function->size <=
		   function->code + function->code_size);
	return true;
}

/*
 * Callback for dl_iterate_phdr(), which calls it for the program itself first.
 */
static int
find_code(struct dl_phdr_info *info, size_t size, void *arg)
{
	Function   *function = arg;

	(void) size;
	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		const		Elf64_Phdr *segment = &info->dlpi_phdr[i];
		const unsigned char *start =
			(const unsigned char *) (info->dlpi_addr + segment->p_vaddr);

		if (segment->p_type == PT_LOAD &&
			(segment->p_flags & (PF_R | PF_W | PF_X)) == (PF_R | PF_X) &&
			info->dlpi_addr + function->symbol_value ==
			(uintptr_t) function->start &&
			function->start >= start &&
			function->size <= segment->p_memsz &&
			(size_t) (function->start - start) <=
			segment->p_memsz - function->size)
		{
			function->code = start;
			function->code_size = segment->p_memsz;
			function->code_offset = segment->p_offset;
		}
	}
	return 1;					/* do not visit the libraries */
}

static bool
is_single_threaded(void)
{
	DIR		   *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int			threads = 0;

	if (dir == NULL)
		return refuse("could not count the threads in /proc/self/task: %s",
					  error_text(errno));
	while ((entry = readdir(dir)) != NULL)
	{
		if (entry->d_name[0] != '.')
			threads++;
	}
	closedir(dir);

	if (threads != 1)
		return refuse("the process has %d threads", threads);
	return true;
}

/*
 * Is the copy of these pages equal to the file?  Pages are mapped as a whole,
 * also if the segment of the code begins or ends within them.  If the file
 * ends within the last page, only the part before its end is compared.
 */
static bool
is_from_file(const File *file, const Function *function,
			 const unsigned char *pages, const unsigned char *copy,
			 size_t length)
{
	size_t		offset =
		function->code_offset + (size_t) (pages - function->code);

	assert(offset % (size_t) sysconf(_SC_PAGESIZE) == 0);
	if (offset >= file->size)
		return false;
	if (length > file->size - offset)
		length = file->size - offset;
	return memcmp(copy, file->bytes + offset, length) == 0;
}

/*
 * Are all these pages mapped?  mincore() fails with ENOMEM if not.
 */
static bool
is_mapped(void *pages, size_t length)
{
	unsigned char resident[2];

	assert(length <= sizeof(resident) * (size_t) sysconf(_SC_PAGESIZE));
	return mincore(pages, length, resident) == 0;
}

#ifdef USE_ASSERT_CHECKING
/* Is the jump the only difference between the original pages and the copy? */
static bool
has_only_the_jump(const unsigned char *pages, const unsigned char *copy,
				  size_t length, size_t offset,
				  const unsigned char *jump, size_t jump_length)
{
	size_t		end = offset + jump_length;

	return memcmp(copy, pages, offset) == 0 &&
		memcmp(copy + offset, jump, jump_length) == 0 &&
		memcmp(copy + end, pages + end, length - end) == 0;
}

/* Are all these pages executable, and not writable? */
static bool
is_code(const unsigned char *pages, size_t length)
{
	FILE	   *maps = fopen("/proc/self/maps", "r");
	char		line[1024];
	bool		found = false;

	while (maps != NULL && !found && fgets(line, sizeof(line), maps) != NULL)
	{
		uintptr_t	start;
		uintptr_t	end;

		found = sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &start, &end) == 2 &&
			strstr(line, " r-xp ") != NULL &&
			start <= (uintptr_t) pages && (uintptr_t) pages + length <= end;
	}
	if (maps != NULL)
		fclose(maps);
	return found;
}
#endif

#if defined(__x86_64__)

/*
 * Write a jump to any address.  Returns its length in bytes.
 *
 * A relative jump reaches only 2 GB, and libraries are farther away.  If the
 * function begins with a landing pad (ENDBR64, from -fcf-protection), the
 * landing pad remains: with indirect branch tracking, a call through a pointer
 * must arrive at one.
 */
static size_t
write_jump(unsigned char *at, const unsigned char *original, void *target)
{
	static const unsigned char endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
	static const unsigned char jump[] = {
		0xff, 0x25, 0, 0, 0, 0	/* jmp *0(%rip) */
	};
	size_t		length = 0;

	if (memcmp(original, endbr64, sizeof(endbr64)) == 0)
	{
		memcpy(at, endbr64, sizeof(endbr64));
		length += sizeof(endbr64);
	}
	memcpy(at + length, jump, sizeof(jump));
	length += sizeof(jump);
	memcpy(at + length, &target, sizeof(target));
	return length + sizeof(target);
}

/*
 * Count the calls and jumps to the function.  They consist of an opcode and a
 * distance of four bytes, relative to the end of the instruction.
 */
static int
count_calls(const Function *function)
{
	const unsigned char *end = function->code + function->code_size;
	int			calls = 0;

	for (const unsigned char *at = function->code; at + 5 <= end; at++)
	{
		if (*at == 0xe8 || *at == 0xe9)
		{
			int32_t		distance;

			memcpy(&distance, at + 1, sizeof(distance));
			if ((uintptr_t) at + 5 + distance == (uintptr_t) function->start)
				calls++;
		}
	}
	return calls;
}

#elif defined(__aarch64__)

/*
 * Write a jump to any address.  Returns its length in bytes.
 *
 * The jump uses x16, because the linker's own jumps may use it, too.  If the
 * function begins with a landing pad for calls, a landing pad remains.
 * PACIASP and PACIBSP are landing pads, too.  They are replaced with a plain
 * one, because the replacement signs its return address itself.
 */
static size_t
write_jump(unsigned char *at, const unsigned char *original, void *target)
{
	static const uint32_t bti_c = 0xd503245f;
	static const uint32_t bti_jc = 0xd50324df;
	static const uint32_t paciasp = 0xd503233f;
	static const uint32_t pacibsp = 0xd503237f;
	static const uint32_t jump[] = {
		0x58000050,				/* ldr x16, the eight bytes after the next */
		0xd61f0200				/* br x16 */
	};
	uint32_t	first;
	size_t		length = 0;

	memcpy(&first, original, sizeof(first));
	if (first == bti_c || first == bti_jc ||
		first == paciasp || first == pacibsp)
	{
		memcpy(at, &bti_c, sizeof(bti_c));
		length += sizeof(bti_c);
	}
	memcpy(at + length, jump, sizeof(jump));
	length += sizeof(jump);
	memcpy(at + length, &target, sizeof(target));
	return length + sizeof(target);
}

/*
 * Count the calls and jumps to the function.  They are BL and B, with the
 * distance in instructions in the low 26 bits.
 */
static int
count_calls(const Function *function)
{
	const unsigned char *end = function->code + function->code_size;
	uintptr_t	aligned = ((uintptr_t) function->code + 3) & ~(uintptr_t) 3;
	const unsigned char *at = (const unsigned char *) aligned;
	int			calls = 0;

	for (; at + 4 <= end; at += 4)
	{
		uint32_t	instruction;

		memcpy(&instruction, at, sizeof(instruction));
		if ((instruction & 0x7c000000) == 0x14000000)
		{
			int64_t		distance =
				((int32_t) (instruction << 6) >> 6) * (int64_t) 4;

			if ((uintptr_t) at + distance == (uintptr_t) function->start)
				calls++;
		}
	}
	return calls;
}

#endif

#else							/* not Linux on x86-64 or aarch64 */

PinpointRedirectResult
pinpoint_redirect(const PinpointRedirection *redirection, const char **reason)
{
	(void) redirection;
	*reason = "only Linux on x86-64 and aarch64 is supported";
	return PINPOINT_REFUSED;
}

#endif
