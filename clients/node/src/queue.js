/** The events of one consumer, which may be slow. */

const OVERHEAD = 200 // bytes that an event takes without its texts, about

const size = (event) => OVERHEAD + (event.event === 'notification' ? event.channel.length + event.payload.length : 0)

/** An asynchronous iterator over what take() returns, undefined if there is nothing yet. */
export class Events {
  #end = null
  #waiting = []

  wake() {
    for (const resolve of this.#waiting.splice(0)) resolve()
  }

  /** After the events that are there: the end, or an error. */
  end(error) {
    this.#end ??= { error }
    this.wake()
  }

  async next() {
    for (;;) {
      const value = this.take()
      if (value) return { done: false, value }
      if (this.#end?.error) throw this.#end.error
      if (this.#end) return { done: true, value: undefined }
      await new Promise((resolve) => this.#waiting.push(resolve))
    }
  }

  async return() {
    this.close()
    return { done: true, value: undefined }
  }

  [Symbol.asyncIterator]() {
    return this
  }
}

/** A queue of bounded size. A notification that does not fit becomes a "changed". */
export class EventQueue extends Events {
  #limit
  #size = 0
  #events = []
  #first = 0 // index of the first event; the places before it are undefined
  #changed = null // the "changed" that is in the queue: a set of channels

  /** limit: bytes. */
  constructor(limit) {
    super()
    this.#limit = limit
  }

  put(event) {
    if (this.#size + size(event) > this.#limit) {
      if (event.event === 'notification') this.putChanged([event.channel])
      return
    }
    this.#size += size(event)
    this.#events.push(event)
    this.wake()
  }

  /** Add channels to the "changed" that is in the queue, or to a new one. */
  putChanged(channels) {
    if (!this.#changed) {
      this.#changed = new Set()
      this.#events.push({ event: 'changed', channels: this.#changed })
    }
    for (const channel of channels) this.#changed.add(channel)
    this.wake()
  }

  take() {
    const event = this.#events[this.#first]
    if (!event) return undefined
    this.#events[this.#first++] = undefined
    // shift() would move all events of a long array each time.
    if (2 * this.#first > this.#events.length) {
      this.#events.splice(0, this.#first)
      this.#first = 0
    }
    if (event.event === 'changed') {
      this.#changed = null
      return { event: 'changed', channels: [...event.channels] }
    }
    this.#size -= size(event)
    return event
  }
}
