/*-------------------------------------------------------------------------
 *
 * fold.c
 *		Removes duplicates among the notifications of one delivery.
 *
 * PostgreSQL removes duplicates within a transaction.  With pinpoint.fold, a
 * session also removes duplicates among all of its unread notifications, from
 * any number of transactions: a notification with the same channel and payload
 * is sent once, where the first one was, and with the PID of the last sender.
 *
 * For this, notifications are collected before they are sent.  When MAX_BYTES
 * are collected, they are sent, and a new collection begins.  So a duplicate
 * may remain, but no notification is lost.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "base/check.h"
#include "base/counters.h"
#include "base/hash.h"
#include "listener/fold.h"

/* Send the collected notifications when they take about this many bytes. */
#define MAX_BYTES		(1024 * 1024)

/* A collected notification. */
typedef struct FoldedNotification
{
	slist_node	link;			/* in the order of the first ones */
	const char *channel;		/* zero-terminated */
	const char *payload;		/* likewise */
	int32		sender_pid;		/* of the last duplicate */
} FoldedNotification;

typedef struct FoldEntry
{
	FoldedNotification *notification;
	uint32		hash;
	char		status;
} FoldEntry;

static uint32 notification_hash(const FoldedNotification *n);
static bool same_notification(const FoldedNotification *a,
							  const FoldedNotification *b);

#define SH_PREFIX fold
#define SH_ELEMENT_TYPE FoldEntry
#define SH_KEY_TYPE FoldedNotification *
#define SH_KEY notification
#define SH_HASH_KEY(tb, key) notification_hash(key)
#define SH_EQUAL(tb, a, b) same_notification((a), (b))
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) ((a)->hash)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* The collected notifications; folded is NULL if there are none. */
static MemoryContext fold_context = NULL;
static fold_hash * folded = NULL;

static slist_head first_folded;
static slist_node *last_folded = NULL;
static Size folded_bytes = 0;

/* The last notification that was added, and the number of duplicates. */
static FoldedNotification *latest = NULL;
static uint64 nfolded = 0;

static uint32
notification_hash(const FoldedNotification *n)
{
	return hash_combine(pinpoint_hash_channel(n->channel),
						pinpoint_hash_payload(n->payload));
}

static bool
same_notification(const FoldedNotification *a, const FoldedNotification *b)
{
	return strcmp(a->channel, b->channel) == 0 &&
		strcmp(a->payload, b->payload) == 0;
}

/*
 * Collect a notification for the client, unless it is a duplicate.  When
 * MAX_BYTES are collected, send them.
 *
 * Errors: out of memory; those of send(); the session is terminated.
 */
void
pinpoint_fold_add(const char *channel, const char *payload, int32 sender_pid,
				  PinpointSend send)
{
	FoldedNotification given = {.channel = channel,.payload = payload};
	FoldedNotification *n;
	FoldEntry  *entry;
	MemoryContext oldcontext;
	bool		found;

	AssertNoLockHeld();

	/*
	 * A batch can contain very many notifications.  As between two batches,
	 * no other interrupt is processed.
	 */
	if (unlikely(ProcDiePending))
		CHECK_FOR_INTERRUPTS();

	if (folded == NULL)
	{
		if (fold_context == NULL)
			fold_context = AllocSetContextCreate(TopMemoryContext,
												 "pg_pinpoint fold",
												 ALLOCSET_DEFAULT_SIZES);
		folded = fold_create(fold_context, 64, NULL);
		slist_init(&first_folded);
		last_folded = &first_folded.head;
		folded_bytes = 0;
	}

	/* Under high load, most notifications equal the last one. */
	if (latest == NULL || !same_notification(latest, &given))
	{
		entry = fold_lookup(folded, &given);
		latest = entry ? entry->notification : NULL;
	}
	if (latest != NULL)
	{
		latest->sender_pid = sender_pid;
		nfolded++;
		return;
	}

	oldcontext = MemoryContextSwitchTo(fold_context);
	n = palloc(sizeof(FoldedNotification));
	n->channel = pstrdup(channel);
	n->payload = pstrdup(payload);
	n->sender_pid = sender_pid;
	(void) fold_insert(folded, n, &found);
	Assert(!found);
	MemoryContextSwitchTo(oldcontext);
	slist_insert_after(last_folded, &n->link);
	last_folded = &n->link;
	latest = n;

	folded_bytes += sizeof(FoldedNotification) + sizeof(FoldEntry) +
		strlen(channel) + strlen(payload);
	if (folded_bytes >= MAX_BYTES)
		pinpoint_fold_send(send);
}

/*
 * Send the collected notifications to the client.
 *
 * Errors: those of send().
 */
void
pinpoint_fold_send(PinpointSend send)
{
	slist_iter	iter;

	AssertNoLockHeld();
	if (folded == NULL)
		return;

	pinpoint_counter_add(MyDatabaseId, PINPOINT_COUNT_FOLDED, nfolded);
	nfolded = 0;
	latest = NULL;

	slist_foreach(iter, &first_folded)
	{
		FoldedNotification *n = slist_container(FoldedNotification, link,
												iter.cur);

		send(n->channel, n->payload, n->sender_pid);
	}
	folded = NULL;
	MemoryContextReset(fold_context);
}
