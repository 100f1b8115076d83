/** A subscription: the events of its channels. For the listener, it is a subscriber. */

import { checkChannels } from './channels.js'
import { EventQueue } from './queue.js'

export class Subscription extends EventQueue {
  channels = new Set()
  untold = new Set() // of which the consumer has not been told "changed" yet
  #index

  constructor(client, channels, signal) {
    super(client, signal)
    this.#index = client.listener.channels
    this.#index.subscribers.add(this)
    const current = client.listener.current()
    if (current) this.put(current)
    this.add(...channels)
  }

  add(...channels) {
    checkChannels(channels)
    if (!this.#index.subscribers.has(this)) return // it is closed
    for (const channel of channels) this.#index.enter(this, channel)
  }

  remove(...channels) {
    for (const channel of channels) this.#index.leave(this, channel)
  }

  close() {
    this.#index.forget(this)
    this.end()
  }
}
