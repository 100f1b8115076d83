/*-------------------------------------------------------------------------
 *
 * channel_items.c
 *		The memory of the channel map, in items of a fixed size.
 *
 * An item contains an entry of the map, or a part of the tree of its
 * listeners; see channel_entry.c.  This file knows neither: it takes items,
 * frees them, and decides how much a role may have.
 *
 * dshash in a DSA area is not suitable, for two reasons.  dshash doubles its
 * table while it holds the locks of all partitions, and senders would wait for
 * that.  And an area of limited size loses some memory with each allocation
 * that fails, so a user could use up all of it permanently.
 *
 * Fair shares.  Any user can fill the memory.  Therefore a role gets no
 * further item if it would then have more memory than is free.  So one role
 * gets at most about half of the memory, the next one about half of the rest,
 * and so on.  What a session uses is charged to its account, and the account
 * has the role of the session.
 *
 * A build with assertions overwrites an item that becomes free.  When the item
 * is taken again, it must still have these contents.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/spin.h"

#include "base/check.h"
#include "wakeup/channel_items.h"

/* In a build with assertions, a free item is filled with this byte. */
#define FREED_BYTE		0x7F

/* The partition of an item and the mode of the lock are not known here. */
#define AssertAnyPartitionHeld() \
	Assert(!IsUnderPostmaster || \
		   pinpoint_lock_highest_rank() == PINPOINT_RANK_CHANNEL_MAP)

/*
 * Memory of the map that is charged to a session.
 *
 * bytes is changed atomically, by this or another session that holds the lock
 * of the partition of an entry on which this session listens.
 */
typedef struct Account
{
	pg_atomic_uint32 roleid;	/* written by the session */
	pg_atomic_uint64 bytes;
} Account;

/*
 * first_free, ntaken: protected by items_lock.  Items with a number above
 * ntaken were never in use, so their memory need not be allocated yet.
 *
 * nfree: number of free items.  Changed under items_lock, read without it.
 */
typedef struct ItemsControl
{
	slock_t		items_lock;
	ItemNumber	first_free;
	uint32		ntaken;
	pg_atomic_uint32 nfree;
	Account		accounts[FLEXIBLE_ARRAY_MEMBER];	/* array of MaxBackends
													 * elements */
} ItemsControl;

/* Set by the postmaster, and inherited by all processes. */
ChannelItem *PinpointChannelItems = NULL;
static ItemsControl *items_control = NULL;
static uint32 total_items = 0;

#ifdef USE_ASSERT_CHECKING
static void overwrite_item(ItemNumber number);
static bool is_overwritten(ItemNumber number);
#endif

Size
pinpoint_channel_items_control_size(void)
{
	return CACHELINEALIGN(add_size(offsetof(ItemsControl, accounts),
								   mul_size(MaxBackends, sizeof(Account))));
}

/*
 * Create the items, all free.  The postmaster calls this at start and at
 * restart after a crash.
 *
 * control: pinpoint_channel_items_control_size() bytes of shared memory.
 * items: memory for nitems items.
 */
void
pinpoint_channel_items_init(char *control, ChannelItem *items, Size nitems)
{
	Assert(!IsUnderPostmaster);
	Assert(nitems > 0 && nitems <= PG_INT32_MAX);

	items_control = (ItemsControl *) control;
	PinpointChannelItems = items;
	total_items = (uint32) nitems;

	SpinLockInit(&items_control->items_lock);
	items_control->first_free = 0;
	items_control->ntaken = 0;
	pg_atomic_init_u32(&items_control->nfree, total_items);
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&items_control->accounts[i].roleid, InvalidOid);
		pg_atomic_init_u64(&items_control->accounts[i].bytes, 0);
	}
}

/*
 * Take n items.  Returns false, and takes none, if there are not enough.
 *
 * The caller holds the lock of a partition exclusively.
 */
bool
pinpoint_channel_items_take(int n, ItemNumber *numbers)
{
	bool		enough;

	AssertAnyPartitionHeld();
	Assert(n > 0);

	SpinLockAcquire(&items_control->items_lock);
	enough = pg_atomic_read_u32(&items_control->nfree) >= (uint32) n;
	for (int i = 0; enough && i < n; i++)
	{
		numbers[i] = items_control->first_free;
		if (numbers[i] != 0)
			items_control->first_free =
				PinpointChannelItems[numbers[i] - 1].next_free;
		else
			numbers[i] = ++items_control->ntaken;
	}
	if (enough)
		pg_atomic_write_u32(&items_control->nfree,
							pg_atomic_read_u32(&items_control->nfree) - n);
	SpinLockRelease(&items_control->items_lock);

#ifdef USE_ASSERT_CHECKING
	for (int i = 0; enough && i < n; i++)
		Assert(is_overwritten(numbers[i]));
#endif
	return enough;
}

/*
 * The caller holds the lock of a partition exclusively.
 */
void
pinpoint_channel_items_free(ItemNumber number)
{
	AssertAnyPartitionHeld();
	Assert(pinpoint_channel_item_exists(number));
#ifdef USE_ASSERT_CHECKING
	overwrite_item(number);
#endif

	SpinLockAcquire(&items_control->items_lock);
	PinpointChannelItems[number - 1].next_free = items_control->first_free;
	items_control->first_free = number;
	pg_atomic_write_u32(&items_control->nfree,
						pg_atomic_read_u32(&items_control->nfree) + 1);
	SpinLockRelease(&items_control->items_lock);
}

/*
 * Set the role of the account of a session.  The account is empty, or already
 * has this role.
 */
void
pinpoint_channel_items_set_role(int slotno, Oid roleid)
{
	Account    *account = &items_control->accounts[slotno];

	Assert(slotno >= 0 && slotno < MaxBackends);
	Assert(pg_atomic_read_u64(&account->bytes) == 0 ||
		   pg_atomic_read_u32(&account->roleid) == roleid);
	pg_atomic_write_u32(&account->roleid, roleid);
}

/*
 * May a role use one more item?  Takes no lock: concurrent changes of accounts
 * make the answer slightly inexact.
 */
bool
pinpoint_channel_items_role_may_have_more(Oid roleid)
{
	Size		nfree = pg_atomic_read_u32(&items_control->nfree);
	Size		of_role = 0;

	Assert(OidIsValid(roleid));
	Assert(nfree <= total_items);

	/* The usual case: all roles together use less than what is free. */
	if (total_items - nfree < nfree)
		return true;

	for (int i = 0; i < MaxBackends; i++)
	{
		Account    *account = &items_control->accounts[i];

		if (pg_atomic_read_u32(&account->roleid) == roleid)
			of_role += pg_atomic_read_u64(&account->bytes);
	}
	return of_role < nfree * PINPOINT_ITEM_SIZE;
}

/*
 * Add bytes, which can be negative, to the account of a session.
 *
 * The caller holds the lock of a partition exclusively.
 */
void
pinpoint_channel_items_charge(int slotno, int64 bytes)
{
	uint64		charged PG_USED_FOR_ASSERTS_ONLY;

	AssertAnyPartitionHeld();
	Assert(slotno >= 0 && slotno < MaxBackends);
	charged = pg_atomic_add_fetch_u64(&items_control->accounts[slotno].bytes,
									  bytes);
	Assert((int64) charged >= 0);
}

#ifdef USE_ASSERT_CHECKING
/*
 * Was the item ever in use?  Takes no lock: ntaken only grows, and a process
 * that got the number of an item from another one has taken the lock of a
 * partition since.
 */
bool
pinpoint_channel_item_exists(ItemNumber number)
{
	return number >= 1 &&
		number <= *(volatile uint32 *) &items_control->ntaken;
}

static void
overwrite_item(ItemNumber number)
{
	memset(&PinpointChannelItems[number - 1], FREED_BYTE, PINPOINT_ITEM_SIZE);
}

/*
 * Is a free item as it was when it became free, but for its first bytes, or
 * has it never been in use?
 */
static bool
is_overwritten(ItemNumber number)
{
	const char *contents = PinpointChannelItems[number - 1].contents;
	char		last = contents[PINPOINT_ITEM_SIZE - 1];

	if (last != FREED_BYTE && last != 0)
		return false;
	for (int i = sizeof(ItemNumber); i < PINPOINT_ITEM_SIZE; i++)
	{
		if (contents[i] != last)
			return false;
	}
	return true;
}

/*
 * Check the list of free items, and set *use.
 */
void
pinpoint_channel_items_check(PinpointItemsUse *use)
{
	SpinLockAcquire(&items_control->items_lock);
	use->total = total_items;
	use->free = pg_atomic_read_u32(&items_control->nfree);
	use->never_used = total_items - items_control->ntaken;
	use->listed = 0;
	for (ItemNumber number = items_control->first_free;
		 number != 0 && number <= items_control->ntaken &&
		 use->listed <= items_control->ntaken;
		 number = PinpointChannelItems[number - 1].next_free)
		use->listed++;
	SpinLockRelease(&items_control->items_lock);

	/* A circle would be longer, a number of no item would end the list. */
	Assert(use->never_used <= use->total);
	Assert(use->listed + use->never_used == use->free);
}

/*
 * What is charged to a session, in bytes.
 */
int64
pinpoint_channel_items_charged(int slotno)
{
	Assert(slotno >= 0 && slotno < MaxBackends);
	return (int64) pg_atomic_read_u64(&items_control->accounts[slotno].bytes);
}
#endif
