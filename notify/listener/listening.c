/*-------------------------------------------------------------------------
 *
 * listening.c
 *		The channels that this session listens on.
 *
 * They are kept in a local table.  The table is the filter on delivery.  When
 * the session ends, it also lists the entries to remove from the channel map,
 * so that no session ever scans the map.
 *
 * LISTEN in three steps:
 *
 *	prepare		before commit, may fail: enter all new channels into the local
 *				table and the channel map.  From here on, publications find this
 *				session.  A channel that does not fit into the channel map is
 *				only in the local table, and publications of all channels in the
 *				database find this session.  Then read the number of the last
 *				publication.
 *	commit		after commit, allocates nothing: the new channels become valid,
 *				and channels of UNLISTEN are removed from both tables.
 *	abort		undo the prepare step.
 *
 * A LISTEN begins at the end of its prepare step: if it commits, the session
 * receives all batches with a higher number than the one that was read.  It
 * must begin that early.  As soon as the transaction of the LISTEN has
 * committed, other sessions can see its rows, and get the locks that it held,
 * and their later notifications must be delivered.  But the steps of this
 * library after the commit follow some time later.  Batches that were
 * published before need not be delivered: no session could know of this
 * LISTEN.
 *
 * All new channels of a transaction begin together, as in PostgreSQL.  A
 * publication during the prepare step finds the session only by the channels
 * that are entered already.  So the number is read when all are entered: see
 * step 11 in wakeup.c.  This is about channels that the session does not
 * share.  What is assigned to it on a shared channel is delivered, even if it
 * was published earlier: no other session receives it.
 *
 * pinpoint.notify_on_listen.  When such a channel becomes valid, it is added
 * to a list, and the interrupt is raised.  The next delivery begins with these
 * channels; see delivery.c.  So the session is notified once, after the commit
 * and before the next ReadyForQuery, and before it receives any other
 * notification on the channel.
 *
 * PostgreSQL keeps a separate list.  The two can differ if memory for
 * PostgreSQL's list runs out after the commit, or if other libraries call
 * Async_Listen() or similar functions.  Then PostgreSQL's list is correct.  It
 * is checked if a transaction seems to fail after its LISTEN was committed, if
 * the session does not react to a wakeup (see wakeup.c), and after a
 * transaction in which other libraries have called these functions.
 *
 * The channels of other libraries are known only after the commit, when
 * PostgreSQL has added them to its list.  But their LISTEN must begin before
 * the commit, too.  So before the commit, publications of all channels in the
 * database find this session, and the number of the last publication is read.
 * After the commit, the interrupt is raised.  The next transaction enters the
 * channels into the local table and the channel map, and they begin after that
 * number.  If it fails, the one after it does.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/async.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/sinval.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/hash.h"
#include "base/request.h"
#include "base/transaction.h"
#include "listener/listening.h"
#include "wakeup/channel_map.h"
#include "wakeup/reassign.h"
#include "wakeup/slots.h"

/* How publications on a channel find this session. */
typedef enum Findable
{
	NOT_FINDABLE,				/* not at all: the channel is new */
	BY_CHANNEL,					/* the session is in the channel map */
	BY_DATABASE					/* the channel does not fit into the map, so
								 * all publications in the database find the
								 * session */
} Findable;

/* Entry of the local table. */
typedef struct LocalChannel
{
	char		channel[NAMEDATALEN];	/* hash key, must be first */
	uint32		hash;			/* pinpoint_hash_channel() of it */
	bool		listening;		/* as of the last commit */
	bool		wanted;			/* as the current transaction will commit it;
								 * equal to listening between transactions */
	Findable	findable;		/* how publications find this session */
	bool		shared;			/* with other sessions; see sharing.c.  True
								 * only if BY_CHANNEL: otherwise nothing can
								 * be assigned to this session, and it
								 * receives all notifications on the channel */
	uint64		begins_after;	/* deliver batches with a higher sequence */
	bool		notifies;		/* the session is to be notified when the
								 * channel becomes valid */
	bool		in_to_notify;	/* in that list */
	dlist_node	to_notify_link;
	uint64		begun;			/* value of nbegun when the first action of a
								 * transaction on this channel was found */
} LocalChannel;

static HTAB *local_channels = NULL;
static uint32 nlistening = 0;	/* local channels with listening set */

/* Local channels that are in the channel map, and shared with other sessions */
static uint32 nshared = 0;

/* Local channels that do not fit into the channel map */
static uint32 nby_database = 0;

/*
 * Channels that have become valid, and on which the session is to be notified,
 * in their order.
 */
static dlist_head to_notify = DLIST_STATIC_INIT(to_notify);

/* Does the current transaction change the channels of this session? */
static bool changes = false;

/* How many transactions of this session have executed actions. */
static uint64 nbegun = 0;

/*
 * The new channels of the current transaction begin after the publication with
 * this number.
 */
static uint64 begin_after;

/*
 * Have other libraries executed LISTEN or UNLISTEN, for channels that are not
 * known yet?
 */
typedef enum OtherActions
{
	NO_OTHER_ACTIONS,
	OTHER_ACTIONS_PREPARED,		/* in the current transaction */
	OTHER_ACTIONS_COMMITTED		/* in the last one */
} OtherActions;

static OtherActions other_actions = NO_OTHER_ACTIONS;

/* Their channels begin after the publication with this number. */
static uint64 others_begin_after;

/* Has this session left a channel that it shared? */
static bool left_shared_channel = false;

/*
 * Have LISTENs or UNLISTENs taken effect, since the last transaction has
 * begun to commit?  If it seems to abort nevertheless, the channels are in
 * doubt: they may differ from PostgreSQL's own list.
 */
static bool took_effect = false;
static bool in_doubt = false;

static void make_local_channels(void);
static LocalChannel *local_channel(const char *channel, uint32 hash,
								   HASHACTION action, bool *found);
static LocalChannel *enter_local_channel(const char *channel, uint32 hash);
static List *own_list(void);
static void take_over(List *channels);
static void want(List *actions);
static void set_local(PinpointAction *action, LocalChannel *local);
static void enter(LocalChannel *local, int share_limit, bool begins);
static void forget_channel(LocalChannel *local);
static void reset_wanted(LocalChannel *local);
static void forget_unwanted(void);
static void after_leaving(void);
static bool still_shares(const char *channel);
static void update_slot(void);

static void
make_local_channels(void)
{
	HASHCTL		ctl;

	ctl.keysize = NAMEDATALEN;
	ctl.entrysize = sizeof(LocalChannel);
	ctl.hcxt = TopMemoryContext;
	local_channels = hash_create("pg_pinpoint local channels", 16, &ctl,
								 HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/*
 * Find, enter or remove a channel in the local table; see hash_search().  The
 * table uses the hash values that batches contain.
 */
static LocalChannel *
local_channel(const char *channel, uint32 hash, HASHACTION action, bool *found)
{
	return hash_search_with_hash_value(local_channels, channel, hash, action,
									   found);
}

/*
 * Find a channel in the local table, or enter it there as one on which this
 * session does not listen.
 *
 * Errors: out of local memory.
 */
static LocalChannel *
enter_local_channel(const char *channel, uint32 hash)
{
	bool		found;
	LocalChannel *local = local_channel(channel, hash, HASH_ENTER, &found);

	if (!found)
	{
		local->hash = hash;
		local->listening = false;
		local->wanted = false;
		local->findable = NOT_FINDABLE;
		local->shared = false;
		local->notifies = false;
		local->in_to_notify = false;
		local->begun = 0;
	}
	return local;
}

/*
 * Before commit: enter new channels into the local table and the channel map.
 *
 * actions: PinpointAction structs in the order of execution.  At most one of
 * them is UNLISTEN *, which limits the time: each one visits all local
 * channels.
 *
 * Errors: out of local memory; the statement is cancelled.  The transaction
 * then aborts, and pinpoint_listening_abort() cleans up.
 */
void
pinpoint_listening_begin(List *actions)
{
	ListCell   *lc;
	bool		begins = !pinpoint_slot_registered();
	bool		added = false;

	AssertNoLockHeld();
	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);

	if (local_channels == NULL)
		make_local_channels();
	PinpointMyTransaction.prepared_listening = true;

	/* First determine the net effect, ... */
	changes = false;
	nbegun++;
	want(actions);
	if (!changes)
		return;

	/*
	 * ... then change the map, so that LISTEN and UNLISTEN of one channel
	 * cost nothing there
	 */
	foreach(lc, actions)
	{
		PinpointAction *action = lfirst(lc);
		LocalChannel *local = action->local;

		CHECK_FOR_INTERRUPTS();
		if (local == NULL || !local->wanted || local->listening ||
			local->findable != NOT_FINDABLE)
			continue;

		pinpoint_slot_register();
		enter(local, action->share_limit, begins);
		added = true;
	}
	if (added)
	{
		pinpoint_slot_join();

		/*
		 * Step 11 of the proof in wakeup.c.  The barrier before this is the
		 * last one of pinpoint_slot_join().
		 */
		begin_after = pinpoint_message_log_sequence();
	}
}

/*
 * Enter a new channel into the channel map.  If it does not fit, let
 * publications of all channels in the database find this session.
 *
 * share_limit: see PinpointAction.
 *
 * begins: this session did not listen on any channel before this transaction.
 *
 * Errors: ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE for the channel of
 * heartbeats, if this session may have missed notifications.
 */
static void
enter(LocalChannel *local, int share_limit, bool begins)
{
	AssertNoLockHeld();
	Assert(local->findable == NOT_FINDABLE && pinpoint_slot_registered());

	if (share_limit > 0)
		pinpoint_slot_set_shares(true);
	if (pinpoint_is_heartbeat_channel(local->channel) &&
		!pinpoint_slot_set_heartbeats(true, begins))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot listen on \"%s\" because this session may have missed notifications",
						local->channel),
				 errdetail("Notifications were not replicated to this standby while the session listened on other channels."),
				 errhint("Execute UNLISTEN * in a transaction of its own or connect again, then LISTEN on all channels, and query which of them have changed.")));

	if (pinpoint_channel_map_add(local->channel, local->hash,
								 PINPOINT_MY_SLOT_NUMBER, pinpoint_slot_role(),
								 share_limit))
	{
		local->findable = BY_CHANNEL;
		local->shared = share_limit > 0;
		if (local->shared)
			nshared++;
		return;
	}

	if (nby_database == 0)
		ereport(LOG,
				(errmsg("not enough shared memory for a channel on which the session with PID %d listens",
						MyProcPid),
				 errdetail("All notifications of its database wake this session."),
				 errhint("Increase \"pinpoint.channel_memory\", or let this role listen on fewer channels.")));
	local->findable = BY_DATABASE;
	nby_database++;
	pinpoint_slot_set_wakes_for_all(true);
}

/*
 * Before the commit of a transaction in which other libraries have executed
 * LISTEN or UNLISTEN: let publications of all channels in the database find
 * this session, until its channels are known.
 *
 * Errors: out of memory.
 */
void
pinpoint_listening_begin_others(void)
{
	AssertNoLockHeld();
	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);
	Assert(other_actions == NO_OTHER_ACTIONS);

	if (local_channels == NULL)
		make_local_channels();
	other_actions = OTHER_ACTIONS_PREPARED;
	pinpoint_slot_register();
	pinpoint_slot_set_wakes_for_all(true);
	pinpoint_slot_join();

	/* step 11 of the proof in wakeup.c */
	others_begin_after = pinpoint_message_log_sequence();
}

/*
 * After the commit of any transaction.  Let PostgreSQL run a small transaction
 * if other libraries have executed LISTEN or UNLISTEN: before the end of the
 * command, for their notifications to this session, or, if the session does
 * not listen any more, when it is idle.  Does not fail.
 */
void
pinpoint_listening_commit_others(void)
{
	if (other_actions != OTHER_ACTIONS_PREPARED)
		return;
	other_actions = OTHER_ACTIONS_COMMITTED;
	notifyInterruptPending = true;
	catchupInterruptPending = true;

	/* A background worker sees the interrupt when its latch is set. */
	SetLatch(MyLatch);
}

/*
 * Before the commit of any transaction: compare the channels with PostgreSQL's
 * own list if they may differ.
 *
 * Errors: out of memory.
 */
void
pinpoint_listening_at_pre_commit(void)
{
	Assert(PinpointMyTransaction.phase == PINPOINT_SEALED);

	took_effect = false;
	if (pinpoint_listening_in_doubt())
		pinpoint_listening_reconcile();
}

/*
 * Listen on the channels in PostgreSQL's own list, and on no others.
 *
 * Errors: out of memory.  The next call continues.
 */
void
pinpoint_listening_reconcile(void)
{
	List	   *channels = own_list();
	HASH_SEQ_STATUS seq;
	LocalChannel *local;
	ListCell   *lc;

	AssertNoLockHeld();
	take_over(channels);

	PINPOINT_BEGIN_CANNOT_FAIL();
	in_doubt = false;
	if (other_actions == OTHER_ACTIONS_COMMITTED)
		other_actions = NO_OTHER_ACTIONS;
	hash_seq_init(&seq, local_channels);
	while ((local = hash_seq_search(&seq)) != NULL)
		local->wanted = false;
	foreach(lc, channels)
	{
		local = local_channel(lfirst(lc), pinpoint_hash_channel(lfirst(lc)),
							  HASH_FIND, NULL);
		if (local != NULL)
			local->wanted = true;
	}
	forget_unwanted();
	after_leaving();
	update_slot();
	PINPOINT_END_CANNOT_FAIL();
	list_free_deep(channels);
}

/*
 * The channels in PostgreSQL's own list.
 *
 * Errors: out of memory.
 */
static List *
own_list(void)
{
	LOCAL_FCINFO(fcinfo, 0);
	FmgrInfo	flinfo;
	ReturnSetInfo rsinfo = {.type = T_ReturnSetInfo};
	List	   *channels = NIL;

	fmgr_info(F_PG_LISTENING_CHANNELS, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 0, InvalidOid, NULL,
							 (Node *) &rsinfo);
	rsinfo.econtext = CreateStandaloneExprContext();
	rsinfo.allowedModes = SFRM_ValuePerCall;
	for (;;)
	{
		Datum		channel;

		rsinfo.isDone = ExprSingleResult;
		channel = FunctionCallInvoke(fcinfo);
		if (rsinfo.isDone != ExprMultipleResult)
			break;
		channels = lappend(channels, TextDatumGetCString(channel));
	}
	FreeExprContext(rsinfo.econtext, true);
	return channels;
}

/*
 * Begin to listen on those of PostgreSQL's channels on which this session does
 * not listen.  It does not share them.  The channel of heartbeats is left out:
 * its LISTEN has conditions, which are checked only by the statement.
 *
 * Errors: out of memory.
 */
static void
take_over(List *channels)
{
	uint64		begins_after = others_begin_after;
	ListCell   *lc;

	if (other_actions != OTHER_ACTIONS_COMMITTED)
		begins_after = pinpoint_message_log_sequence();

	foreach(lc, channels)
	{
		const char *channel = lfirst(lc);
		LocalChannel *local;

		if (pinpoint_is_heartbeat_channel(channel))
			continue;
		local = enter_local_channel(channel, pinpoint_hash_channel(channel));
		if (local->listening)
			continue;
		pinpoint_slot_register();
		enter(local, 0, false);
		local->listening = true;
		local->begins_after = begins_after;
		nlistening++;
	}

	/*
	 * A sender may have read the map without these channels, and publish when
	 * publications of all channels do not find this session any more.  It
	 * finds the session by this number.
	 */
	if (pinpoint_slot_registered())
		pinpoint_slot_join();
}

/*
 * Enter the effect of the actions into the local table.  Sets changes to true
 * if there may be one.
 *
 * Errors: out of local memory; the statement is cancelled.
 */
static void
want(List *actions)
{
	ListCell   *lc;

	foreach(lc, actions)
	{
		PinpointAction *action = lfirst(lc);
		LocalChannel *local;
		HASH_SEQ_STATUS seq;

		CHECK_FOR_INTERRUPTS();
		switch (action->kind)
		{
			case PINPOINT_LISTEN:
				local = enter_local_channel(action->channel,
											action->channel_hash);
				set_local(action, local);
				local->notifies |= action->notifies;
				changes |= !local->wanted;
				local->wanted = true;
				break;
			case PINPOINT_UNLISTEN:
				local = local_channel(action->channel, action->channel_hash,
									  HASH_FIND, NULL);
				if (local == NULL)
					break;
				set_local(action, local);
				changes |= local->wanted;
				local->wanted = false;
				break;
			case PINPOINT_UNLISTEN_ALL:
				changes = true;
				hash_seq_init(&seq, local_channels);
				while ((local = hash_seq_search(&seq)) != NULL)
					local->wanted = false;
				break;
		}
	}
}

/*
 * Keep the entry of a channel in the first action on the channel, until the
 * commit.  Only there, so that no action refers to an entry that another one
 * has removed.
 */
static void
set_local(PinpointAction *action, LocalChannel *local)
{
	if (local->begun != nbegun)
		action->local = local;
	local->begun = nbegun;
}

/*
 * After commit: carry out the actions.  Does not fail and allocates nothing.
 */
void
pinpoint_listening_commit(List *actions)
{
	bool		unlistens_all = false;
	ListCell   *lc;

	Assert(PinpointMyTransaction.phase == PINPOINT_COMMITTED);
	AssertInterruptsHeld();
	AssertNoLockHeld();

	took_effect = true;
	if (!changes)
		return;

	PINPOINT_BEGIN_CANNOT_FAIL();

	foreach(lc, actions)
	{
		PinpointAction *action = lfirst(lc);
		LocalChannel *local = action->local;

		unlistens_all |= action->kind == PINPOINT_UNLISTEN_ALL;
		if (local == NULL)
			continue;
		if (!local->wanted)
			forget_channel(local);
		else if (!local->listening)
		{
			local->listening = true;
			local->begins_after = begin_after;
			nlistening++;
			if (local->notifies)
			{
				dlist_push_tail(&to_notify, &local->to_notify_link);
				local->in_to_notify = true;

				/* The next delivery is directly after the command. */
				notifyInterruptPending = true;
			}
		}
	}
	if (unlistens_all)
		forget_unwanted();

	after_leaving();
	update_slot();
	PINPOINT_END_CANNOT_FAIL();
}

/*
 * Release the slot if this session does not listen any more.  Otherwise store
 * the number of its channels.
 */
static void
update_slot(void)
{
	if (nlistening == 0 && other_actions == NO_OTHER_ACTIONS)
		pinpoint_slot_unregister();
	else
		pinpoint_slot_set_channels(nlistening);
}

/*
 * Abort: undo the prepare step, if there was one.  Does not fail.
 */
void
pinpoint_listening_abort(List *actions)
{
	ListCell   *lc;

	/* The transaction may have failed after its commit. */
	if (took_effect)
		in_doubt = true;
	took_effect = false;

	AssertInterruptsHeld();
	AssertNoLockHeld();
	if (other_actions == OTHER_ACTIONS_PREPARED)
	{
		PINPOINT_BEGIN_CANNOT_FAIL();
		other_actions = NO_OTHER_ACTIONS;
		after_leaving();
		update_slot();
		PINPOINT_END_CANNOT_FAIL();
	}
	if (!PinpointMyTransaction.prepared_listening)
		return;

	PINPOINT_BEGIN_CANNOT_FAIL();

	foreach(lc, actions)
	{
		PinpointAction *action = lfirst(lc);
		LocalChannel *local;

		if (action->kind == PINPOINT_UNLISTEN_ALL)
		{
			HASH_SEQ_STATUS seq;

			hash_seq_init(&seq, local_channels);
			while ((local = hash_seq_search(&seq)) != NULL)
				reset_wanted(local);
		}
		else
		{
			local = local_channel(action->channel, action->channel_hash,
								  HASH_FIND, NULL);
			if (local != NULL)
				reset_wanted(local);
		}
	}

	after_leaving();
	update_slot();
	PINPOINT_END_CANNOT_FAIL();
}

/*
 * The session ends: stop listening on all channels.  Does not fail.
 */
void
pinpoint_listening_stop(void)
{
	HASH_SEQ_STATUS seq;
	LocalChannel *local;

	AssertInterruptsHeld();
	AssertNoLockHeld();

	if (local_channels != NULL)
	{
		hash_seq_init(&seq, local_channels);
		while ((local = hash_seq_search(&seq)) != NULL)
			local->wanted = false;
		forget_unwanted();
		after_leaving();
	}

	/* From here on, nothing is kept for this session, and it is not woken. */
	pinpoint_slot_unregister();
}

/*
 * Was pinpoint_listening_begin() or pinpoint_listening_begin_others() ever
 * called in this session?  (If not, it cannot have a channel to UNLISTEN.)
 */
bool
pinpoint_listening_used(void)
{
	return local_channels != NULL;
}

/*
 * May the channels differ from PostgreSQL's own list, until the next commit?
 */
bool
pinpoint_listening_in_doubt(void)
{
	return in_doubt || other_actions == OTHER_ACTIONS_COMMITTED;
}

/*
 * Is the session to be notified on any channel, because it has become valid?
 */
bool
pinpoint_listening_any_to_notify(void)
{
	return !dlist_is_empty(&to_notify);
}

/*
 * The first of these channels, or NULL.  It is removed from their list.
 */
const char *
pinpoint_listening_next_to_notify(void)
{
	LocalChannel *local;

	if (dlist_is_empty(&to_notify))
		return NULL;
	local = dlist_container(LocalChannel, to_notify_link,
							dlist_pop_head_node(&to_notify));
	local->in_to_notify = false;
	return local->channel;
}

/*
 * Does this session listen on a channel?  If so, sets *begins_after: the
 * batches with a higher number are for this session; and *shared: does it
 * share the channel?
 *
 * hash: pinpoint_hash_channel() of the channel.
 */
bool
pinpoint_listening_on(const char *channel, uint32 hash, uint64 *begins_after,
					  bool *shared)
{
	LocalChannel *local;

	if (local_channels == NULL)
		return false;

	local = local_channel(channel, hash, HASH_FIND, NULL);
	if (local == NULL || !local->listening)
		return false;
	*begins_after = local->begins_after;
	*shared = local->shared;
	return true;
}

/*
 * Stop listening on a channel: remove it from both tables.  The caller calls
 * after_leaving() when it has done this for all channels.
 */
static void
forget_channel(LocalChannel *local)
{
	AssertNoLockHeld();
	Assert(!local->shared || local->findable == BY_CHANNEL);
	Assert(!local->listening || local->findable != NOT_FINDABLE);

	if (local->listening)
	{
		local->listening = false;
		nlistening--;
	}
	if (local->findable == BY_CHANNEL)
	{
		pinpoint_channel_map_remove(local->channel, local->hash,
									PINPOINT_MY_SLOT_NUMBER);
		if (local->shared)
		{
			left_shared_channel = true;
			nshared--;
		}
	}
	if (local->findable == BY_DATABASE)
		nby_database--;
	if (local->in_to_notify)
		dlist_delete(&local->to_notify_link);
	if (pinpoint_slot_registered() &&
		pinpoint_is_heartbeat_channel(local->channel))
		(void) pinpoint_slot_set_heartbeats(false, false);
	(void) local_channel(local->channel, local->hash, HASH_REMOVE, NULL);
}

static void
forget_unwanted(void)
{
	HASH_SEQ_STATUS seq;
	LocalChannel *local;

	hash_seq_init(&seq, local_channels);
	while ((local = hash_seq_search(&seq)) != NULL)
	{
		if (!local->wanted)
			forget_channel(local);
	}
}

/*
 * Called after channels were left.  If this session shared any of them, its
 * assigned notifications are reassigned to other sessions.
 */
static void
after_leaving(void)
{
	AssertNoLockHeld();
	if (left_shared_channel)
		pinpoint_reassign(still_shares);
	left_shared_channel = false;

	/*
	 * Not earlier: while this is set, an eviction does not release the
	 * batches that pinpoint_reassign() reads.
	 */
	if (nshared == 0)
		pinpoint_slot_set_shares(false);
	if (nby_database == 0 && other_actions == NO_OTHER_ACTIONS)
		pinpoint_slot_set_wakes_for_all(false);
}

static bool
still_shares(const char *channel)
{
	LocalChannel *local = local_channel(channel, pinpoint_hash_channel(channel),
										HASH_FIND, NULL);

	return local != NULL && local->shared;
}

static void
reset_wanted(LocalChannel *local)
{
	local->wanted = local->listening;
	if (!local->listening)
		forget_channel(local);
}
