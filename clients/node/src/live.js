/** Live queries: rows now, and again after each change. */

import pg from 'pg'
import { destroy, fetch, limited } from './connection.js'
import { describe, PinpointError, serverOf, Signal } from './listener.js'
import { Events } from './queue.js'

/** A consumer of a live query. A slow one gets the newest event. */
export class Live extends Events {
  #shared
  #latest
  #told // the message, if the last event was an error

  constructor(shared) {
    super()
    this.#shared = shared
    shared.consumers.add(this)
    shared.refresh() // a result that is at hand may be older than this call
  }

  put(event) {
    if (event.event === 'error' && event.message === this.#told) return // it is told once
    this.#told = event.message
    this.#latest = event
    this.wake()
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
  heard = new Set()
  consumers = new Set()
  #client
  #text
  #values
  #connection // of this execution
  #ended = false
  #whenEnded
  #dirty = true
  #signal = new Signal() // something has happened

  constructor(client, text, values, whenEnded) {
    this.#client = client
    this.#text = text
    this.#values = values
    this.#whenEnded = whenEnded
    client.listener.subscribers.add(this)
    this.#run()
  }

  /** Execute the query again. */
  refresh() {
    this.#dirty = true
    this.#signal.set()
  }

  put(event) {
    if (event.event === 'disconnected') this.#tell(event)
    this.refresh()
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
    this.#client.listener.subscribers.delete(this)
    this.#client.listener.changes.set()
    for (const consumer of this.consumers) consumer.end(error)
    if (this.#connection) destroy(this.#connection) // so that another query can have its place
    this.#signal.set()
  }

  #tell(event) {
    for (const consumer of this.consumers) consumer.put(event)
  }

  async #run() {
    const client = this.#client
    const { minInterval, minBackoff, maxBackoff } = client.options
    let failures = 0
    while (!this.#ended) {
      if (!this.#dirty || !client.listener.connected) {
        await this.#signal.wait()
        this.#signal.clear()
        continue
      }
      this.#dirty = false // what changes from now on is in another execution
      const started = performance.now()
      const { generation } = client
      let event
      let pause
      try {
        event = await this.#execute(generation)
        failures = 0
        pause = minInterval - (performance.now() - started) / 1000
      } catch (error) {
        this.#dirty = true
        failures++
        event = { event: 'error', message: describe(error), code: isOfQuery(error) ? error.code : undefined }
        pause = Math.min(maxBackoff, minBackoff * 2 ** Math.min(failures, 30))
      }
      // If the connection was lost meanwhile, "disconnected" was told, and the rows may be from another server.
      if (event && generation === client.generation && !this.#ended) this.#tell(event)
      await client.sleep(pause)
    }
  }

  async #execute(generation) {
    const client = this.#client
    const release = await client.querySlot()
    let healthy = false
    try {
      if (this.#ended) throw closed()
      this.#connection = client.idle.pop()
      if (!this.#connection) await this.#connect()
      const connection = this.#connection
      const work = async () => {
        await this.#listenToTables(connection)
        return connection.query({ text: this.#text, values: this.#values, rowMode: 'array' })
      }
      const { rows, fields } = await limited(connection, work(), client.options.queryTimeout)
      healthy = true
      return { event: 'rows', rows, columns: fields.map((field) => field.name) }
    } catch (error) {
      healthy = isOfQuery(error)
      throw error
    } finally {
      release()
      const connection = this.#connection
      this.#connection = undefined
      if (connection && healthy && generation === client.generation && !this.#ended) client.idle.push(connection)
      else if (connection) destroy(connection)
    }
  }

  /** Connect to the server on which the client listens. */
  async #connect() {
    const client = this.#client
    if (client.listener.position === null)
      throw new PinpointError('live queries need the extension pg_pinpoint 1.1 or later in this database', '0A000')
    const connection = await client.connect()
    this.#connection = connection
    try {
      if (this.#ended) throw closed()
      const [position] = await fetch(connection, client.options.timeout, 'SELECT pinpoint.position()')
      if (serverOf(position) !== serverOf(client.listener.position))
        throw new PinpointError('the connection leads to another server than the one on which the client listens')
    } catch (error) {
      destroy(connection)
      this.#connection = undefined
      throw error
    }
  }

  /** Listen on the channels of the tables that the query reads, before it is executed. */
  async #listenToTables(connection) {
    const text = 'SELECT relation::text, channel::text FROM pinpoint.channels_of($1)'
    const { rows } = await connection.query({ text, values: [this.#text], rowMode: 'array' })
    for (const [table, channel] of rows) {
      if (channel === null)
        throw new PinpointError(`the table "${table}" is not watched: execute SELECT pinpoint.watch(${pg.escapeLiteral(table)})`, '55000')
    }
    const before = this.channels
    this.channels = new Set(rows.map((row) => row[1]))
    this.heard = new Set([...this.channels].filter((channel) => this.heard.has(channel)))
    if (before.size !== this.channels.size || this.heard.size < this.channels.size) this.#client.listener.changes.set()
    while (this.heard.size < this.channels.size) {
      if (this.#ended) throw closed()
      await this.#signal.wait()
      this.#signal.clear()
    }
  }
}

const closed = () => new PinpointError('the live query is closed')

/** Errors of the query, and not of the connection. */
function isOfQuery(error) {
  return error instanceof PinpointError || error instanceof pg.DatabaseError
}
