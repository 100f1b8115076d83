import type { ClientConfig } from 'pg'

/** Where a client writes what happens to its connections: console has these functions. Never a password, nor a parameter. */
export interface Logger {
  info(message: string): void
  warn(message: string): void
  error(message: string): void
}

/** Times are in milliseconds, up to a day. An undefined option has its default. */
export interface Options {
  /** How the client receives notifications: LISTEN, pinpoint.wait(), or the one that works. Default: auto. */
  mode?: 'auto' | 'push' | 'wait'
  /** Between the beginnings of two executions of a live query. Default: 50. */
  minIntervalMs?: number
  /** Bytes of events for one consumer. Default: 64 MB. */
  buffer?: number
  /** Between two attempts to connect. Default: 100. */
  minBackoffMs?: number
  /** Default: 15000. */
  maxBackoffMs?: number
  /** After so many failed attempts in succession, the client ends with an error. Default: Infinity, which is no limit. */
  maxAttempts?: number
  /** For an attempt to connect and for short queries. Default: 10000. */
  timeoutMs?: number
  /** For one execution of a live query; Infinity is no limit. Default: 60000. */
  queryTimeoutMs?: number
  /** Between two checks of a connection without heartbeats. Default: 10000. */
  checkIntervalMs?: number
  /** In which a notification has to arrive through a pooler. Default: 3000. */
  probeTimeoutMs?: number
  /** Connections that all live queries share. Default: 2. */
  queryConnections?: number
  /** Default: nothing is logged. */
  logger?: Logger
}

/** What a client has done. */
export interface Stats {
  eventsGiven: number
  /** Events that did not fit in the buffer of a consumer. */
  eventsDropped: number
  reconnects: number
  /** Milliseconds since the client has heard of the server; null before. */
  sinceSignOfLifeMs: number | null
}

export interface SubscribeOptions {
  /** Ends the subscription at once: next() rejects with the reason of the signal. */
  signal?: AbortSignal
}

export interface LiveOptions {
  /** Ends the live query for this consumer at once: next() rejects with the reason of the signal. */
  signal?: AbortSignal
  /** A row is an array with its values in the order of columns. Default: an object, as in pg. */
  rowMode?: 'array'
}

export interface NextOptions {
  /** Ends the call of next(), which rejects with the reason of the signal. No event is lost. */
  signal?: AbortSignal
}

/** The connection works, and listens on all channels. */
export interface Connected {
  event: 'connected'
  /** For instance 150018. */
  serverVersion: number
  standby: boolean
  mode: 'push' | 'wait'
}

/** These channels may have been notified while the client did not listen: read your tables. */
export interface Changed {
  event: 'changed'
  channels: string[]
}

export interface Notification {
  event: 'notification'
  channel: string
  payload: string
  /** Process ID of the session that sent it. */
  pid: number
}

/** The connection was lost, or could not be made. The next attempt is in retryInMs milliseconds. */
export interface Disconnected {
  event: 'disconnected'
  reason: string
  retryInMs: number
  /** The error of pg or Node.js. */
  cause?: unknown
}

/** The result of a live query. Other consumers get the same rows: do not modify them. */
export interface Rows<Row = Record<string, unknown>> {
  event: 'rows'
  rows: Row[]
  columns: string[]
}

/** A live query, or the connection for it, has failed. It is tried again. The same error is told once. */
export interface QueryError {
  event: 'error'
  message: string
  /** SQLSTATE: that of the server; 55000 if a table is not watched, 0A000 without pg_pinpoint 1.1. */
  code?: string
  /** The error behind it: that of pg has a detail and a position. */
  cause?: unknown
}

/** What a subscription gives. */
export type Event = Connected | Changed | Notification | Disconnected

/** What a live query gives. After "disconnected" the rows may be old, until the next "rows". */
export type LiveEvent<Row = Record<string, unknown>> = Rows<Row> | QueryError | Disconnected

/** A subscription or a live query cannot go on. */
export class PinpointError extends Error {
  /** The last failure, or the exception that has ended the client. */
  cause?: unknown
  /** ERR_CLIENT_CLOSED after close() of the client. Otherwise of the last failure: the SQLSTATE, or the code of Node.js, such as ECONNREFUSED. */
  code?: string
}

export interface Subscription extends AsyncIterableIterator<Event> {
  /** Listen on more channels. Each begins with "changed". Throws a RangeError if a name is not valid. */
  add(...channels: string[]): void
  /** Listen on fewer channels. Events that are already in the queue still follow. */
  remove(...channels: string[]): void
  /** End the subscription: after the events in the queue, the iterator is done, without an error. */
  close(): void
  /** The next event. Rejects with a PinpointError if the subscription cannot go on, or the client is closed. */
  next(options?: NextOptions): Promise<IteratorResult<Event>>
  /** As close(), without the events in the queue; "break" calls it. A call of next() that waits is done at once. */
  return(): Promise<IteratorResult<Event>>
  /** As close(). */
  [Symbol.asyncDispose](): Promise<void>
  [Symbol.asyncIterator](): this
}

/** next() gives the newest event. It rejects with a PinpointError if the live query cannot go on, or the client is closed. */
export interface Live<Row = Record<string, unknown>> extends AsyncIterableIterator<LiveEvent<Row>> {
  /** End the live query for this consumer: the iterator is done, without an error. The last one also ends its execution. */
  close(): void
  next(options?: NextOptions): Promise<IteratorResult<LiveEvent<Row>>>
  /** As close(); "break" calls it. A call of next() that waits is done at once. */
  return(): Promise<IteratorResult<LiveEvent<Row>>>
  /** As close(). */
  [Symbol.asyncDispose](): Promise<void>
  [Symbol.asyncIterator](): this
}

/** A client of one database. It connects when the first subscription is made. */
export class Client {
  /**
   * config: a connection string, which may have several hosts, or a configuration of pg. Throws a TypeError if an option
   * does not exist or has another type, or the connection string has target_session_attrs, and a RangeError if an option is
   * out of its range.
   */
  constructor(config?: string | ClientConfig, options?: Options)
  /**
   * Listen on channels. Each begins with "changed". Throws a RangeError if a name is empty, longer than 63 bytes, contains
   * NUL or is pinpoint_heartbeat, the PinpointError that has ended the client, and the reason of a signal that is aborted.
   */
  subscribe(...channels: string[]): Subscription
  subscribe(...channelsAndOptions: [...channels: string[], options: SubscribeOptions]): Subscription
  /**
   * The rows of a query now, and after each change of a table that it reads. values: for $1, $2 ... Equal queries
   * share one execution if their values are strings, numbers, bigints, booleans, null, bytes, dates, or arrays of these. Throws
   * the PinpointError that has ended the client, and the reason of a signal that is aborted; an error of the query is an event.
   */
  live<Row extends unknown[] = unknown[]>(query: string, values: unknown[], options: LiveOptions & { rowMode: 'array' }): Live<Row>
  live<Row = Record<string, unknown>>(query: string, values?: unknown[], options?: LiveOptions & { rowMode?: undefined }): Live<Row>
  /** Counters since the client was made. */
  stats(): Stats
  /** End all subscriptions, live queries and connections. The iterators reject with a PinpointError. */
  close(): Promise<void>
  /** As close(). */
  [Symbol.asyncDispose](): Promise<void>
}
