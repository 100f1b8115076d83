/*-------------------------------------------------------------------------
 *
 * first_number.h
 *		The start value of the 64-bit numbers that are compared with each other.
 *
 * In a build with assertions they begin just below 2^32.  So a variable that is too
 * small for one of them fails in every test, and not on a server that has published
 * four billion transactions.  docs/numbers.md lists these numbers.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_FIRST_NUMBER_H
#define PINPOINT_FIRST_NUMBER_H

/* So close that a few notifications are enough. */
#ifdef USE_ASSERT_CHECKING
#define PINPOINT_FIRST_NUMBER	(UINT64CONST(0x100000000) - 3)
#else
#define PINPOINT_FIRST_NUMBER	UINT64CONST(0)
#endif

#endif							/* PINPOINT_FIRST_NUMBER_H */
