/*-------------------------------------------------------------------------
 *
 * slots.c
 *		One slot per listening session: its state, and what it has not read.
 *
 * A slot is in one of five states:
 *
 *	IDLE			no unread batch.  The slot has no reference to a batch.
 *	RESTING			likewise, but the session will check by itself soon,
 *					because of pinpoint.latency_target or pinpoint.fold; see
 *					listener/pacing.c.
 *	SIGNALLED		a batch for this session was published; its epoch is
 *					pinned, and a signal is pending, or the session will check
 *					by itself.
 *	READING			the session reads from that batch to the one that was the
 *					last when it began.
 *	READING_AGAIN	more batches have been published for it since then.
 *
 * Reassigning a batch to a session counts as publishing it for the session,
 * although the slot has a separate reference for that; see reassign.c.
 *
 * A session that is evicted (see listener/evict.c) is in any of these states
 * until it has ended.  If it was SIGNALLED, it may not have a reference any
 * more.
 *
 *					publish			session
 *	IDLE			SIGNALLED		-
 *	RESTING			SIGNALLED		IDLE when it finds no batch
 *	SIGNALLED		SIGNALLED		READING when it begins to read
 *	READING			READING_AGAIN	IDLE or RESTING when it is done
 *	READING_AGAIN	READING_AGAIN	SIGNALLED when it is done: by itself
 *
 * Only a step to SIGNALLED sends a signal, so at most one is pending for a
 * session, however many batches are published.  From RESTING, it sends one only
 * if the session would not check soon enough.  Batches that are published after
 * the pinned epoch are kept as long as the pin, so the other steps need no
 * separate pin.
 *
 * A session that ends, or does not listen any more, leaves its slot in any
 * state.  No other step exists, and no other file changes a state: see
 * change_state().
 *
 * The session's own steps change only its own slot, and the pins of epochs,
 * which are atomic.  So they take PinpointOrderLock in shared mode.  This
 * excludes publishers, but allows listeners of one notification to begin and
 * end concurrently, and sessions to LISTEN and UNLISTEN concurrently.  Only
 * the session that removes the last pin from the oldest epoch takes the lock
 * exclusively, to free batches that are no longer kept.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "base/check.h"
#include "base/compat.h"
#include "base/counters.h"
#include "base/first_number.h"
#include "queue/message_log.h"
#include "wakeup/slot_private.h"
#include "wakeup/slots.h"
#include "wakeup/waker_list.h"

PinpointSlots *PinpointSlotsShared = NULL;

/* Does this session own its slot? */
static bool registered = false;

/* Does the slot contain the time since when this session is sending? */
static bool sending = false;

/* Number of reminders that this session has handled since it was signalled. */
static uint32 answered = 0;

static PinpointSlot *my_slot(void);
static bool in_my_slot(const void *address);
static void change_state(PinpointSlot *slot, PinpointWakeState from,
						 PinpointWakeState to);
static bool become_signalled(PinpointSlot *slot);
static void become_reading(PinpointSlot *slot);
static void become_reading_again(PinpointSlot *slot);
static void become_idle(PinpointSlot *slot);
static void become_resting(PinpointSlot *slot);
static void stay_signalled(PinpointSlot *slot);
static bool will_check(const PinpointSlot *slot);
static void set_first_reassigned(PinpointBatchRef *field,
								 const PinpointBatchRef *ref);
static PinpointWakeState my_state(void);
static void trim(void);
#ifdef USE_ASSERT_CHECKING
static bool is_permitted(PinpointWakeState from, PinpointWakeState to);
static void check_slot(const PinpointSlot *slot);
#else
#define check_slot(slot)	((void) 0)
#endif

static PinpointSlot *
my_slot(void)
{
	Assert(PINPOINT_MY_SLOT_NUMBER >= 0 &&
		   PINPOINT_MY_SLOT_NUMBER < MaxBackends);
	return &PinpointSlotsShared->slots[PINPOINT_MY_SLOT_NUMBER];
}

/*
 * Is this the address of the slot of this process, or of a field of it?
 */
static bool
in_my_slot(const void *address)
{
	Size		offset = (const char *) address -
		(const char *) PinpointSlotsShared->slots;

	return offset / sizeof(PinpointSlot) == (Size) PINPOINT_MY_SLOT_NUMBER;
}

Size
pinpoint_slots_shmem_size(void)
{
	return add_size(offsetof(PinpointSlots, slots),
					mul_size(MaxBackends, sizeof(PinpointSlot)));
}

void
pinpoint_slots_shmem_init(void *memory)
{
	PinpointSlotsShared = memory;
	for (int i = 0; i < PINPOINT_NWAKES_FOR_ALL; i++)
		dlist_init(&PinpointSlotsShared->wakes_for_all[i]);
	pg_atomic_init_u64(&PinpointSlotsShared->last_listen,
					   PINPOINT_FIRST_NUMBER);
	pg_atomic_init_u64(&PinpointSlotsShared->fold_time, 0);
	pg_atomic_init_u32(&PinpointSlotsShared->nevicted, 0);
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u64(&PinpointSlotsShared->slots[i].last_listen, 0);
		pg_atomic_init_u64(&PinpointSlotsShared->slots[i].sending_since, 0);
	}
}

/*
 * Register the slot of this session, unless it is registered: the session
 * begins to listen.
 *
 * While pid is 0, publishers skip the slot.  Therefore the lock is acquired in
 * shared mode, and sessions that execute LISTEN or UNLISTEN do not wait for
 * each other.  The fields are set before pid, for readers that hold the lock
 * in shared mode.
 */
void
pinpoint_slot_register(void)
{
	PinpointSlot *slot = my_slot();

	AssertNoLockHeld();
	if (registered)
		return;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	Assert(readable(slot)->pid == 0);
	check_slot(slot);

	/*
	 * A reader that holds the lock in shared mode, too, can have seen the pid
	 * of the former owner.  So dboid and proc are never cleared.
	 */
	memset(&writable(slot)->roleid, 0,
		   sizeof(PinpointSlotState) - offsetof(PinpointSlotState, roleid));
	/* In shared mode, as no other session uses it: pid is 0. */
	memset(&slot->locked_publication, 0, sizeof(PinpointSlotPublication));
	writable(slot)->dboid = MyDatabaseId;
	writable(slot)->proc = MyProc;
	writable(slot)->roleid = GetSessionUserId();
	writable(slot)->state = PINPOINT_IDLE;
	slot->nchannels = 0;
	slot->ending = false;
	pg_atomic_write_u64(&slot->sending_since, 0);

	/*
	 * Partner: pinpoint_slots_read_listener_pid().  Without this, it could
	 * see pid, and its caller the fields of the former owner.
	 */
	pg_write_barrier();
	writable(slot)->pid = MyProcPid;
	check_slot(slot);
	LWLockRelease(PinpointOrderLock);
	answered = 0;
	sending = false;
	registered = true;
}

/*
 * Unregister the slot: this session does not listen any more, or ends.  Its
 * references to batches are removed.  Does not fail.
 */
void
pinpoint_slot_unregister(void)
{
	PinpointSlot *slot = my_slot();
	bool		trim_log;

	AssertNoLockHeld();
	if (!registered)
		return;
	pinpoint_slot_set_wakes_for_all(false);
	registered = false;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	Assert(readable(slot)->pid == MyProcPid);
	check_slot(slot);
	trim_log = pinpoint_slot_set_ref(&writable(slot)->unread, NULL);
	trim_log |= pinpoint_slot_set_ref(&writable(slot)->reassigned, NULL);
	trim_log |= pinpoint_slot_set_ref(&writable(slot)->reassigned_again, NULL);
	writable(slot)->again.batch = NULL;
	writable(slot)->state = PINPOINT_IDLE;
	if (readable(slot)->evicted != PINPOINT_NOT_EVICTED)
		pg_atomic_fetch_sub_u32(&PinpointSlotsShared->nevicted, 1);
	writable(slot)->pid = 0;
	check_slot(slot);
	LWLockRelease(PinpointOrderLock);
	if (trim_log)
		trim();
}

bool
pinpoint_slot_registered(void)
{
	return registered;
}

/*
 * The session user of this session when it began to listen.  SET SESSION
 * AUTHORIZATION does not change the result while the session listens on any
 * channel.
 */
Oid
pinpoint_slot_role(void)
{
	Assert(registered && readable(my_slot())->pid == MyProcPid);
	return readable(my_slot())->roleid;
}

/*
 * Set whether this session has channels that do not fit into the channel map,
 * or are not known yet.  If so, publications of all channels in its database
 * find it.  Set to true before pinpoint_slot_join(), and so before the commit
 * of the LISTEN.
 *
 * A sender that sees this commit finds the session, because it acquires
 * PinpointOrderLock later, to publish.
 */
void
pinpoint_slot_set_wakes_for_all(bool wakes_for_all)
{
	PinpointSlot *slot = my_slot();

	AssertNoLockHeld();

	/* Only this session changes it. */
	if (!registered || read_publication(slot)->wakes_for_all == wakes_for_all)
		return;

	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	Assert(readable(slot)->pid == MyProcPid);
	write_publication(slot)->wakes_for_all = wakes_for_all;
	if (wakes_for_all)
		dlist_push_tail(wakes_for_all_in(MyDatabaseId),
						&write_publication(slot)->wakes_for_all_link);
	else
		dlist_delete(&write_publication(slot)->wakes_for_all_link);
	pinpoint_slots_check(false);
	LWLockRelease(PinpointOrderLock);
}

/*
 * Take a number for a LISTEN.  Called before its commit, and after its
 * channels are in the channel map.  So senders that have read the map before
 * find this session; see wakeup.c.
 */
void
pinpoint_slot_join(void)
{
	uint64		number;

	AssertNoLockHeld();
	Assert(registered && readable(my_slot())->pid == MyProcPid);

	/*
	 * Step 2 of the proof in wakeup.c.  The increment is a release, so step 1
	 * is visible before it.  Partner: the barrier in
	 * pinpoint_wakeup_find_early() and pinpoint_wakeup_find_replayed().
	 * Without it, a sender could read this number, and the map without the
	 * channels of this session.
	 */
	number = pg_atomic_add_fetch_u64(&PinpointSlotsShared->last_listen, 1);
	Assert(number > pg_atomic_read_u64(&my_slot()->last_listen));

	/* step 3 of that proof */
	pg_atomic_write_u64(&my_slot()->last_listen, number);

	/*
	 * The number is visible before the commit, step 4.  Partner: the
	 * acquisition of PinpointOrderLock in pinpoint_publication_begin().
	 * Without this, a sender that commits after this session could publish
	 * with the former number of the slot.
	 *
	 * It is also visible before the number of the last publication is read,
	 * step 11.  Partner: the barrier in pinpoint_message_log_next_sequence();
	 * see there.
	 */
	pg_memory_barrier();
}

/*
 * Set whether notifications can be assigned to this session.  Set to false
 * when it shares no channel any more, and has reassigned all notifications
 * that were assigned to it.
 */
void
pinpoint_slot_set_shares(bool shares)
{
	AssertNoLockHeld();

	/* Only this session changes it. */
	if (!registered || readable(my_slot())->shares == shares)
		return;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	Assert(readable(my_slot())->pid == MyProcPid);
	writable(my_slot())->shares = shares;
	LWLockRelease(PinpointOrderLock);
}

/*
 * Set whether this session listens on the channel of heartbeats.  Set to true
 * before the commit of the LISTEN.
 *
 * begins: this transaction is the first one in which the session listens.  It
 * has missed nothing: the client can rely only on what commits after this
 * transaction, and asks about earlier changes after the commit.
 *
 * Returns false, and does not set it, if the session may have missed
 * notifications since it began to listen: a heartbeat would cover these.
 */
bool
pinpoint_slot_set_heartbeats(bool heartbeats, bool begins)
{
	bool		allowed;

	AssertNoLockHeld();
	Assert(registered);
	Assert(heartbeats || !begins);

	/* The lock excludes pinpoint_evict_heartbeat_listeners(). */
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	if (begins)
		writable(my_slot())->missed = false;
	allowed = !heartbeats || !readable(my_slot())->missed;
	if (allowed)
		writable(my_slot())->heartbeats = heartbeats;
	LWLockRelease(PinpointOrderLock);
	return allowed;
}

/*
 * Set the number of channels of this session, for the views.
 */
void
pinpoint_slot_set_channels(uint32 nchannels)
{
	Assert(registered && readable(my_slot())->pid == MyProcPid);
	Assert(nchannels > 0);

	my_slot()->nchannels = nchannels;
}

/*
 * Set one of the references of a slot that pin an epoch, or remove it if
 * ref is NULL or without a batch.  Pins the new epoch, and removes the pin
 * of the former one.
 *
 * field: the field of the slot; or a variable of this process, which pins a
 * batch for a short time.
 *
 * The caller holds PinpointOrderLock: exclusively unless the slot is its own,
 * and if it has not pinned this epoch or an earlier one.
 *
 * Returns true if the former pin may have been the last one of the oldest
 * epoch.  The caller must then call pinpoint_message_log_trim().
 */
bool
pinpoint_slot_set_ref(PinpointBatchRef *field,
					  const PinpointBatchRef *ref)
{
	PinpointBatchRef former = *field;

	AssertHeld(PinpointOrderLock);
	if (!in_my_slot(field))
		AssertHeldExclusive(PinpointOrderLock);

	if (ref != NULL && ref->batch != NULL)
	{
		Assert(ref->sequence > 0 &&
			   ref->sequence <= pinpoint_message_log_sequence());
		pinpoint_message_log_pin(ref->epoch);
		*field = *ref;
	}
	else
		field->batch = NULL;
	return former.batch != NULL && pinpoint_message_log_unpin(former.epoch);
}

/*
 * Change the state of a slot.  The functions below are the only callers, one
 * for each step of the table at the top of this file.
 *
 * The caller holds PinpointOrderLock: exclusively unless the slot is its own.
 */
static void
change_state(PinpointSlot *slot, PinpointWakeState from, PinpointWakeState to)
{
	AssertHeld(PinpointOrderLock);
	if (!in_my_slot(slot))
		AssertHeldExclusive(PinpointOrderLock);
	Assert(readable(slot)->pid != 0 && readable(slot)->state == from);
	Assert(is_permitted(from, to));

	writable(slot)->state = to;
}

/*
 * IDLE or RESTING to SIGNALLED: a batch is published for the session.  Returns
 * true if it needs a signal.  A RESTING session needs none, unless it is this
 * session, which does not wait for its own notifications.
 */
static bool
become_signalled(PinpointSlot *slot)
{
	bool		checks_by_itself = readable(slot)->state == PINPOINT_RESTING &&
		readable(slot)->pid != MyProcPid && will_check(slot);

	/* A publisher excludes the session, also if it is this one. */
	AssertHeldExclusive(PinpointOrderLock);
	change_state(slot, readable(slot)->state, PINPOINT_SIGNALLED);
	writable(slot)->signalled_at = 0;
	writable(slot)->reminders = 0;
	if (!checks_by_itself)
		write_publication(slot)->wakeups++;
	return !checks_by_itself;
}

/*
 * SIGNALLED to READING: the session begins to read.
 */
static void
become_reading(PinpointSlot *slot)
{
	Assert(in_my_slot(slot));
	change_state(slot, PINPOINT_SIGNALLED, PINPOINT_READING);
}

/*
 * READING to READING_AGAIN, unless it has this state: a batch is published for
 * the session.
 */
static void
become_reading_again(PinpointSlot *slot)
{
	AssertHeldExclusive(PinpointOrderLock);
	if (readable(slot)->state != PINPOINT_READING_AGAIN)
		change_state(slot, PINPOINT_READING, PINPOINT_READING_AGAIN);
}

/*
 * READING_AGAIN to SIGNALLED: the session is done, and has more to read.
 */
static void
stay_signalled(PinpointSlot *slot)
{
	Assert(in_my_slot(slot));
	change_state(slot, PINPOINT_READING_AGAIN, PINPOINT_SIGNALLED);
}

/*
 * READING or RESTING to IDLE: the session has nothing to read.
 */
static void
become_idle(PinpointSlot *slot)
{
	Assert(in_my_slot(slot));
	change_state(slot, readable(slot)->state, PINPOINT_IDLE);
}

/*
 * READING to RESTING: the session has nothing to read, and will check.
 */
static void
become_resting(PinpointSlot *slot)
{
	Assert(in_my_slot(slot));
	change_state(slot, PINPOINT_READING, PINPOINT_RESTING);
}

/*
 * Will a RESTING session check in time?  It may not if the clock was set back,
 * because PostgreSQL's timeouts use the clock, or if it should have checked
 * long ago.
 */
static bool
will_check(const PinpointSlot *slot)
{
	TimestampTz now = GetCurrentTimestamp();

	return now >= readable(slot)->rests_from &&
		now <= TimestampTzPlusMilliseconds(readable(slot)->rests_until,
										   PINPOINT_REMINDER_INTERVAL);
}

/*
 * A batch was published for a session.  Returns true if the session needs a
 * signal.  The caller holds PinpointOrderLock exclusively.
 */
bool
pinpoint_slot_publish(PinpointSlot *slot, const PinpointBatchRef *ref)
{
	bool		needs_signal = false;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(readable(slot)->pid != 0 &&
		   readable(slot)->evicted == PINPOINT_NOT_EVICTED);
	check_slot(slot);

	switch (readable(slot)->state)
	{
		case PINPOINT_IDLE:
		case PINPOINT_RESTING:
			(void) pinpoint_slot_set_ref(&writable(slot)->unread, ref);
			needs_signal = become_signalled(slot);
			break;
		case PINPOINT_SIGNALLED:
			/* It may have been signalled for a reassigned notification. */
			if (readable(slot)->unread.batch == NULL)
				(void) pinpoint_slot_set_ref(&writable(slot)->unread, ref);
			break;
		case PINPOINT_READING:
		case PINPOINT_READING_AGAIN:
			become_reading_again(slot);
			if (readable(slot)->again.batch == NULL)
				writable(slot)->again = *ref;
			break;
	}
	check_slot(slot);
	return needs_signal;
}

/*
 * A notification of a batch was reassigned to a session.  Returns true if the
 * session needs a signal.  The caller holds PinpointOrderLock exclusively.
 */
bool
pinpoint_slot_reassign(PinpointSlot *slot, const PinpointBatchRef *ref)
{
	bool		needs_signal = false;
	bool		reads = readable(slot)->state == PINPOINT_READING ||
		readable(slot)->state == PINPOINT_READING_AGAIN;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(readable(slot)->pid != 0 &&
		   readable(slot)->evicted == PINPOINT_NOT_EVICTED);
	Assert(readable(slot)->shares);
	check_slot(slot);

	set_first_reassigned(reads ? &writable(slot)->reassigned_again :
						 &writable(slot)->reassigned, ref);

	switch (readable(slot)->state)
	{
		case PINPOINT_IDLE:
		case PINPOINT_RESTING:
			needs_signal = become_signalled(slot);
			break;
		case PINPOINT_SIGNALLED:
			break;
		case PINPOINT_READING:
		case PINPOINT_READING_AGAIN:
			become_reading_again(slot);
			break;
	}
	check_slot(slot);
	return needs_signal;
}

/*
 * Set the reference to the first batch with a reassigned notification, if this
 * batch comes before it.
 */
static void
set_first_reassigned(PinpointBatchRef *field, const PinpointBatchRef *ref)
{
	uint64		bytes;

	AssertHeldExclusive(PinpointOrderLock);

	/* The backlog of the session begins with the first reassignment. */
	if (field->batch == NULL)
		bytes = pinpoint_message_log_bytes();
	else if (ref->sequence < field->sequence)
		bytes = field->bytes;
	else
		return;
	(void) pinpoint_slot_set_ref(field, ref);
	field->bytes = bytes;
}

/*
 * Free the space of the epochs that are no longer kept.
 */
static void
trim(void)
{
	AssertLocksBelow(PINPOINT_RANK_ORDER);
	pinpoint_lock_acquire(PinpointOrderLock, LW_EXCLUSIVE);
	pinpoint_message_log_trim();
	LWLockRelease(PinpointOrderLock);
}

/*
 * The state of this session.  It is read at every commit of a session that
 * listens, so this takes no lock.  If the result is outdated, a signal
 * follows.
 */
static PinpointWakeState
my_state(void)
{
	if (!registered)
		return PINPOINT_IDLE;
	return read_unlocked(my_slot())->state;
}

/*
 * Is the state SIGNALLED, so that this session must read?
 */
bool
pinpoint_slot_pending(void)
{
	return my_state() == PINPOINT_SIGNALLED;
}

/*
 * Is the state RESTING, so that this session must check by itself?
 */
bool
pinpoint_slot_resting(void)
{
	return my_state() == PINPOINT_RESTING;
}

/*
 * Is the state SIGNALLED or RESTING?  The state is read only once, because it
 * can change from RESTING to SIGNALLED, without a signal, between two reads.
 */
bool
pinpoint_slot_to_look(void)
{
	PinpointWakeState state = my_state();

	return state == PINPOINT_SIGNALLED || state == PINPOINT_RESTING;
}

/*
 * End the state RESTING: this session checks now, or cannot check by itself
 * later.  From now on, it needs a signal.
 */
void
pinpoint_slot_stop_resting(void)
{
	PinpointSlot *slot = my_slot();

	AssertNoLockHeld();
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	if (readable(slot)->state == PINPOINT_RESTING)
		become_idle(slot);
	check_slot(slot);
	LWLockRelease(PinpointOrderLock);
}

/*
 * Did this session receive a reminder that it has not handled yet?  Returns
 * true only once for each reminder.
 */
bool
pinpoint_slot_reminded(void)
{
	uint32		reminders;

	if (!registered)
		return false;
	reminders = read_unlocked(my_slot())->reminders;
	if (reminders <= answered)
		return false;
	answered = reminders;
	return true;
}

/*
 * The reason why this session was told to end, or PINPOINT_NOT_EVICTED.
 */
PinpointEviction
pinpoint_slot_evicted(void)
{
	return registered ?
		read_unlocked(my_slot())->evicted :
		PINPOINT_NOT_EVICTED;
}

/*
 * This session, which was told to end, reports why it ends.  So it needs no
 * further signal.  False: it has not ended.
 */
void
pinpoint_slot_set_ending(bool ending)
{
	Assert(registered && pinpoint_slot_evicted() != PINPOINT_NOT_EVICTED);
	my_slot()->ending = ending;
}

/*
 * Add the processor time of a delivery with pinpoint.fold, in microseconds.
 * Returns the sum of all deliveries.
 *
 * The sum determines only the length of pauses (see listener/pacing.c), so no
 * lock is needed.
 */
uint64
pinpoint_slots_add_fold_time(uint64 time)
{
	return pg_atomic_add_fetch_u64(&PinpointSlotsShared->fold_time, time);
}

/*
 * This session has been sending notifications since this time; 0: it does not
 * send.
 */
void
pinpoint_slot_set_sending(TimestampTz since)
{
	if (registered && (since != 0 || sending))
		pg_atomic_write_u64(&my_slot()->sending_since, (uint64) since);
	sending = since != 0;
}

/*
 * Begin to read.  All unread batches stay pinned.  Returns false if there are
 * none, or if the session was told to end.
 */
bool
pinpoint_slot_begin_reading(PinpointReading *reading)
{
	PinpointSlot *slot = my_slot();
	bool		result = false;

	AssertNoLockHeld();
	Assert(registered);
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	if (readable(slot)->state == PINPOINT_SIGNALLED &&
		readable(slot)->evicted == PINPOINT_NOT_EVICTED &&
		(readable(slot)->unread.batch != NULL ||
		 readable(slot)->reassigned.batch != NULL))
	{
		become_reading(slot);
		answered = 0;
		reading->reassigned = readable(slot)->reassigned.batch;
		reading->first = readable(slot)->unread.batch;
		reading->last = pinpoint_message_log_last();
		reading->queued_for_waker =
			pinpoint_waker_list_contains(PINPOINT_MY_SLOT_NUMBER);
		result = true;
	}
	check_slot(slot);
	LWLockRelease(PinpointOrderLock);
	return result;
}

/*
 * All batches before the given one have been read: remove their pin.
 */
void
pinpoint_slot_advance(PinpointBatch *next)
{
	PinpointBatchRef ref = pinpoint_message_log_ref(next);
	bool		trim_log;

	AssertNoLockHeld();
	Assert(registered);
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	Assert(readable(my_slot())->state == PINPOINT_READING ||
		   readable(my_slot())->state == PINPOINT_READING_AGAIN);
	Assert(readable(my_slot())->unread.batch == NULL ||
		   readable(my_slot())->unread.sequence < ref.sequence);
	trim_log = pinpoint_slot_set_ref(&writable(my_slot())->unread, &ref);
	check_slot(my_slot());
	LWLockRelease(PinpointOrderLock);
	if (trim_log)
		trim();
}

/*
 * End to read.
 *
 * delivered: number of notifications that were delivered.  rests_from: time of
 * the last delivery.  rests_until: if not 0, the time at which the session
 * will check by itself, if it has no unread batches now.
 *
 * Returns true if there are more unread batches.  The session must then begin
 * to read again, without a signal.
 */
bool
pinpoint_slot_end_reading(uint64 delivered, TimestampTz rests_from,
						  TimestampTz rests_until)
{
	PinpointSlot *slot = my_slot();
	bool		more;
	bool		trim_log;

	AssertNoLockHeld();
	Assert(registered);
	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	writable(slot)->delivered += delivered;
	trim_log =
		pinpoint_slot_set_ref(&writable(slot)->unread, &readable(slot)->again);
	writable(slot)->again.batch = NULL;
	pg_write_barrier();			/* partner: first_sequence() of slots_read.c */
	trim_log |= pinpoint_slot_set_ref(&writable(slot)->reassigned,
									  &readable(slot)->reassigned_again);
	pg_write_barrier();
	trim_log |= pinpoint_slot_set_ref(&writable(slot)->reassigned_again, NULL);
	more = readable(slot)->unread.batch != NULL ||
		readable(slot)->reassigned.batch != NULL;
	if (more)
		stay_signalled(slot);
	else if (rests_until != 0)
		become_resting(slot);
	else
		become_idle(slot);
	writable(slot)->rests_from = rests_from;
	writable(slot)->rests_until = rests_until;
	writable(slot)->signalled_at = 0;
	writable(slot)->reminders = 0;
	check_slot(slot);
	LWLockRelease(PinpointOrderLock);
	if (trim_log)
		trim();
	pinpoint_counter_add(MyDatabaseId, PINPOINT_COUNT_DELIVERED, delivered);
	return more;
}

/*
 * Mark a slot as evicted, if it is not yet.  Release its unread batches if its
 * session is not reading, and cannot reassign notifications.  The caller holds
 * PinpointOrderLock exclusively.
 *
 * Returns whether the session has to be told.  Sets *trim_needed to true if the
 * caller must call pinpoint_message_log_trim().
 */
bool
pinpoint_slot_evict(int slotno, PinpointEviction reason, bool *trim_needed)
{
	PinpointSlot *slot = &PinpointSlotsShared->slots[slotno];
	bool		is_first = readable(slot)->evicted == PINPOINT_NOT_EVICTED;
	bool		tell;

	AssertHeldExclusive(PinpointOrderLock);
	Assert(readable(slot)->pid != 0 && reason != PINPOINT_NOT_EVICTED);

	if (is_first)
	{
		pinpoint_counter_add(readable(slot)->dboid,
							 PINPOINT_COUNT_DISCONNECTED, 1);
		pg_atomic_fetch_add_u32(&PinpointSlotsShared->nevicted, 1);
		writable(slot)->evicted_at = GetCurrentTimestamp();
	}

	/* With this reason, the session does not reassign notifications. */
	tell = is_first || (reason == PINPOINT_EVICTED_QUEUE_FULL &&
						readable(slot)->evicted != PINPOINT_EVICTED_QUEUE_FULL);
	if (tell)
		writable(slot)->evicted = reason;

	/* A session that was reading when evicted may have finished since. */
	if (readable(slot)->state == PINPOINT_SIGNALLED && !readable(slot)->shares)
	{
		PinpointSlotState *state = writable(slot);

		*trim_needed |= pinpoint_slot_set_ref(&state->unread, NULL);
		*trim_needed |= pinpoint_slot_set_ref(&state->reassigned, NULL);
	}
	return tell;
}

/*
 * The owner of a slot may have missed notifications.  The caller holds
 * PinpointOrderLock exclusively.
 */
void
pinpoint_slot_set_missed(int slotno)
{
	AssertHeldExclusive(PinpointOrderLock);
	Assert(readable(&PinpointSlotsShared->slots[slotno])->pid != 0);

	writable(&PinpointSlotsShared->slots[slotno])->missed = true;
}

#ifdef USE_ASSERT_CHECKING
/* One of so many calls of pinpoint_slots_check() checks all slots. */
#define CHECK_INTERVAL	8

/*
 * The steps of the table at the top of this file.
 */
static bool
is_permitted(PinpointWakeState from, PinpointWakeState to)
{
	switch (to)
	{
		case PINPOINT_IDLE:
			return from == PINPOINT_RESTING || from == PINPOINT_READING;
		case PINPOINT_RESTING:
			return from == PINPOINT_READING;
		case PINPOINT_SIGNALLED:
			return from == PINPOINT_IDLE || from == PINPOINT_RESTING ||
				from == PINPOINT_READING_AGAIN;
		case PINPOINT_READING:
			return from == PINPOINT_SIGNALLED;
		case PINPOINT_READING_AGAIN:
			return from == PINPOINT_READING;
	}
	return false;
}

/*
 * The invariants of a slot.  The caller holds PinpointOrderLock: exclusively
 * unless the slot is its own.
 */
static void
check_slot(const PinpointSlot *slot)
{
	bool		unread = readable(slot)->unread.batch != NULL;
	bool		again = readable(slot)->again.batch != NULL;
	bool		reassigned = readable(slot)->reassigned.batch != NULL;
	bool		reassigned_again =
		readable(slot)->reassigned_again.batch != NULL;

	AssertHeld(PinpointOrderLock);
	if (!in_my_slot(slot))
		AssertHeldExclusive(PinpointOrderLock);

	if (readable(slot)->pid == 0)
	{
		Assert(readable(slot)->state == PINPOINT_IDLE);
		Assert(!read_publication(slot)->wakes_for_all);
	}
	switch (readable(slot)->state)
	{
		case PINPOINT_IDLE:
		case PINPOINT_RESTING:
			Assert(!unread && !reassigned);
			Assert(!again && !reassigned_again);
			break;
		case PINPOINT_SIGNALLED:
			Assert(unread || reassigned ||
				   readable(slot)->evicted != PINPOINT_NOT_EVICTED);
			Assert(!again && !reassigned_again);
			break;
		case PINPOINT_READING:
			Assert(unread || reassigned);
			Assert(!again && !reassigned_again);
			break;
		case PINPOINT_READING_AGAIN:
			Assert(unread || reassigned);
			Assert(again || reassigned_again);
			Assert(!again || !unread ||
				   readable(slot)->again.sequence >
				   readable(slot)->unread.sequence);
			break;
	}
}

/*
 * The invariants of all slots, of the list of the waker, and of the list of
 * slots that wake for all.  The caller holds PinpointOrderLock exclusively.
 *
 * always: false after a change; then only some calls check anything.
 */
void
pinpoint_slots_check(bool always)
{
	static uint32 calls = 0;
	int			nwake_for_all = 0;
	dlist_iter	iter;

	AssertHeldExclusive(PinpointOrderLock);
	if (calls++ % CHECK_INTERVAL != 0 && !always)
		return;

	for (int i = 0; i < MaxBackends; i++)
	{
		const PinpointSlot *slot = &PinpointSlotsShared->slots[i];

		check_slot(slot);
		nwake_for_all += read_publication(slot)->wakes_for_all;
	}

	pinpoint_waker_list_check();

	for (int i = 0; i < PINPOINT_NWAKES_FOR_ALL; i++)
	{
		dlist_foreach(iter, &PinpointSlotsShared->wakes_for_all[i])
		{
			PinpointSlot *slot =
				dlist_container(PinpointSlot,
								locked_publication.wakes_for_all_link,
								iter.cur);

			Assert(read_publication(slot)->wakes_for_all);
			Assert(wakes_for_all_in(readable(slot)->dboid) ==
				   &PinpointSlotsShared->wakes_for_all[i]);
			nwake_for_all--;
		}
	}
	Assert(nwake_for_all == 0);
}
#endif
