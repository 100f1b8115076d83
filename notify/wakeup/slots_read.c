/*-------------------------------------------------------------------------
 *
 * slots_read.c
 *		What a process reads of the slots of all sessions.
 *
 * Nothing here changes a slot.  A session changes its own slot while it holds
 * PinpointOrderLock in shared mode.  So a reader that does not hold the lock
 * exclusively can see two fields that do not belong together.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/qunique.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/builtins.h"

#include "base/check.h"
#include "queue/message_log.h"
#include "wakeup/slot_private.h"
#include "wakeup/slots.h"
#include "wakeup/slots_read.h"

static bool has_ref(const PinpointBatchRef *ref);
static uint64 first_sequence(const PinpointSlot *slot);
static uint64 lag(const PinpointSlot *slot);

/*
 * Does a slot have this reference?  The owner can change it concurrently, if
 * the caller holds PinpointOrderLock only in shared mode.
 */
static bool
has_ref(const PinpointBatchRef *ref)
{
	return *(PinpointBatch *const volatile *) &ref->batch != NULL;
}

/*
 * Number of the first publication that a slot pins; 0 if there is none.  The
 * caller holds PinpointOrderLock, shared or exclusive.
 */
static uint64
first_sequence(const PinpointSlot *slot)
{
	uint64		sequence = PG_UINT64_MAX;

	AssertHeld(PinpointOrderLock);

	/*
	 * Partner: pinpoint_slot_end_reading(), which sets these references in
	 * the opposite order.  Otherwise a reader could see none of them, though
	 * the slot has always had one.
	 */
	if (has_ref(&readable(slot)->reassigned_again))
		sequence = readable(slot)->reassigned_again.sequence;
	pg_read_barrier();
	if (has_ref(&readable(slot)->reassigned))
		sequence = Min(sequence, readable(slot)->reassigned.sequence);
	pg_read_barrier();
	if (has_ref(&readable(slot)->unread))
		sequence = Min(sequence, readable(slot)->unread.sequence);
	Assert(sequence == PG_UINT64_MAX ||
		   sequence <= pinpoint_message_log_sequence());
	return sequence != PG_UINT64_MAX ? sequence : 0;
}

/*
 * The backlog of a session: bytes published since its first unread batch, or,
 * if this is more, since the first reassignment to it.  It is 0 if it has
 * nothing to read.  The caller holds PinpointOrderLock, shared or exclusive.
 */
static uint64
lag(const PinpointSlot *slot)
{
	uint64		bytes = pinpoint_message_log_bytes();
	uint64		from = bytes;

	AssertHeld(PinpointOrderLock);

	/* in the order that first_sequence() explains */
	if (has_ref(&readable(slot)->reassigned_again))
		from = readable(slot)->reassigned_again.bytes;
	pg_read_barrier();
	if (has_ref(&readable(slot)->reassigned))
		from = Min(from, readable(slot)->reassigned.bytes);
	pg_read_barrier();
	if (has_ref(&readable(slot)->unread))
		from = Min(from, readable(slot)->unread.bytes);
	Assert(from <= bytes);
	return bytes - from;
}

/*
 * Process ID of the session that listens with this slot; 0 if there is none.
 *
 * For readers that do not hold PinpointOrderLock exclusively.  If the result
 * is not 0, they can read the fields that the owner has set before pid.
 */
int
pinpoint_slots_read_listener_pid(const PinpointSlot *slot)
{
	int			pid = read_unlocked(slot)->pid;

	/*
	 * Partner: pinpoint_slot_register().  Without this, the caller could see
	 * pid, and the fields of the former owner.
	 */
	if (pid != 0)
		pg_read_barrier();
	return pid;
}

int
pinpoint_slots_read_pid(int slotno)
{
	PinpointSlot *slot = &PinpointSlotsShared->slots[slotno];

	return pinpoint_slots_read_listener_pid(slot);
}

/*
 * Is there a session that was told to end?  Takes no lock.
 */
bool
pinpoint_slots_read_any_evicted(void)
{
	return pg_atomic_read_u32(&PinpointSlotsShared->nevicted) != 0;
}

/*
 * Read what decides about the eviction of the owner of a slot.  Returns false
 * if the slot has no owner.  The caller holds PinpointOrderLock, shared or
 * exclusive.
 */
bool
pinpoint_slots_read_owner(int slotno, PinpointSlotOwner *owner)
{
	PinpointSlot *slot = &PinpointSlotsShared->slots[slotno];

	AssertHeld(PinpointOrderLock);
	Assert(slotno >= 0 && slotno < MaxBackends);

	owner->pid = pinpoint_slots_read_listener_pid(slot);
	if (owner->pid == 0)
		return false;
	owner->dboid = readable(slot)->dboid;
	owner->proc = readable(slot)->proc;
	owner->evicted = readable(slot)->evicted;
	owner->evicted_at = readable(slot)->evicted_at;
	owner->ending = *(const volatile bool *) &slot->ending;
	owner->heartbeats = readable(slot)->heartbeats;
	owner->wakes_for_all = read_publication(slot)->wakes_for_all;
	owner->sending_since =
		(TimestampTz) pg_atomic_read_u64(&slot->sending_since);
	owner->first_sequence = first_sequence(slot);
	owner->lag = lag(slot);
	return true;
}

/*
 * Set listens[] for each slot whose owner listens in a database.  Returns the
 * number of these slots.
 *
 * listens: an array of MaxBackends elements, all false.
 *
 * Takes no lock.  If the caller has read PinpointSlots.last_listen before, this
 * finds all sessions whose number is not above that value: a session sets pid
 * before it takes a number; see wakeup.c.
 */
int
pinpoint_slots_read_listeners(Oid dboid, bool *listens)
{
	int			n = 0;

	AssertNoLockHeld();
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotsShared->slots[i];

		Assert(!listens[i]);
		if (pinpoint_slots_read_listener_pid(slot) != 0 &&
			read_unlocked(slot)->dboid == dboid)
		{
			listens[i] = true;
			n++;
		}
	}
	return n;
}

/*
 * Find the databases in which a session listens on the channel of heartbeats.
 * Returns their number.
 *
 * dboids: an array of MaxBackends elements.
 */
int
pinpoint_slots_read_heartbeat_databases(Oid *dboids)
{
	int			n = 0;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotsShared->slots[i];

		if (pinpoint_slots_read_listener_pid(slot) != 0 &&
			readable(slot)->heartbeats)
			dboids[n++] = readable(slot)->dboid;
	}
	LWLockRelease(PinpointOrderLock);

	qsort(dboids, n, sizeof(Oid), oid_cmp);
	return (int) qunique(dboids, n, sizeof(Oid), oid_cmp);
}

/*
 * Copy the data of all listeners to copy[], an array of MaxBackends elements.
 * Returns their number.
 */
int
pinpoint_slots_read_all(PinpointListenerStats *copy)
{
	int			n = 0;

	pinpoint_lock_acquire(PinpointOrderLock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		PinpointSlot *slot = &PinpointSlotsShared->slots[i];
		PinpointListenerStats *stats = &copy[n];
		int			pid = pinpoint_slots_read_listener_pid(slot);

		if (pid == 0)
			continue;

		/* The copy has this pid, also if the owner ends to listen meanwhile. */
		n++;
		stats->pid = pid;
		stats->dboid = readable(slot)->dboid;
		stats->state = readable(slot)->state;
		stats->nchannels = slot->nchannels;
		stats->wakeups = read_publication(slot)->wakeups;
		stats->delivered = readable(slot)->delivered;
		stats->wakes_for_all = read_publication(slot)->wakes_for_all;
		stats->roleid = readable(slot)->proc->roleId;
		stats->backlog_bytes = lag(slot);
		stats->backlog_batches = 0;
		stats->oldest_unread = 0;
		if (has_ref(&readable(slot)->unread))
		{
			stats->backlog_batches = pinpoint_message_log_sequence() -
				readable(slot)->unread.sequence + 1;
			stats->oldest_unread = readable(slot)->unread.published_at;
		}
	}
	LWLockRelease(PinpointOrderLock);
	return n;
}
