import type { ClientConfig } from 'pg'

/** Times are in seconds, sizes in bytes. */
export interface Options {
  /** How the client receives notifications: LISTEN, pinpoint.wait(), or the one that works. Default: auto. */
  mode?: 'auto' | 'push' | 'wait'
  /** Between the beginnings of two executions of a live query. Default: 0.05. */
  minInterval?: number
  /** Of events for one consumer. Default: 64 MB. */
  buffer?: number
  /** Between two attempts to connect. Default: 0.1. */
  minBackoff?: number
  /** Default: 15. */
  maxBackoff?: number
  /** After so many failed attempts in succession, subscriptions end with an error. Default: no limit. */
  maxAttempts?: number
  /** For an attempt to connect and for short queries. Default: 10. */
  timeout?: number
  /** For a live query. Default: 60. */
  queryTimeout?: number
  /** Between two checks of a connection without heartbeats. Default: 10. */
  checkInterval?: number
  /** In which a notification has to arrive through a pooler. Default: 3. */
  probeTimeout?: number
  /** Connections that all live queries share. Default: 2. */
  queryConnections?: number
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

/** The connection was lost, or could not be made. The next attempt is in retryIn seconds. */
export interface Disconnected {
  event: 'disconnected'
  reason: string
  retryIn: number
}

/** The result of a live query. Each row has its values in the order of columns. */
export interface Rows<Row extends unknown[] = unknown[]> {
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
}

/** What a subscription gives. */
export type Event = Connected | Changed | Notification | Disconnected

/** What a live query gives. After "disconnected" the rows may be old, until the next "rows". */
export type LiveEvent<Row extends unknown[] = unknown[]> = Rows<Row> | QueryError | Disconnected

/** A subscription or a live query cannot go on. */
export class PinpointError extends Error {
  /** The SQLSTATE of the server, or the code of Node.js for the last failure, such as ECONNREFUSED. */
  code?: string
}

export class Subscription implements AsyncIterableIterator<Event> {
  /** Listen on more channels. Each begins with "changed". Throws a RangeError if a name is not valid. */
  add(...channels: string[]): void
  /** Listen on fewer channels. Events that are already in the queue still follow. */
  remove(...channels: string[]): void
  /** End the subscription: after the events in the queue, the iterator is done, without an error. */
  close(): void
  /** The next event. Rejects with a PinpointError if the subscription cannot go on, or the client is closed. */
  next(): Promise<IteratorResult<Event>>
  /** As close(); "break" calls it. */
  return(): Promise<IteratorResult<Event>>
  [Symbol.asyncIterator](): this
}

/** next() gives the newest event. It rejects with a PinpointError if the live query cannot go on, or the client is closed. */
export interface Live<Row extends unknown[] = unknown[]> extends AsyncIterableIterator<LiveEvent<Row>> {
  /** End the live query for this consumer: the iterator is done, without an error. The last one also ends its execution. */
  close(): void
}

/** A client of one database. It connects when the first subscription is made. */
export class Client {
  /**
   * config: a connection string, which may have several hosts, or a configuration of pg. Throws a TypeError if an option
   * does not exist, or the mode is none of the three, or the connection string has target_session_attrs.
   */
  constructor(config?: string | ClientConfig, options?: Options)
  /**
   * Listen on channels. Each begins with "changed". Throws a RangeError if a name is empty, longer than 63 bytes, contains
   * NUL or is pinpoint_heartbeat, and the PinpointError that has ended the client.
   */
  subscribe(...channels: string[]): Subscription
  /**
   * The rows of a query now, and after each change of a table that it reads. values: for $1, $2 ... Throws the PinpointError
   * that has ended the client; an error of the query is an event.
   */
  live<Row extends unknown[] = unknown[]>(query: string, values?: unknown[]): Live<Row>
  /** End all subscriptions, live queries and connections. The iterators reject with a PinpointError. */
  close(): Promise<void>
}
