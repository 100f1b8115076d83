/** The client: subscriptions and live queries over few connections. index.d.ts describes the API. */

import { checkChannels } from './channels.js'
import { Condition } from './condition.js'
import { Connections } from './connection.js'
import { PinpointError } from './errors.js'
import { Listener } from './listener.js'
import { Live, LiveQuery } from './live_query.js'
import { checkConsumerOptions, checkOptions } from './options.js'
import { copyOf, keyOf } from './parameters.js'
import { Subscription } from './subscription.js'

export { PinpointError }

export class Client {
  listener = null
  counts = { eventsGiven: 0, eventsDropped: 0, reconnects: 0 }
  #error = null // the final one
  #ended = new Condition()
  #live = new Map()

  constructor(config = {}, options = {}) {
    this.options = checkOptions(options)
    this.connections = new Connections(config, this.options)
  }

  subscribe(...channels) {
    const last = channels.at(-1)
    const options = typeof last === 'object' && last && !Array.isArray(last) ? channels.pop() : {}
    checkConsumerOptions(options, ['signal'])
    checkChannels(channels)
    this.#listen()
    return new Subscription(this, channels, options.signal)
  }

  live(text, values = [], options = {}) {
    if (typeof text !== 'string') throw new TypeError('the query has to be a string')
    if (!Array.isArray(values)) throw new TypeError('the values of a live query have to be an array')
    checkConsumerOptions(options, ['rowMode', 'signal'])
    this.#listen()
    const query = { text, values: values.map(copyOf), rowMode: options.rowMode }
    const key = keyOf(query)
    if (!this.#live.has(key)) this.#live.set(key, new LiveQuery(this, query, () => this.#live.delete(key)))
    return new Live(this, this.#live.get(key), options.signal)
  }

  stats() {
    const heardAt = this.listener?.heardAt ?? null
    return { ...this.counts, sinceSignOfLifeMs: heardAt && performance.now() - heardAt }
  }

  async close() {
    this.#end(new PinpointError('the client is closed', 'ERR_CLIENT_CLOSED'))
    await this.listener?.done
  }

  [Symbol.asyncDispose]() {
    return this.close()
  }

  #listen() {
    if (this.#error) throw this.#error
    this.listener ??= new Listener(this)
  }

  /** End all consumers with an error, and all connections. */
  #end(error) {
    this.#error ??= error
    for (const subscriber of this.listener?.channels.subscribers ?? []) subscriber.end(this.#error)
    this.#ended.set()
    this.connections.drop()
  }

  // ---- For the other modules --------------------------------------------------

  get closed() {
    return this.#error !== null
  }

  /** A final error has happened. */
  fail(error) {
    if (!this.closed) this.log('error', `the client ends: ${error.message}`)
    this.#end(error)
  }

  /** Sleep for some milliseconds, or until the client is closed. */
  async sleep(ms) {
    if (ms > 0) await this.#ended.wait(ms)
  }

  log(level, text) {
    try {
      this.options.logger?.[level](`pg-pinpoint: ${text}`)
    } catch {
      // What cannot be logged is no reason to stop.
    }
  }
}
