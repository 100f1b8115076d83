/*-------------------------------------------------------------------------
 *
 * position_text.h
 *		The text of a position.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_POSITION_TEXT_H
#define PINPOINT_POSITION_TEXT_H

/* Length of the text of a position, in bytes, without the terminating zero. */
#define PINPOINT_POSITION_LENGTH	76

extern Size pinpoint_position_text_shmem_size(void);
extern void pinpoint_position_text_shmem_init(void *memory);
extern void pinpoint_position_text_format(uint64 counter, Oid dboid,
										  char *text);
extern bool pinpoint_position_text_parse(const char *text, uint64 *counter,
										 bool *known);

#endif							/* PINPOINT_POSITION_TEXT_H */
