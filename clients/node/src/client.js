/** The client: subscriptions and live queries over few connections. index.d.ts describes the API. */

import { connect, destroy, hosts } from './connection.js'
import { HEARTBEAT, Listener, PinpointError, Signal } from './listener.js'
import { LiveQuery } from './live.js'
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
    const key = JSON.stringify([text, values], (_, value) => (typeof value === 'bigint' ? `${value}n` : value))
    if (!this.#live.has(key)) this.#live.set(key, new LiveQuery(this, text, values, this.subscribe()))
    const shared = this.#live.get(key)
    return new Live(shared, () => {
      if (shared.consumers.size === 0 && this.#live.get(key) === shared) {
        this.#live.delete(key)
        shared.end()
      }
    })
  }

  async close() {
    this.closed = true
    this.fail(new PinpointError('the client is closed'))
    for (const wake of this.#sleepers) wake()
    for (const connection of this.#open) destroy(connection)
    for (const shared of this.#live.values()) shared.end()
    await this.listener?.done
    for (const connection of this.#open) destroy(connection)
  }

  // ---- For the other modules --------------------------------------------------

  async connect() {
    const connection = await connect(this.#configs, this.options.timeout, this.#open)
    if (!this.closed) return connection
    destroy(connection)
    throw new PinpointError('the client is closed')
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
    for (const { queue } of this.listener?.subscriptions ?? []) queue.end(error)
  }

  /** The server of the listening connection may be another one from now on. */
  dropQueryConnections() {
    this.generation++
    for (const connection of this.#open) destroy(connection)
    this.idle = []
  }
}

export class Subscription {
  channels = new Set()
  heard = new Set() // of which the consumer has been told
  told = new Signal()
  #listener

  constructor(listener, channels) {
    this.#listener = listener
    this.queue = new EventQueue(listener.client.options.buffer)
    listener.subscriptions.add(this)
    if (listener.connected) this.queue.put(listener.connected)
    this.add(...channels)
  }

  add(...channels) {
    checkChannels(channels)
    for (const channel of channels) this.channels.add(channel)
    this.#listener.want(this, channels)
  }

  remove(...channels) {
    for (const channel of channels) {
      this.channels.delete(channel)
      this.heard.delete(channel)
    }
    this.#listener.unwant(this, channels)
  }

  close() {
    this.remove(...this.channels)
    this.#listener.subscriptions.delete(this)
    this.queue.end()
  }

  next() {
    return this.queue.next()
  }

  async return() {
    this.close()
    return { done: true, value: undefined }
  }

  [Symbol.asyncIterator]() {
    return this
  }
}

/** A consumer of a live query. A slow one gets the newest result. */
class Live {
  #shared
  #closed
  #latest = null
  #end = null
  #wake = () => {}

  constructor(shared, closed) {
    this.#shared = shared
    this.#closed = closed
    shared.consumers.add(this)
    shared.refresh() // a result that is at hand may be older than this call
  }

  put(event) {
    this.#latest = event
    this.#wake()
  }

  end(error) {
    this.#end ??= { error }
    this.#wake()
  }

  close() {
    this.#shared.consumers.delete(this)
    this.end()
    this.#closed()
  }

  async next() {
    while (!this.#latest) {
      if (this.#end?.error) throw this.#end.error
      if (this.#end) return { done: true, value: undefined }
      await new Promise((resolve) => (this.#wake = resolve))
    }
    const value = this.#latest
    this.#latest = null
    return { done: false, value }
  }

  async return() {
    this.close()
    return { done: true, value: undefined }
  }

  [Symbol.asyncIterator]() {
    return this
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
