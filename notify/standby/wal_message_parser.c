/*-------------------------------------------------------------------------
 *
 * wal_message_parser.c
 *		Parses the messages that wal_messages.c writes to the WAL.
 *
 * wal_messages.c describes the format.  The startup process reads a message
 * after PostgreSQL has replayed its record.  Other programs on the primary can
 * write WAL, too, so nothing here relies on the contents: what is not valid is
 * not added to the batch, which remains incomplete.  No function allocates
 * memory, or raises an error.
 *
 * Copyright (c) 2026, pg_pinpoint contributors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "base/check.h"
#include "base/request.h"
#include "standby/wal_message_parser.h"
#include "standby/wal_messages.h"

/* The numbers in the first line of a message. */
enum
{
	VERSION,
	SENDER_PID,
	CHANNELS,
	NOTIFICATIONS,
	BODY_SIZE,
	OFFSET,
	NNUMBERS
};

StaticAssertDecl(PINPOINT_OLDEST_MESSAGE_VERSION <= PINPOINT_MESSAGE_VERSION,
				 "a server reads the messages that it writes");

static PinpointMessageKind kind_of(bool complete, const uint64 *numbers);
static bool read_numbers(const char **cursor, const char *end,
						 uint64 *numbers);
static bool read_number(const char **cursor, const char *end, char terminator,
						uint64 *number);
static bool add_line(PinpointBatchWriter *writer, const char *line,
					 const char *end);

/*
 * Read the first line of a message.
 *
 * contents: size bytes of a WAL record.  The result points to them.
 */
void
pinpoint_wal_message_parser_read(const char *contents, Size size,
								 PinpointMessage *message)
{
	const char *cursor = contents;
	const char *end = contents + size;
	uint64		numbers[NNUMBERS] = {0};
	bool		complete = read_numbers(&cursor, end, numbers);

	AssertStartupProcess();
	Assert(cursor >= contents && cursor <= end);

	memset(message, 0, sizeof(PinpointMessage));
	message->kind = kind_of(complete, numbers);
	if (message->kind != PINPOINT_MESSAGE_NOTIFICATIONS)
		return;
	message->sender_pid = (int32) numbers[SENDER_PID];
	message->nchannels = (uint32) numbers[CHANNELS];
	message->nnotifications = (uint32) numbers[NOTIFICATIONS];
	message->body_size = numbers[BODY_SIZE];
	message->offset = numbers[OFFSET];
	message->lines = cursor;
	message->end = end;
}

/*
 * complete: the first line has all numbers.
 */
static PinpointMessageKind
kind_of(bool complete, const uint64 *numbers)
{
	if (numbers[VERSION] > PINPOINT_MESSAGE_VERSION)
		return PINPOINT_MESSAGE_NEWER;
	if (!complete ||
		numbers[VERSION] < PINPOINT_OLDEST_MESSAGE_VERSION ||
		numbers[SENDER_PID] > PG_INT32_MAX ||
		numbers[CHANNELS] > PG_INT32_MAX ||
		numbers[NOTIFICATIONS] > PG_INT32_MAX ||
		numbers[BODY_SIZE] != MAXALIGN(numbers[BODY_SIZE]))
		return PINPOINT_MESSAGE_INVALID;
	if (numbers[CHANNELS] == 0 && numbers[OFFSET] == PINPOINT_OFFSET_LEFT_OUT)
		return PINPOINT_MESSAGE_LEFT_OUT;
	if (numbers[CHANNELS] == 0 &&
		numbers[OFFSET] == PINPOINT_OFFSET_RAISE_FLOOR)
		return PINPOINT_MESSAGE_RAISE_FLOOR;
	return PINPOINT_MESSAGE_NOTIFICATIONS;
}

/*
 * Read the numbers of the first line.  Returns false if not all of them are
 * there.
 */
static bool
read_numbers(const char **cursor, const char *end, uint64 *numbers)
{
	for (int i = 0; i < NNUMBERS; i++)
	{
		if (!read_number(cursor, end,
						 i < NNUMBERS - 1 ? ' ' : '\n',
						 &numbers[i]))
			return false;
	}
	return true;
}

/*
 * Read a number of at most 18 digits, and the character after it.  Returns
 * false if they are not there.
 */
static bool
read_number(const char **cursor, const char *end, char terminator,
			uint64 *number)
{
	const char *digit = *cursor;

	*number = 0;
	while (digit < end && digit - *cursor < 18 &&
		   isdigit((unsigned char) *digit))
		*number = *number * 10 + (*digit++ - '0');
	if (digit == *cursor || digit == end || *digit != terminator)
		return false;
	*cursor = digit + 1;
	return true;
}

/*
 * Add the lines of a message of notifications to the batch of its transaction.
 * Stops at a line that is not valid.  Does nothing if a message before it is
 * missing.
 */
void
pinpoint_wal_message_parser_add_lines(const PinpointMessage *message,
									  PinpointBatchWriter *writer)
{
	const char *line = message->lines;

	AssertStartupProcess();
	Assert(message->kind == PINPOINT_MESSAGE_NOTIFICATIONS);
	Assert(writer->batch != NULL);

	if (writer->written != message->offset)
		return;
	while (line < message->end)
	{
		const char *line_end = memchr(line, '\n', message->end - line);

		if (line_end == NULL || !add_line(writer, line, line_end))
			return;
		line = line_end + 1;
	}
}

/*
 * Add one line: a channel, or a notification.  Returns false if it is not
 * valid.
 */
static bool
add_line(PinpointBatchWriter *writer, const char *line, const char *end)
{
	uint64		number = 0;
	char	   *string;
	Size		available;
	Size		len = 0;

	if (pinpoint_batch_has_channels(writer) &&
		(!read_number(&line, end, '\t', &number) || number > PG_INT32_MAX))
		return false;
	string = pinpoint_batch_next_string(writer, &available);
	if (string == NULL)
		return false;

	for (; line < end; line++)
	{
		char		c = *line;

		if (c == '\\')
		{
			if (++line == end)
				return false;
			c = *line == 'n' ? '\n' : *line;
		}
		if (len == available)
			return false;
		string[len++] = c;
	}

	/*
	 * NOTIFY refuses the channel of the heartbeat.  If the WAL contains such
	 * a notification nevertheless, it must not reach listeners of heartbeats.
	 */
	if (!pinpoint_batch_has_channels(writer))
	{
		string[len] = '\0';
		if (pinpoint_is_heartbeat_channel(string))
			string[0] = pg_toupper(string[0]);
	}
	return pinpoint_batch_add_record(writer, (uint32) number, len);
}
