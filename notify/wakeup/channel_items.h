/*-------------------------------------------------------------------------
 *
 * channel_items.h
 *		The memory of the channel map, in items of a fixed size.
 *
 * Only the files of the channel map include this header.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_CHANNEL_ITEMS_H
#define PINPOINT_CHANNEL_ITEMS_H

/* Size of an item in bytes. */
#define PINPOINT_ITEM_SIZE		128

/* Number of an item, counted from 1; 0 for none. */
typedef uint32 ItemNumber;

/*
 * An item, as this file sees it.  The lock of a partition of the channel map
 * protects the contents of an item in use; see channel_entry.h.
 */
typedef union ChannelItem
{
	ItemNumber	next_free;		/* of a free item */
	char		contents[PINPOINT_ITEM_SIZE];
} ChannelItem;

/* How much of the memory is in use.  For checks. */
typedef struct PinpointItemsUse
{
	uint32		total;			/* all items */
	uint32		free;			/* as counted */
	uint32		listed;			/* in the list of free items */
	uint32		never_used;
} PinpointItemsUse;

/* Set by the postmaster, and inherited by all processes. */
extern ChannelItem *PinpointChannelItems;

extern Size pinpoint_channel_items_control_size(void);
extern void pinpoint_channel_items_init(char *control, ChannelItem *items,
										Size nitems);
extern bool pinpoint_channel_items_take(int n, ItemNumber *numbers);
extern void pinpoint_channel_items_free(ItemNumber number);
extern void pinpoint_channel_items_set_role(int slotno, Oid roleid);
extern bool pinpoint_channel_items_role_may_have_more(Oid roleid);
extern void pinpoint_channel_items_charge(int slotno, int64 bytes);
#ifdef USE_ASSERT_CHECKING
extern bool pinpoint_channel_item_exists(ItemNumber number);
extern void pinpoint_channel_items_check(PinpointItemsUse *use);
extern int64 pinpoint_channel_items_charged(int slotno);
#endif

/*
 * The contents of an item.
 */
static inline void *
pinpoint_channel_item(ItemNumber number)
{
	Assert(pinpoint_channel_item_exists(number));
	return &PinpointChannelItems[number - 1];
}

#endif							/* PINPOINT_CHANNEL_ITEMS_H */
