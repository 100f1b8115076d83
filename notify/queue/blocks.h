/*-------------------------------------------------------------------------
 *
 * blocks.h
 *		The space of the message log, in blocks of a fixed size.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_BLOCKS_H
#define PINPOINT_BLOCKS_H

extern Size pinpoint_blocks_size(void);
extern uint32 pinpoint_blocks_max_epochs(void);
extern Size pinpoint_blocks_shmem_size(void);
extern void pinpoint_blocks_shmem_init(void *memory, uint64 first_epoch);
extern bool pinpoint_blocks_reserve(Size size, Size usable, Size *offset);
extern Size pinpoint_blocks_needed(Size size);
extern void pinpoint_blocks_publish(Size offset, Size size, uint64 epoch);
extern void pinpoint_blocks_withdraw(Size offset, Size size);
extern uint64 pinpoint_blocks_oldest_epoch(void);
extern void pinpoint_blocks_release_before(uint64 epoch);
extern Size pinpoint_blocks_used(void);
extern bool pinpoint_blocks_use_file(void);
#ifdef USE_ASSERT_CHECKING
extern void pinpoint_blocks_check(void);
#endif

#endif							/* PINPOINT_BLOCKS_H */
