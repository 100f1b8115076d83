/*-------------------------------------------------------------------------
 *
 * pending.c
 *		Actions and notifications of the current transaction, until it commits.
 *
 * LISTEN, UNLISTEN and NOTIFY take effect at commit.  Until then, each
 * (sub)transaction keeps two lists: actions (LISTEN, UNLISTEN, UNLISTEN *) in
 * the order of execution, and notifications in the order in which they were
 * sent, without duplicates.  A subtransaction that commits appends its lists
 * to its parent's; one that aborts discards them.  The two lists are
 * independent.
 *
 * UNLISTEN * makes earlier actions superfluous, so they are removed: those of
 * the same (sub)transaction at once, those of its parent when it is merged.
 * So a transaction has at most one UNLISTEN *, which is its first action.
 *
 * The rules are those of PostgreSQL: a notification is a duplicate if the same
 * (sub)transaction, or one already merged into it, has sent the same channel
 * and payload before.  A subtransaction is not compared with its parent while
 * it runs, since it may be rolled back; duplicates between the two are found
 * when they are merged.
 *
 * All data is in the memory context of its (sub)transaction.  At commit, the
 * parent takes over this context; at abort, it is deleted.  The list headers
 * are in TopTransactionContext, because merging changes their level.  The one
 * of the outermost level needs no allocation.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "utils/memutils.h"

#include "base/hash.h"
#include "base/settings.h"
#include "base/transaction.h"
#include "sql/pending.h"

/*
 * From this number of notifications on, duplicates are found in a hash table.
 * Below it, a linear search is cheaper.
 */
#define DUPLICATES_HASH_THRESHOLD	16

/*
 * Logarithm of the number of buckets: of a new table, by how much it increases
 * when there are more notifications than buckets, and its maximum.
 */
#define BUCKETS_LOG2		6
#define BUCKETS_LOG2_STEP	2
#define MAX_BUCKETS_LOG2	30

/* The lists of one (sub)transaction. */
typedef struct PendingLevel
{
	int			nesting_level;
	List	   *actions;		/* of PinpointAction */
	List	   *notifications;	/* of PinpointNotification */
	PinpointNotification **buckets; /* hash table of notifications; NULL if
									 * there is none, for instance below the
									 * threshold */
	int			buckets_log2;	/* logarithm of the number of buckets */
	struct PendingLevel *upper; /* of an enclosing (sub)transaction */

	/*
	 * merging is set while this level is merged into its parent.
	 * upper_notifications is the length of the parent's list of notifications
	 * before that.
	 */
	bool		merging;
	int			upper_notifications;
} PendingLevel;

static PendingLevel *pending = NULL;

/* The lists of the outermost (sub)transaction that has any. */
static PendingLevel outermost;

static PendingLevel *current_level(void);
static void free_level(PendingLevel *level);
static bool same_notification(const PinpointNotification *a,
							  const PinpointNotification *b);
static PinpointNotification *find_same(PendingLevel *level,
									   const PinpointNotification *n);
static void append_notification(PendingLevel *level, PinpointNotification *n);
static PinpointNotification **bucket_of(PendingLevel *level,
										const PinpointNotification *n);
static void make_buckets(PendingLevel *level, int buckets_log2);
static bool begins_with_unlisten_all(List *actions);
static void undo_merge(PendingLevel *child);

/*
 * Returns the lists of the current (sub)transaction.  Creates them if there
 * are none yet.
 *
 * Errors: out of memory.
 */
static PendingLevel *
current_level(void)
{
	int			my_level = GetCurrentTransactionNestLevel();
	PendingLevel *level;

	Assert(IsTransactionState());
	Assert(PinpointMyTransaction.phase <= PINPOINT_SEALED);

	if (pending != NULL && pending->nesting_level >= my_level)
	{
		Assert(pending->nesting_level == my_level);
		return pending;
	}

	if (pending == NULL)
	{
		level = &outermost;
		memset(level, 0, sizeof(PendingLevel));
	}
	else
		level = MemoryContextAllocZero(TopTransactionContext,
									   sizeof(PendingLevel));
	level->nesting_level = my_level;
	level->upper = pending;
	pending = level;
	return level;
}

static void
free_level(PendingLevel *level)
{
	if (level != &outermost)
		pfree(level);
}

/*
 * Record a notification, to be sent at commit, unless it is a duplicate.
 *
 * channel: name, 1 to NAMEDATALEN - 1 bytes.  payload: text of at most
 * pinpoint_max_payload_size bytes, "" for none.  The caller has checked both.
 *
 * Errors: out of memory.
 */
void
pinpoint_pending_notify(const char *channel, const char *payload)
{
	PendingLevel *level = current_level();
	size_t		channel_len = strlen(channel);
	size_t		payload_len = strlen(payload);
	size_t		data_len = channel_len + payload_len + 2;
	MemoryContext oldcontext;
	PinpointNotification *n;

	Assert(channel_len > 0 && channel_len < NAMEDATALEN);
	Assert(payload_len <= (size_t) pinpoint_max_payload_size);

	oldcontext = MemoryContextSwitchTo(CurTransactionContext);

	n = palloc(offsetof(PinpointNotification, data) + data_len);
	n->channel_len = (uint16) channel_len;
	n->payload_len = (uint32) payload_len;
	memcpy(n->data, channel, channel_len + 1);
	memcpy(n->data + channel_len + 1, payload, payload_len + 1);
	n->channel_hash = pinpoint_hash_channel(n->data);
	n->hash = n->channel_hash;
	if (payload_len > 0)
		n->hash = (uint32) hash_bytes_extended((const unsigned char *) payload,
											   (int) payload_len,
											   n->channel_hash);

	if (find_same(level, n) != NULL)
		pfree(n);
	else
		append_notification(level, n);

	MemoryContextSwitchTo(oldcontext);
	pinpoint_pending_check();
}

/*
 * Record a LISTEN, UNLISTEN or UNLISTEN *, to be executed at commit.
 *
 * channel: name of less than NAMEDATALEN bytes, "" for UNLISTEN *.
 * share_limit, notifies: see PinpointAction.
 *
 * UNLISTEN * removes earlier actions.  No other action is removed, because
 * their order matters.
 *
 * Errors: out of memory.
 */
void
pinpoint_pending_action(PinpointActionKind kind, const char *channel,
						int share_limit, bool notifies)
{
	PendingLevel *level = current_level();
	size_t		len = strlen(channel);
	MemoryContext oldcontext;
	PinpointAction *action;

	Assert(PinpointMyTransaction.phase == PINPOINT_RUNNING);
	Assert(len < NAMEDATALEN);
	Assert((len == 0) == (kind == PINPOINT_UNLISTEN_ALL));

	oldcontext = MemoryContextSwitchTo(CurTransactionContext);

	if (kind == PINPOINT_UNLISTEN_ALL)
	{
		list_free_deep(level->actions);
		level->actions = NIL;
	}

	action = palloc(offsetof(PinpointAction, channel) + len + 1);
	action->kind = kind;
	action->share_limit = share_limit;
	action->notifies = notifies;
	action->local = NULL;
	memcpy(action->channel, channel, len + 1);
	action->channel_hash = pinpoint_hash_channel(action->channel);
	level->actions = lappend(level->actions, action);

	MemoryContextSwitchTo(oldcontext);
	pinpoint_pending_check();
}

static bool
begins_with_unlisten_all(List *actions)
{
	return actions != NIL &&
		((PinpointAction *) linitial(actions))->kind == PINPOINT_UNLISTEN_ALL;
}

/*
 * Does this transaction have actions or notifications, at any level?
 */
bool
pinpoint_pending_exists(void)
{
	return pending != NULL;
}

/*
 * The actions of the transaction, once all subtransactions are merged.
 */
List *
pinpoint_pending_actions(void)
{
	Assert(pending == NULL || pending->upper == NULL);

	return pending ? pending->actions : NIL;
}

/*
 * Has this transaction executed LISTEN for a channel, at any level?
 *
 * hash: pinpoint_hash_channel() of the channel.
 */
bool
pinpoint_pending_listens(const char *channel, uint32 hash)
{
	for (PendingLevel *level = pending; level != NULL; level = level->upper)
	{
		ListCell   *lc;

		foreach(lc, level->actions)
		{
			PinpointAction *action = lfirst(lc);

			if (action->channel_hash == hash &&
				action->kind == PINPOINT_LISTEN &&
				strcmp(action->channel, channel) == 0)
				return true;
		}
	}
	return false;
}

/*
 * The notifications of the transaction, once all subtransactions are merged.
 */
List *
pinpoint_pending_notifications(void)
{
	Assert(pending == NULL || pending->upper == NULL);

	return pending ? pending->notifications : NIL;
}

/*
 * The current subtransaction commits: merge its lists into its parent's.
 *
 * Errors: out of memory.  The subtransaction then aborts.
 */
void
pinpoint_pending_at_subcommit(void)
{
	int			my_level = GetCurrentTransactionNestLevel();
	PendingLevel *child = pending;
	PendingLevel *parent;
	MemoryContext oldcontext;
	ListCell   *lc;

	if (child == NULL || child->nesting_level < my_level)
		return;

	parent = child->upper;
	if (parent == NULL || parent->nesting_level < my_level - 1)
	{
		/* The parent has no lists, so it takes over these. */
		child->nesting_level--;
		pinpoint_pending_check();
		return;
	}

	Assert(!child->merging);
	child->merging = true;
	child->upper_notifications = list_length(parent->notifications);

	/*
	 * The memory context of a committed subtransaction exists as long as its
	 * parent's, so the elements need not be copied.
	 */
	oldcontext = MemoryContextSwitchTo(CurTransactionContext);
	foreach(lc, child->notifications)
	{
		PinpointNotification *n = lfirst(lc);

		if (find_same(parent, n) == NULL)
			append_notification(parent, n);
	}

	/* This is the last step that can fail, so undo_merge() need not undo it. */
	if (begins_with_unlisten_all(child->actions))
	{
		list_free_deep(parent->actions);
		parent->actions = child->actions;
	}
	else
		parent->actions = list_concat(parent->actions, child->actions);
	MemoryContextSwitchTo(oldcontext);

	pending = parent;
	free_level(child);
	pinpoint_pending_check();
}

/*
 * The current subtransaction aborts: discard its lists.
 */
void
pinpoint_pending_at_subabort(void)
{
	int			my_level = GetCurrentTransactionNestLevel();

	while (pending != NULL && pending->nesting_level >= my_level)
	{
		PendingLevel *child = pending;

		if (child->merging)
			undo_merge(child);
		pending = child->upper;
		free_level(child);
	}
	pinpoint_pending_check();
}

/*
 * Remove the notifications that have been merged so far from the parent's
 * list.  (The actions are merged after them, in one step.)  The hash table
 * contains elements that will be freed, so it is discarded, and created again
 * when it is needed.
 */
static void
undo_merge(PendingLevel *child)
{
	PendingLevel *parent = child->upper;

	Assert(child->merging && parent != NULL);
	Assert(list_length(parent->notifications) >= child->upper_notifications);

	parent->notifications = list_truncate(parent->notifications,
										  child->upper_notifications);
	parent->buckets = NULL;
}

/*
 * The transaction is over.  Its lists are freed with its memory contexts.
 */
void
pinpoint_pending_reset(void)
{
	pending = NULL;
}

static bool
same_notification(const PinpointNotification *a, const PinpointNotification *b)
{
	return a->hash == b->hash &&
		a->channel_len == b->channel_len &&
		a->payload_len == b->payload_len &&
		memcmp(a->data, b->data, a->channel_len + a->payload_len + 2) == 0;
}

/*
 * The notification of a level that is the same as another one; NULL if there is
 * none.
 */
static PinpointNotification *
find_same(PendingLevel *level, const PinpointNotification *n)
{
	ListCell   *lc;

	if (level->buckets != NULL)
	{
		PinpointNotification *other = *bucket_of(level, n);

		while (other != NULL && !same_notification(other, n))
			other = other->next_in_bucket;
		return other;
	}

	foreach(lc, level->notifications)
	{
		if (same_notification(lfirst(lc), n))
			return lfirst(lc);
	}
	return NULL;
}

/*
 * Add a notification that is not a duplicate.
 *
 * Errors: out of memory.
 */
static void
append_notification(PendingLevel *level, PinpointNotification *n)
{
	level->notifications = lappend(level->notifications, n);

	if (level->buckets == NULL)
	{
		if (list_length(level->notifications) >= DUPLICATES_HASH_THRESHOLD)
			make_buckets(level, BUCKETS_LOG2);
	}
	else if ((list_length(level->notifications) >> level->buckets_log2) != 0 &&
			 level->buckets_log2 < MAX_BUCKETS_LOG2)
		make_buckets(level, level->buckets_log2 + BUCKETS_LOG2_STEP);
	else
	{
		PinpointNotification **bucket = bucket_of(level, n);

		n->next_in_bucket = *bucket;
		*bucket = n;
	}
}

/*
 * The bucket of a notification: the highest bits of its hash value.
 */
static PinpointNotification **
bucket_of(PendingLevel *level, const PinpointNotification *n)
{
	return &level->buckets[n->hash >> (32 - level->buckets_log2)];
}

/*
 * Create the hash table of a level, or a larger one, with all its
 * notifications.  It is allocated in the current memory context.
 *
 * Errors: out of memory.
 */
static void
make_buckets(PendingLevel *level, int buckets_log2)
{
	PinpointNotification **former = level->buckets;
	ListCell   *lc;

	level->buckets =
		MemoryContextAllocExtended(CurrentMemoryContext,
								   sizeof(PinpointNotification *) << buckets_log2,
								   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	level->buckets_log2 = buckets_log2;
	foreach(lc, level->notifications)
	{
		PinpointNotification *n = lfirst(lc);
		PinpointNotification **bucket = bucket_of(level, n);

		n->next_in_bucket = *bucket;
		*bucket = n;
	}
	if (former != NULL)
		pfree(former);
}

#ifdef USE_ASSERT_CHECKING
/* Elements of a list that the check looks at: those that were added last. */
#define MAX_CHECKED		16

static void
check_level(PendingLevel *level)
{
	int			nactions = list_length(level->actions);
	int			nnotifications = list_length(level->notifications);

	for (int i = Max(0, nactions - MAX_CHECKED); i < nactions; i++)
	{
		PinpointAction *action = list_nth(level->actions, i);

		/* UNLISTEN * has removed what was before it. */
		Assert(action->kind != PINPOINT_UNLISTEN_ALL || i == 0);
		Assert(action->channel_hash == pinpoint_hash_channel(action->channel));
	}

	Assert(level->buckets == NULL ||
		   nnotifications >= DUPLICATES_HASH_THRESHOLD);
	for (int i = Max(0, nnotifications - MAX_CHECKED); i < nnotifications; i++)
	{
		PinpointNotification *n = list_nth(level->notifications, i);

		Assert(strlen(n->data) == n->channel_len);
		Assert(n->channel_hash == pinpoint_hash_channel(n->data));
		if (level->buckets != NULL)
			Assert(find_same(level, n) == n);
		else
			Assert(i == 0 ||
				   !same_notification(list_nth(level->notifications, i - 1),
									  n));
	}
}

void
pinpoint_pending_check(void)
{
	int			below = GetCurrentTransactionNestLevel() + 1;

	for (PendingLevel *level = pending; level != NULL; level = level->upper)
	{
		Assert(level->nesting_level >= 1 && level->nesting_level < below);
		Assert(!level->merging);
		check_level(level);
		below = level->nesting_level;
	}
}
#endif
