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
extern uint32 pinpoint_blocks_number(void);
extern Size pinpoint_blocks_shmem_size(void);
extern void pinpoint_blocks_shmem_init(void);
extern bool pinpoint_blocks_reserve(Size size, Size usable, Size *offset);
extern Size pinpoint_blocks_needed(Size size);
extern void pinpoint_blocks_publish(Size offset, Size size, uint64 epoch);
extern void pinpoint_blocks_withdraw(Size offset, Size size);
extern void pinpoint_blocks_release_before(uint64 epoch);
extern Size pinpoint_blocks_used(void);
extern bool pinpoint_blocks_use_file(void);

#endif							/* PINPOINT_BLOCKS_H */
