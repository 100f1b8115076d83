/** Live queries: rows now, and again after each change. */

import pg from 'pg'
import { ConnectionLost, destroy, fetch, limited } from './connection.js'
import { describe, PinpointError, Signal } from './listener.js'
import { Events } from './queue.js'

/** A consumer of a live query. A slow one gets the newest result. */
export class Live extends Events {
  #shared
  #latest

  constructor(shared) {
    super()
    this.#shared = shared
    shared.consumers.add(this)
    shared.refresh() // a result that is at hand may be older than this call
  }

  put(event) {
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

  put() {
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
    this.#signal.set()
  }

  #tell(event) {
    for (const consumer of this.consumers) consumer.put(event)
  }

  async #run() {
    const { minInterval, minBackoff, maxBackoff } = this.#client.options
    let failures = 0
    let told
    while (!this.#ended) {
      if (!this.#dirty || !this.#client.listener.connected) {
        await this.#signal.wait()
        this.#signal.clear()
        continue
      }
      this.#dirty = false // what changes from now on is in another execution
      const started = performance.now()
      try {
        this.#tell(await this.#execute())
        failures = 0
        told = undefined
        await this.#client.sleep(minInterval - (performance.now() - started) / 1000)
      } catch (error) {
        this.#dirty = true
        failures++
        const message = describe(error)
        if (isOfQuery(error) && message !== told) {
          this.#tell({ event: 'error', message, code: error.code })
          told = message
        }
        await this.#client.sleep(Math.min(maxBackoff, minBackoff * 2 ** Math.min(failures, 30)))
      }
    }
  }

  async #execute() {
    const client = this.#client
    const { generation } = client
    const release = await client.querySlot()
    let connection = client.idle.pop()
    let healthy = false
    try {
      connection ??= await this.#connect()
      const work = async () => {
        await this.#listenToTables(connection)
        return connection.query({ text: this.#text, values: this.#values, rowMode: 'array' })
      }
      const { rows, fields } = await limited(connection, work(), client.options.queryTimeout)
      healthy = true
      if (generation !== client.generation) throw new ConnectionLost('the rows may be from another server')
      return { event: 'rows', rows, columns: fields.map((field) => field.name) }
    } catch (error) {
      healthy = isOfQuery(error)
      throw error
    } finally {
      release()
      if (connection && healthy && generation === client.generation) client.idle.push(connection)
      else if (connection) destroy(connection)
    }
  }

  /** Connect to the server whose changes are heard. */
  async #connect() {
    const client = this.#client
    const server = (position) => position.split('-').slice(0, 2).join('-')
    if (client.listener.position === null)
      throw new PinpointError('live queries need the extension pg_pinpoint 1.1 or later in this database', '0A000')
    const connection = await client.connect()
    try {
      const [position] = await fetch(connection, client.options.timeout, 'SELECT pinpoint.position()')
      if (server(position) !== server(client.listener.position ?? '')) throw new Error('this is another server')
      return connection
    } catch (error) {
      destroy(connection)
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
      if (this.#ended) throw new PinpointError('the live query is closed')
      await this.#signal.wait()
      this.#signal.clear()
    }
  }
}

/** Errors of the query, and not of the connection. */
function isOfQuery(error) {
  return error instanceof PinpointError || error instanceof pg.DatabaseError
}
