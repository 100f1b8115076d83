/** The index of channels: who wants to hear what, and what the connection has to do for it. */

import { Condition } from './condition.js'

export const HEARTBEAT = 'pinpoint_heartbeat'

export function checkChannels(channels) {
  for (const channel of channels) {
    if (typeof channel !== 'string') throw new TypeError('the name of a channel has to be a string')
    if (channel === '') throw new RangeError('the name of a channel cannot be empty')
    if (Buffer.byteLength(channel) > 63) throw new RangeError(`the name of a channel can have 63 bytes: "${channel}" is longer`)
    if (channel.includes('\0')) throw new RangeError('the name of a channel cannot contain the character NUL')
    if (channel === HEARTBEAT) throw new RangeError(`the channel "${HEARTBEAT}" is for the client itself`)
  }
}

/**
 * A subscriber is a subscription or a live query: { channels, untold, put(event), putChanged(channels), end(error) }.
 * untold: those of its channels of which it has not been told "changed" yet.
 */
export class Channels {
  subscribers = new Set()
  changes = new Condition() // there is something for takeChanges()
  #index = new Map() // channel -> set of its subscribers
  #added = new Set() // channels of the index on which the connection does not listen yet
  #gone = new Set() // channels on which it listens, but that have no subscriber
  #toTell = new Set() // subscribers with untold channels

  enter(subscriber, channel) {
    if (subscriber.channels.has(channel)) return
    subscriber.channels.add(channel)
    subscriber.untold.add(channel)
    this.#toTell.add(subscriber)
    if (!this.#index.has(channel) && !this.#gone.delete(channel)) this.#added.add(channel)
    addTo(this.#index, channel, subscriber)
    this.changes.set()
  }

  leave(subscriber, channel) {
    if (!subscriber.channels.delete(channel)) return
    subscriber.untold.delete(channel)
    const subscribers = this.#index.get(channel)
    subscribers.delete(subscriber)
    if (subscribers.size > 0) return
    this.#index.delete(channel)
    if (!this.#added.delete(channel)) this.#gone.add(channel)
    this.changes.set()
  }

  /** Forget a subscriber, and all its channels. */
  forget(subscriber) {
    for (const channel of subscriber.channels) this.leave(subscriber, channel)
    this.#toTell.delete(subscriber)
    this.subscribers.delete(subscriber)
  }

  /** What has changed since the last call: the connection listens on it before subscribers are told. */
  takeChanges() {
    this.changes.clear()
    const taken = { added: this.#added, gone: this.#gone }
    this.#added = new Set()
    this.#gone = new Set()
    return taken
  }

  /** All channels, for a new connection, or a call that waits for them. */
  takeAll() {
    this.takeChanges()
    return new Set(this.names())
  }

  names() {
    return [...this.#index.keys()]
  }

  /** Tell subscribers of changed channels, and of all untold ones on which the connection listens by now. */
  tellChanged(changed = []) {
    const news = new Map() // subscriber -> set of channels
    for (const subscriber of this.#toTell)
      for (const channel of subscriber.untold) if (!this.#added.has(channel)) addTo(news, subscriber, channel)
    for (const channel of changed) {
      if (this.#added.has(channel)) continue // it is told when the connection listens
      for (const subscriber of this.#index.get(channel) ?? []) addTo(news, subscriber, channel)
    }
    for (const [subscriber, channels] of news) {
      for (const channel of channels) subscriber.untold.delete(channel)
      if (subscriber.untold.size === 0) this.#toTell.delete(subscriber)
      subscriber.putChanged(channels)
    }
  }

  /** A notification. A subscriber that was not told "changed" of its channel hears of it by that. */
  dispatch(event) {
    for (const subscriber of this.#index.get(event.channel) ?? []) if (!subscriber.untold.has(event.channel)) subscriber.put(event)
  }

  tellAll(event) {
    for (const subscriber of this.subscribers) subscriber.put(event)
  }
}

function addTo(map, key, value) {
  const values = map.get(key)
  if (values) values.add(value)
  else map.set(key, new Set([value]))
}
