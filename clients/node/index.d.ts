import type { ClientConfig } from 'pg'

/** Times are in seconds, sizes in bytes. */
export interface Options {
  /** How to hear: LISTEN, pinpoint.wait(), or find out. Default: auto. */
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

/** These channels may have been notified while nobody listened: look at your tables. */
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
  /** SQLSTATE, if the server has sent one. */
  code?: string
}

/** What a subscription gives. */
export type Event = Connected | Changed | Notification | Disconnected

/** What a live query gives. After "disconnected" the rows may be old, until the next "rows". */
export type LiveEvent<Row extends unknown[] = unknown[]> = Rows<Row> | QueryError | Disconnected

/** A subscription or a live query cannot go on. */
export class PinpointError extends Error {
  /** SQLSTATE, if the server has sent one. */
  code?: string
}

export class Subscription implements AsyncIterableIterator<Event> {
  /** Listen on more channels. Each begins with "changed". */
  add(...channels: string[]): void
  remove(...channels: string[]): void
  close(): void
  next(): Promise<IteratorResult<Event>>
  return(): Promise<IteratorResult<Event>>
  [Symbol.asyncIterator](): this
}

export interface Live<Row extends unknown[] = unknown[]> extends AsyncIterableIterator<LiveEvent<Row>> {
  close(): void
}

/** A client of one database. It connects when the first subscription is made. */
export class Client {
  /** config: a connection string, which may have several hosts, or a configuration of pg. */
  constructor(config?: string | ClientConfig, options?: Options)
  /** Listen on channels. Each begins with "changed". */
  subscribe(...channels: string[]): Subscription
  /** The rows of a query now, and after each change of a table that it reads. */
  live<Row extends unknown[] = unknown[]>(query: string, values?: unknown[]): Live<Row>
  /** End all subscriptions, live queries and connections. */
  close(): Promise<void>
}
