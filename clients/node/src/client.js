/** The client: subscriptions and live queries over few connections. index.d.ts describes the API. */

import utils from 'pg/lib/utils.js'
import { connect, destroy, hosts } from './connection.js'
import { HEARTBEAT, Listener, PinpointError } from './listener.js'
import { Live, LiveQuery } from './live.js'
import { EventQueue } from './queue.js'

export { PinpointError }

const DEFAULTS = {
  mode: 'auto',
  minInterval: 0.05,
  buffer: 64 * 1024 * 1024,
  minBackoff: 0.1,
  maxBackoff: 15,
  maxAttempts: Infinity,
  timeout: 10,
  queryTimeout: 60,
  checkInterval: 10,
  probeTimeout: 3,
  queryConnections: 2
}

export class Client {
  closed = false
  listener = null
  idle = [] // connections for live queries
  generation = 0 // of these connections
  #configs
  #open = new Set() // all connections
  #live = new Map()
  #error = null
  #sleepers = new Set()
  #slots
  #slotQueue = []

  constructor(config = {}, options = {}) {
    this.#configs = hosts(typeof config === 'string' ? { connectionString: config } : config)
    const unknown = Object.keys(options).filter((name) => !(name in DEFAULTS))
    if (unknown.length) throw new TypeError(`there is no option "${unknown[0]}"`)
    this.options = { ...DEFAULTS, ...options }
    if (!['auto', 'push', 'wait'].includes(this.options.mode))
      throw new TypeError(`mode is "${this.options.mode}", but has to be "auto", "push" or "wait"`)
    this.#slots = this.options.queryConnections
  }

  subscribe(...channels) {
    if (this.#error) throw this.#error
    checkChannels(channels)
    this.listener ??= new Listener(this)
    return new Subscription(this.listener, channels)
  }

  live(text, values = []) {
    if (this.#error) throw this.#error
    this.listener ??= new Listener(this)
    // As they are sent: different values can have equal JSON.
    values = values.map(utils.prepareValue).map((value) => (Buffer.isBuffer(value) ? Buffer.from(value) : value))
    const key = JSON.stringify([text, values])
    if (!this.#live.has(key)) this.#live.set(key, new LiveQuery(this, text, values, () => this.#live.delete(key)))
    return new Live(this.#live.get(key))
  }

  async close() {
    this.closed = true
    this.fail(new PinpointError('the client is closed'))
    for (const wake of this.#sleepers) wake()
    this.dropQueryConnections()
    await this.listener?.done
  }

  // ---- For the other modules --------------------------------------------------

  async connect() {
    let error
    for (const config of this.#configs) {
      if (this.closed) throw this.#error
      try {
        return await connect(config, this.options.timeout, this.#open)
      } catch (reason) {
        error = reason
      }
    }
    throw error
  }

  /** Sleep for some seconds, or until the client is closed. */
  async sleep(seconds) {
    if (this.closed || seconds <= 0) return
    let wake
    await new Promise((resolve) => {
      const timer = setTimeout(() => wake(), seconds * 1000)
      wake = () => {
        clearTimeout(timer)
        this.#sleepers.delete(wake)
        resolve()
      }
      this.#sleepers.add(wake)
    })
  }

  /** Wait for one of the connections for live queries. Returns a function that gives it back. */
  async querySlot() {
    if (this.#slots === 0) await new Promise((resolve) => this.#slotQueue.push(resolve))
    else this.#slots--
    return () => {
      if (this.#slotQueue.length) this.#slotQueue.shift()()
      else this.#slots++
    }
  }

  /** End all consumers with an error. */
  fail(error) {
    this.#error ??= error
    for (const subscriber of this.listener?.subscribers ?? []) subscriber.end(error)
  }

  /** Close the connections of live queries, because the client may now listen on another server. */
  dropQueryConnections() {
    this.generation++
    for (const connection of this.#open) destroy(connection)
    this.idle = []
  }
}

export class Subscription extends EventQueue {
  channels = new Set()
  heard = new Set() // of which the consumer has been told
  #listener

  constructor(listener, channels) {
    super(listener.client.options.buffer)
    this.#listener = listener
    listener.subscribers.add(this)
    if (listener.connected) this.put(listener.connected)
    this.add(...channels)
  }

  add(...channels) {
    checkChannels(channels)
    for (const channel of channels) this.channels.add(channel)
    this.#listener.changes.set()
  }

  remove(...channels) {
    for (const channel of channels) {
      this.channels.delete(channel)
      this.heard.delete(channel)
    }
    this.#listener.changes.set()
  }

  close() {
    this.#listener.subscribers.delete(this)
    this.#listener.changes.set()
    this.end()
  }
}

function checkChannels(channels) {
  for (const channel of channels) {
    if (channel === '') throw new RangeError('the name of a channel cannot be empty')
    if (Buffer.byteLength(channel) > 63) throw new RangeError(`the name of a channel can have 63 bytes: "${channel}" is longer`)
    if (channel.includes('\0')) throw new RangeError('the name of a channel cannot contain the character NUL')
    if (channel === HEARTBEAT) throw new RangeError(`the channel "${HEARTBEAT}" is for the client itself`)
  }
}
