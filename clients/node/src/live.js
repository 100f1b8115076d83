/** Live queries: rows now, and again after each change. */

import pg from 'pg'
import { destroy, fetch, limited } from './connection.js'
import { describe, PinpointError } from './listener.js'

/** One query that is executed for all its consumers. */
export class LiveQuery {
  consumers = new Set()
  #client
  #text
  #values
  #subscription
  #dirty = true
  #wake = () => {}
  #ended = false

  constructor(client, text, values, subscription) {
    this.#client = client
    this.#text = text
    this.#values = values
    this.#subscription = subscription
    this.#watch()
    this.done = this.#run()
  }

  /** Execute the query again. */
  refresh() {
    this.#dirty = true
    this.#wake()
  }

  end() {
    this.#ended = true
    this.#subscription.close()
    this.#wake()
  }

  #tell(event) {
    for (const consumer of this.consumers) consumer.put(event)
  }

  async #watch() {
    try {
      for await (const _ of this.#subscription) this.refresh()
    } catch (error) {
      for (const consumer of this.consumers) consumer.end(error)
    }
  }

  async #run() {
    const { minInterval, minBackoff, maxBackoff } = this.#client.options
    let failures = 0
    let told
    while (!this.#ended && !this.#client.closed) {
      if (!this.#dirty) {
        await new Promise((resolve) => (this.#wake = resolve))
        continue
      }
      const { listener } = this.#client
      if (!listener.connected) {
        await Promise.race([listener.ready.wait(), this.#client.sleep(1)])
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
        if (/^[0-9A-Z]{5}$/.test(error.code ?? '') && message !== told) {
          this.#tell({ event: 'error', message, code: error.code })
          told = message
        }
        await this.#client.sleep(Math.min(maxBackoff, minBackoff * 2 ** Math.min(failures, 30)))
      }
    }
  }

  async #execute() {
    const client = this.#client
    const release = await client.querySlot()
    const { generation } = client
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
      return { event: 'rows', rows, columns: fields.map((field) => field.name) }
    } catch (error) {
      healthy = error instanceof PinpointError || error instanceof pg.DatabaseError
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
    const subscription = this.#subscription
    const text = 'SELECT relation::text, channel::text FROM pinpoint.channels_of($1)'
    const { rows } = await connection.query({ text, values: [this.#text], rowMode: 'array' })
    for (const [table, channel] of rows) {
      if (channel === null)
        throw new PinpointError(`the table "${table}" is not watched: execute SELECT pinpoint.watch(${pg.escapeLiteral(table)})`, '55000')
    }
    const channels = new Set(rows.map((row) => row[1]))
    subscription.remove(...[...subscription.channels].filter((channel) => !channels.has(channel)))
    subscription.add(...[...channels].filter((channel) => !subscription.channels.has(channel)))
    while ([...channels].some((channel) => !subscription.heard.has(channel))) {
      subscription.told.clear()
      await subscription.told.wait()
    }
  }
}
