/** Live queries: rows now, and again after each change. */

import pg from 'pg'
import { backoff } from './backoff.js'
import { Condition } from './condition.js'
import { destroy, fetch, hasEnded, OWN_SESSION, limited } from './connection.js'
import { describe, isOfQuery, logged, ofLoop, PinpointError } from './errors.js'
import { Events } from './events.js'
import { OTHER_SERVER, serverOf } from './listener.js'

/** A consumer of a live query. A slow one gets the newest event. */
export class Live extends Events {
  #shared
  #latest
  #told // the last event, if it was an error

  constructor(client, shared, signal) {
    super(client, signal)
    this.#shared = shared
    shared.consumers.add(this)
    const current = client.listener.current()
    const failure = current?.event === 'disconnected' ? current : shared.failure
    if (failure) this.put(failure)
    shared.refresh() // a result that is at hand may be older than this call
  }

  put(event) {
    const isError = event.event === 'error'
    if (isError && event.message === this.#told?.message && event.code === this.#told.code) return // it is told once
    this.#told = isError ? event : undefined
    this.#latest = event
    this.news.set()
  }

  take() {
    const event = this.#latest
    this.#latest = undefined
    return event
  }

  close() {
    this.end()
    this.#shared.remove(this)
  }
}

/** One query that is executed for all its consumers. For the listener, it is a subscriber. */
export class LiveQuery {
  channels = new Set()
  untold = new Set()
  consumers = new Set()
  failure // the last event, if it was an error
  #client
  #query
  #whenEnded
  #connection // of this execution
  #ended = false
  #failures = 0 // in succession
  #dirty = new Condition() // it has to be executed

  constructor(client, query, whenEnded) {
    this.#client = client
    this.#query = query
    this.#whenEnded = whenEnded
    client.listener.channels.subscribers.add(this)
    this.#run().catch((error) => {
      client.log('error', `a live query ends: ${logged(error)}`)
      this.end(ofLoop(error))
    })
  }

  /** Execute the query again. */
  refresh() {
    this.#dirty.set()
  }

  put(event) {
    if (event.event === 'disconnected') this.#tell(event)
    else this.refresh()
  }

  putChanged() {
    this.refresh()
  }

  remove(consumer) {
    this.consumers.delete(consumer)
    if (this.consumers.size === 0) this.end()
  }

  end(error) {
    if (this.#ended) return
    this.#ended = true
    this.#whenEnded()
    this.#client.listener.channels.forget(this)
    for (const consumer of this.consumers) consumer.end(error)
    if (this.#connection) destroy(this.#connection) // so that another query can have its place
    this.#dirty.set()
  }

  #tell(event) {
    this.failure = event.event === 'error' ? event : undefined
    for (const consumer of this.consumers) consumer.put(event)
  }

  async #run() {
    const { connections, listener, options } = this.#client
    while (!this.#ended) {
      await this.#dirty.wait()
      const place = await connections.takePlace()
      this.#dirty.clear() // what changes from now on is in another execution
      const { connected } = listener
      const started = performance.now()
      const event = await this.#execute(place)
      connections.givePlace(place)
      if (!event) continue
      // If the connection was lost meanwhile, "disconnected" was told, and the rows may be from another server.
      if (connected === listener.connected && !this.#ended) this.#tell(event)
      const pause = this.#failures ? backoff(this.#failures, options) : options.minIntervalMs - (performance.now() - started)
      await this.#client.sleep(pause)
    }
  }

  /** Returns "rows", "error", or nothing if it is too early: then refresh() is called when the client is connected and listens. */
  async #execute(place) {
    const { listener, options } = this.#client
    const isTime = () => listener.connected && !this.#ended
    const used = place.connection?.lost ? undefined : place.connection
    try {
      if (isTime() && (!place.connection || place.connection.lost)) place.connection = await this.#connect()
      if (!isTime()) return undefined
      const { connection } = place
      this.#connection = connection
      const work = async () => {
        if (await this.#listenToTables(connection)) return connection.query(this.#query)
      }
      const result = await limited(connection, work(), options.queryTimeoutMs)
      if (!result) return undefined
      this.#failures = 0
      return { event: 'rows', rows: result.rows, columns: result.fields.map((field) => field.name) }
    } catch (error) {
      if (used && hasEnded(used, error) && isTime()) {
        destroy(used) // It has ended while it was idle, or by the query itself, which the next one will show.
        return await this.#execute(place)
      }
      if (this.#connection && !isOfQuery(error)) destroy(this.#connection)
      if (this.#failures++ === 0 && !this.#ended) this.#client.log('warn', `a live query has failed: ${logged(error)}`)
      this.refresh()
      return { event: 'error', message: describe(error), code: isOfQuery(error) ? error.code : undefined, cause: error }
    } finally {
      this.#connection = undefined
    }
  }

  /** Connect to the server on which the client listens. */
  async #connect() {
    const { connections, listener, options } = this.#client
    if (listener.refusesLive) throw listener.refusesLive
    const connection = await connections.connect()
    try {
      const [position] = await fetch(connection, options.timeoutMs, `SELECT pinpoint.position(), ${OWN_SESSION}`, [connection.processID])
      if (serverOf(position) !== serverOf(listener.position)) throw new PinpointError(OTHER_SERVER)
      return connection
    } catch (error) {
      destroy(connection)
      throw error
    }
  }

  /** Listen on the channels of the tables that the query reads. Returns whether the connection listened on all before. */
  async #listenToTables(connection) {
    const { rows } = await connection.query({ text: CHANNELS_OF, values: [this.#query.text], rowMode: 'array' })
    if (this.#ended) return false
    for (const [table, channel] of rows) {
      if (channel === null)
        throw new PinpointError(`the table "${table}" is not watched: execute SELECT pinpoint.watch(${pg.escapeLiteral(table)})`, '55000')
    }
    const index = this.#client.listener.channels
    const channels = new Set(rows.map(([, channel]) => channel))
    for (const channel of channels) index.enter(this, channel)
    for (const channel of this.channels) if (!channels.has(channel)) index.leave(this, channel)
    return this.untold.size === 0
  }
}

const CHANNELS_OF = 'SELECT relation::text, channel::text FROM pinpoint.channels_of($1)'
