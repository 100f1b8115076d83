/** The events of one consumer, which may be slow. */

const OVERHEAD = 200 // bytes that an event takes without its texts, about

const size = (event) => OVERHEAD + (event.event === 'notification' ? event.channel.length + event.payload.length : 0)

/** A queue of bounded size. A notification that does not fit becomes a "changed". */
export class EventQueue {
  #limit
  #size = 0
  #events = []
  #changed = null // the "changed" that is in the queue: a set of channels
  #end = null
  #wake = () => {}

  /** limit: bytes. */
  constructor(limit) {
    this.#limit = limit
  }

  put(event) {
    if (this.#size + size(event) > this.#limit) {
      if (event.event === 'notification') this.putChanged([event.channel])
      return
    }
    this.#size += size(event)
    this.#events.push(event)
    this.#wake()
  }

  /** Add channels to the "changed" that is in the queue, or to a new one. */
  putChanged(channels) {
    if (!this.#changed) {
      this.#changed = new Set()
      this.#events.push({ event: 'changed', channels: this.#changed })
    }
    for (const channel of channels) this.#changed.add(channel)
    this.#wake()
  }

  /** After the events that are in the queue: the end, or an error. */
  end(error) {
    this.#end ??= { error }
    this.#wake()
  }

  /** The next event, as an iterator returns it. */
  async next() {
    while (this.#events.length === 0) {
      if (this.#end?.error) throw this.#end.error
      if (this.#end) return { done: true, value: undefined }
      await new Promise((resolve) => (this.#wake = resolve))
    }
    const event = this.#events.shift()
    if (event.event === 'changed') {
      this.#changed = null
      return { done: false, value: { event: 'changed', channels: [...event.channels] } }
    }
    this.#size -= size(event)
    return { done: false, value: event }
  }
}
