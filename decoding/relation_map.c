/*-------------------------------------------------------------------------
 *
 * relation_map.c
 *		Makes a subscriber forget a table without a search of all tables.
 *
 * A worker of a subscription keeps an entry for each table that it has written
 * to (LogicalRepRelMapEntry).  For each invalidation of a relation, PostgreSQL
 * searches the map of all entries for one with this local relation, and clears
 * its localrelvalid.  Most invalidations are about other relations: indexes,
 * temporary tables, tables without replication.  Then the search visits every
 * entry.  Here it is a look-up by the OID of the relation.
 *
 * The map and its callback are static in PostgreSQL, so two small functions
 * are redirected (see redirect.c):
 *
 *	logicalrep_rel_close()			Every user of an entry ends with a call of
 *									it.  So here the entry becomes known.
 *	CacheRegisterRelcacheCallback()	It is called with the map's callback, which
 *									is exchanged for ours.
 *
 * PostgreSQL's list of callbacks is static, too.  Therefore our function
 * enters all callbacks into a list of its own, and a callback that was
 * registered before the redirection calls these, in the same order.
 *
 * Every valid entry is known or open: only logicalrep_rel_open() makes an
 * entry valid, and an entry is closed before it can be opened again.  While an
 * entry is open that is not yet known by its present relation, an invalidation
 * does not find it.  So such an entry is made invalid when it is closed.  This
 * is always allowed: the next logicalrep_rel_open() looks the relation up
 * again, once for each table.  PostgreSQL itself does not look at the flag
 * while the entry is open, because its lock on the table protects what the
 * entry contains.
 *
 * PostgreSQL never removes an entry from its map, so that pointers to entries
 * remain valid.
 *
 * The second map of a worker, that of partitions, is searched as before: its
 * entries are not closed.  It contains only partitions of tables that are
 * partitioned on the subscriber, but not on the publisher.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "common/config_info.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "nodes/memnodes.h"
#include "replication/logicalrelation.h"
#include "replication/worker_internal.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "compat.h"
#include "decoding.h"
#include "redirect.h"

/* As in PostgreSQL */
#define MAX_CALLBACKS	10

/* The memory context of the map.  PostgreSQL then registers its callback. */
#define MAP_CONTEXT		"LogicalRepRelMapContext"

typedef struct Callback
{
	RelcacheCallbackFunction function;
	Datum		arg;
} Callback;

typedef struct KnownEntry
{
	LogicalRepRelMapEntry *entry;	/* must be first */
	Oid			relid;			/* InvalidOid: in no list */
	dlist_node	link;			/* in the list of the relation */
} KnownEntry;

typedef struct KnownRelation
{
	Oid			relid;			/* must be first */
	dlist_head	entries;		/* can be empty after an error */
} KnownRelation;

/* The callbacks that were registered after the redirection */
static Callback callbacks[MAX_CALLBACKS];
static int	num_callbacks = 0;

/* Is our callback registered instead of PostgreSQL's? */
static bool replaces_callback = false;

/* Both exist or none, except after an error while they were being created. */
static HTAB *known_entries = NULL;
static HTAB *known_relations = NULL;

static bool probing = false;
static bool probe_arrived;

static void call_callbacks(Datum arg, Oid relid);
static void register_callback(RelcacheCallbackFunction function, Datum arg);
static bool is_of_map(void);
static void close_relation(LogicalRepRelMapEntry *entry, LOCKMODE lockmode);
static void know(LogicalRepRelMapEntry *entry);
static void create_known(void);
static void unlink_entry(KnownEntry *known);
static void invalidate(Datum arg, Oid relid);
static bool probe_register(void *function);
static bool probe_close(void *function);

/*
 * The first one has no effect without the second one.
 *
 * logicalrep_rel_close() has nine calls in PostgreSQL 15 to 19, of which
 * compilers merge up to two.  Each must be one of these: an entry that is
 * closed by a copy of the function does not become known.
 */
const PinpointRedirection pinpoint_relation_map_redirections[2] = {
	{
		.function = "logicalrep_rel_close",
		.callers = 7,
		.replacement = close_relation,
		.probe = probe_close
	},
	{
		.function = "CacheRegisterRelcacheCallback",
		.callers = 5,
		.replacement = register_callback,
		.probe = probe_register
	},
};

/*
 * Returns why the functions must not be redirected, or NULL.
 *
 * A caller with a copy of logicalrep_rel_close() would leave entries unknown,
 * and an unknown entry stays valid after its table has changed.  Compilers make
 * such copies in another file only with link-time optimization.
 */
const char *
pinpoint_relation_map_objection(void)
{
	const char *reason = NULL;
	ConfigData *options;
	size_t		num_options;

	options = get_configdata(my_exec_path, &num_options);
	for (size_t i = 0; i < num_options; i++)
	{
		if (strcmp(options[i].name, "CFLAGS") == 0 &&
			strstr(options[i].setting, "-flto") != NULL)
			reason = "the server was built with link-time optimization";
	}
	pfree(options);
	return reason;
}

/*
 * Called in the postmaster, before the redirections.
 */
void
pinpoint_relation_map_init(void)
{
	CacheRegisterRelcacheCallback(call_callbacks, (Datum) 0);
}

static void
call_callbacks(Datum arg, Oid relid)
{
	for (int i = 0; i < num_callbacks; i++)
		callbacks[i].function(callbacks[i].arg, relid);
}

/*
 * The replacement of CacheRegisterRelcacheCallback()
 */
static void
register_callback(RelcacheCallbackFunction function, Datum arg)
{
	if (unlikely(probing))
	{
		probe_arrived = true;
		return;
	}
	if (num_callbacks >= MAX_CALLBACKS)
		elog(FATAL, "out of relcache_callback_list slots");

	if (!replaces_callback && is_of_map())
	{
		function = invalidate;
		replaces_callback = true;
		elog(DEBUG1, "pg_pinpoint_decoding invalidates the relation map");
	}
	callbacks[num_callbacks].function = function;
	callbacks[num_callbacks].arg = arg;
	num_callbacks++;
}

/*
 * Is the callback that is being registered that of the relation map?  In a
 * worker of a subscription, it is the first one after the map's memory context
 * was created.  If a version of PostgreSQL has no context of this name,
 * PostgreSQL's callback remains.
 */
static bool
is_of_map(void)
{
	MemoryContext child;

	if (MyLogicalRepWorker == NULL || CacheMemoryContext == NULL)
		return false;
	child = CacheMemoryContext->firstchild;
	while (child != NULL && strcmp(child->name, MAP_CONTEXT) != 0)
		child = child->nextchild;
	return child != NULL;
}

/*
 * The replacement of logicalrep_rel_close()
 */
static void
close_relation(LogicalRepRelMapEntry *entry, LOCKMODE lockmode)
{
	if (unlikely(probing))
	{
		probe_arrived = true;
		return;
	}
	table_close(entry->localrel, lockmode);
	entry->localrel = NULL;
	if (replaces_callback)
		know(entry);
}

/*
 * Make an entry known by its relation.  The relation is another one if the
 * table was dropped and created again.
 *
 * Errors: out of memory.  The entry is invalid then.
 */
static void
know(LogicalRepRelMapEntry *entry)
{
	KnownEntry *known;
	KnownRelation *relation;
	bool		found;

	if (known_entries == NULL || known_relations == NULL)
	{
		entry->localrelvalid = false;
		create_known();
	}
	known = hash_search(known_entries, &entry, HASH_FIND, NULL);
	if (likely(known != NULL && known->relid == entry->localreloid))
		return;

	entry->localrelvalid = false;
	known = hash_search(known_entries, &entry, HASH_ENTER, &found);
	if (found)
		unlink_entry(known);
	known->relid = InvalidOid;

	relation = hash_search(known_relations, &entry->localreloid, HASH_ENTER,
						   &found);
	if (!found)
		dlist_init(&relation->entries);
	known->relid = entry->localreloid;
	dlist_push_tail(&relation->entries, &known->link);
}

static void
create_known(void)
{
	HASHCTL		ctl;

	ctl.hcxt = CacheMemoryContext;
	if (known_relations == NULL)
	{
		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(KnownRelation);
		known_relations = hash_create("Relation map by relation", 64, &ctl,
									  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	if (known_entries == NULL)
	{
		ctl.keysize = sizeof(LogicalRepRelMapEntry *);
		ctl.entrysize = sizeof(KnownEntry);
		known_entries = hash_create("Relation map entries", 64, &ctl,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
}

/*
 * Remove a known entry from the list of its relation, and the relation with
 * its last entry.
 */
static void
unlink_entry(KnownEntry *known)
{
	KnownRelation *relation;

	if (!OidIsValid(known->relid))
		return;
	dlist_delete(&known->link);
	relation = hash_search(known_relations, &known->relid, HASH_FIND, NULL);
	Assert(relation != NULL);
	if (dlist_is_empty(&relation->entries))
		hash_search(known_relations, &known->relid, HASH_REMOVE, NULL);
}

/*
 * Callback for relation cache invalidations, instead of PostgreSQL's
 * logicalrep_relmap_invalidate_cb().
 *
 * relid: the relation that changed, or InvalidOid if any may have changed.
 */
static void
invalidate(Datum arg, Oid relid)
{
	KnownRelation *relation;
	HASH_SEQ_STATUS all;
	KnownEntry *known;
	dlist_iter	iter;

	Assert(replaces_callback);
	if (known_entries == NULL)
		return;
	if (!OidIsValid(relid))
	{
		hash_seq_init(&all, known_entries);
		while ((known = hash_seq_search(&all)) != NULL)
			known->entry->localrelvalid = false;
		return;
	}

	relation = hash_search(known_relations, &relid, HASH_FIND, NULL);
	if (relation == NULL)
		return;
	dlist_foreach(iter, &relation->entries)
	{
		known = dlist_container(KnownEntry, link, iter.cur);
		Assert(known->relid == relid);
		known->entry->localrelvalid = false;
	}
}

static bool
probe_register(void *function)
{
	void		(*call) (RelcacheCallbackFunction, Datum) =
		(void (*) (RelcacheCallbackFunction, Datum)) function;

	probe_arrived = false;
	probing = true;
	call(invalidate, (Datum) 0);
	probing = false;
	return probe_arrived;
}

static bool
probe_close(void *function)
{
	void		(*call) (LogicalRepRelMapEntry *, LOCKMODE) =
		(void (*) (LogicalRepRelMapEntry *, LOCKMODE)) function;

	probe_arrived = false;
	probing = true;
	call(NULL, NoLock);
	probing = false;
	return probe_arrived;
}
