/*-------------------------------------------------------------------------
 *
 * first_number.h
 *		The start value of the 64-bit numbers that are compared with each other.
 *
 * In a build with assertions they begin just below 2^32.  So a variable that
 * is too small for one of them fails in every test, and not on a server that
 * has published four billion transactions.  docs/internals.md lists these
 * numbers.
 *
 * These numbers have 32 bits, and can advance without a limit by the number of
 * things that exist at the same time:
 *
 *	commit mark of a process	2 for each commit of the sessions that use it,
 *								so it can wrap after half a day.  Only odd or
 *								even and equality count.  If the waker finds
 *								the same odd number after exactly 2^32, it
 *								waits for one more commit.
 *	reminders of a slot			1 for each reminder, and 0 at the next signal.
 *								They come every 64 seconds, so it wraps after
 *								8,700 years.
 *	turn of a channel			does not wrap: an index below the number of
 *								sessions, which an assertion checks.  After a
 *								wrap, a loop over the members of a group would
 *								miss one, unless their number is a power of
 *								two.
 *	transaction IDs in unfinished.c, first_redo_xid
 *								compared within 2^31.  The next record of
 *								running transactions removes old ones.
 *	transaction ID of an entry in applied_prepared.c
 *								2^32 transactions later, the changes of another
 *								one may not be notified, if the first one was
 *								committed by hand and an apply worker of its
 *								subscription has committed nothing since.
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
