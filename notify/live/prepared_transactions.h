/*-------------------------------------------------------------------------
 *
 * prepared_transactions.h
 *		Prepared transactions of this database: their names and their locks.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_PREPARED_TRANSACTIONS_H
#define PINPOINT_PREPARED_TRANSACTIONS_H

#include "nodes/pg_list.h"
#include "storage/lock.h"

/* A lock of a prepared transaction on a table or on an extension. */
typedef struct PinpointPreparedLock
{
	LockTagType type;			/* LOCKTAG_RELATION: a table; LOCKTAG_OBJECT:
								 * an extension */
	Oid			oid;
	LOCKMASK	modes;			/* the modes that it holds */
} PinpointPreparedLock;

extern List *pinpoint_prepared_transactions_find(const char *gid,
												 bool is_prefix);
extern int	pinpoint_prepared_transaction_number(TransactionId xid);
extern bool pinpoint_prepared_transaction_in_progress(int number,
													  TransactionId xid);
extern int	pinpoint_prepared_transaction_copy_locks(int number,
													 PinpointPreparedLock *locks,
													 int size);
extern PinpointPreparedLock *pinpoint_prepared_transaction_locks(TransactionId xid,
																 int *n);

#endif							/* PINPOINT_PREPARED_TRANSACTIONS_H */
