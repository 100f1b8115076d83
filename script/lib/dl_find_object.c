/*
 * The unwinder of a gcc that was built for glibc asks glibc where the object with an address has its table of
 * frames. musl has no such function: this one does the same with dl_iterate_phdr(). See musl-cc.
 */
#include <link.h>
#include <stddef.h>
#include <stdint.h>

/* As in glibc 2.35 and later. */
struct dl_find_object
{
	unsigned long long flags;
	void	   *map_start;
	void	   *map_end;
	void	   *link_map;
	void	   *eh_frame;
	unsigned long long reserved[7];
};

struct search
{
	uintptr_t	address;
	struct dl_find_object *result;
};

int			_dl_find_object(void *address, struct dl_find_object *result);

/* Callback of dl_iterate_phdr(): is it this object?  Returns nonzero to end the search. */
static int
find_object(struct dl_phdr_info *object, size_t size, void *arg)
{
	struct search *search = arg;
	struct dl_find_object found = {0};

	(void) size;
	for (int i = 0; i < object->dlpi_phnum; i++)
	{
		const		ElfW(Phdr) *segment = &object->dlpi_phdr[i];
		uintptr_t	start = object->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_LOAD && search->address >= start && search->address - start < segment->p_memsz)
		{
			found.map_start = (void *) start;
			found.map_end = (void *) (start + segment->p_memsz);
		}
		else if (segment->p_type == PT_GNU_EH_FRAME)
			found.eh_frame = (void *) start;
	}
	if (found.map_start == NULL || found.eh_frame == NULL)
		return 0;
	*search->result = found;
	return 1;
}

/* Returns 0, or -1 if there is no object with this address that has a table of frames. */
int
_dl_find_object(void *address, struct dl_find_object *result)
{
	struct search search = {(uintptr_t) address, result};

	return dl_iterate_phdr(find_object, &search) ? 0 : -1;
}
