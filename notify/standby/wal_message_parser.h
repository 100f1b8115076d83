/*-------------------------------------------------------------------------
 *
 * wal_message_parser.h
 *		Parses the messages that wal_messages.c writes to the WAL.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#ifndef PINPOINT_WAL_MESSAGE_PARSER_H
#define PINPOINT_WAL_MESSAGE_PARSER_H

#include "queue/batch.h"

typedef enum PinpointMessageKind
{
	PINPOINT_MESSAGE_INVALID,	/* not in the format of any version */
	PINPOINT_MESSAGE_NEWER,		/* in a newer format: notifications, for all
								 * that this server knows */
	PINPOINT_MESSAGE_LEFT_OUT,	/* the transaction does not replicate its
								 * notifications */
	PINPOINT_MESSAGE_RAISE_FLOOR,	/* the transaction creates the extension */
	PINPOINT_MESSAGE_NOTIFICATIONS	/* a part of its notifications */
} PinpointMessageKind;

/*
 * A message of a transaction.  The other fields are 0, except in a message of
 * the kind NOTIFICATIONS.
 */
typedef struct PinpointMessage
{
	PinpointMessageKind kind;
	int32		sender_pid;
	uint32		nchannels;		/* of the transaction */
	uint32		nnotifications;
	Size		body_size;		/* bytes of the body of its batch */
	Size		offset;			/* bytes of it that earlier messages contain */
	const char *lines;			/* the contents: whole lines */
	const char *end;
} PinpointMessage;

extern void pinpoint_wal_message_parser_read(const char *contents, Size size,
											 PinpointMessage *message);
extern void pinpoint_wal_message_parser_add_lines(const PinpointMessage *message,
												  PinpointBatchWriter *writer);

#endif							/* PINPOINT_WAL_MESSAGE_PARSER_H */
