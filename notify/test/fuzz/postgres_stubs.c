/*-------------------------------------------------------------------------
 *
 * postgres_stubs.c
 *		The part of PostgreSQL that batch.c and message_log.c need outside of a
 *		server.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#undef printf

bool		IsUnderPostmaster = true;
volatile uint32 InterruptHoldoffCount = 0;
volatile uint32 CritSectionCount = 0;
int			MyProcPid = 42;
Oid			MyDatabaseId = 5;
MemoryContext CurrentMemoryContext = NULL;

void
ExceptionalCondition(const char *condition,
#if PG_VERSION_NUM < 160000
					 const char *type,
#endif
					 const char *file, int line)
{
	printf("%s:%d: assertion failed: %s\n", file, line, condition);
	abort();
}

/* No error is expected. */
bool
errstart(int elevel, const char *domain)
{
	abort();
}

bool
errstart_cold(int elevel, const char *domain)
{
	abort();
}

int
errcode(int sqlerrcode)
{
	return 0;
}

int
errmsg(const char *fmt,...)
{
	return 0;
}

int
errmsg_internal(const char *fmt,...)
{
	return 0;
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
}

static void *
checked(void *memory)
{
	if (memory == NULL)
		abort();
	return memory;
}

Size
add_size(Size a, Size b)
{
	return a + b;
}

Size
mul_size(Size a, Size b)
{
	return a * b;
}

void *
palloc0(Size size)
{
	return checked(calloc(1, size));
}

void *
palloc(Size size)
{
	return checked(malloc(size));
}

void *
repalloc_huge(void *memory, Size size)
{
	return checked(realloc(memory, size));
}

void
pfree(void *memory)
{
	free(memory);
}

void *
MemoryContextAllocExtended(MemoryContext context, Size size, int flags)
{
	return checked(flags & MCXT_ALLOC_ZERO ? calloc(1, size) : malloc(size));
}

void *
MemoryContextAllocZero(MemoryContext context, Size size)
{
	return checked(calloc(1, size));
}

List *
list_make1_impl(NodeTag t, ListCell cell)
{
	List	   *list = checked(calloc(1, sizeof(List)));

	list->type = t;
	list->elements = checked(malloc(sizeof(ListCell)));
	list->elements[0] = cell;
	list->length = list->max_length = 1;
	return list;
}

List *
lappend(List *list, void *datum)
{
	ListCell	cell = {.ptr_value = datum};

	if (list == NIL)
		return list_make1_impl(T_List, cell);
	list->elements = checked(realloc(list->elements,
									 (list->length + 1) * sizeof(ListCell)));
	list->elements[list->length++] = cell;
	return list;
}

void
list_free(List *list)
{
	if (list == NIL)
		return;
	free(list->elements);
	free(list);
}
