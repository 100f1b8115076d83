/** The events of one consumer: an asynchronous iterator over what take() returns, undefined if there is nothing yet. */

import { Condition, onAbort } from './condition.js'

export class Events {
  news = new Condition() // take() may return an event, or the end has come
  #signal
  #end = null // { error, atOnce }: atOnce discards the events that are there

  constructor(client, signal) {
    this.client = client
    this.#signal = signal
    onAbort(signal, this.#abort)
  }

  /** After the events that are there: the end, or an error. */
  end(error) {
    this.#end ??= { error }
    this.#signal?.removeEventListener('abort', this.#abort)
    this.news.set()
  }

  #abort = () => {
    this.#end = { error: this.#signal.reason, atOnce: true }
    this.close()
  }

  async next({ signal } = {}) {
    for (;;) {
      signal?.throwIfAborted()
      const value = this.#end?.atOnce ? undefined : this.take()
      if (value) {
        this.client.counts.eventsGiven++
        return { done: false, value }
      }
      if (this.#end?.error) throw this.#end.error
      if (this.#end) return { done: true, value: undefined }
      this.news.clear()
      await this.news.wait(undefined, signal)
    }
  }

  async return() {
    this.#end = { atOnce: true }
    this.close()
    return { done: true, value: undefined }
  }

  async [Symbol.asyncDispose]() {
    this.close()
  }

  [Symbol.asyncIterator]() {
    return this
  }
}
