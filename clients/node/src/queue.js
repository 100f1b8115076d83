/** A queue of events, of bounded size. A notification that does not fit becomes a "changed". */

import { Events } from './events.js'

const OVERHEAD = 200 // bytes that an event takes without its texts, about

const size = (event) => OVERHEAD + (event.event === 'notification' ? event.channel.length + event.payload.length : 0)

export class EventQueue extends Events {
  // A linked list of { event, next }, as shift() moves all events of a long array. The head is the node before the first event.
  #head = {}
  #tail = this.#head
  #size = 0
  #changed = null // the "changed" that is in the queue: a set of channels
  #drops = false

  put(event) {
    if (this.#size + size(event) > this.client.options.buffer) return this.#drop(event)
    this.#drops = false
    this.#size += size(event)
    this.#append(event)
  }

  #drop(event) {
    this.client.counts.eventsDropped++
    if (!this.#drops) this.client.log('warn', 'a consumer is slow: events are dropped')
    this.#drops = true
    if (event.event === 'notification') this.putChanged([event.channel])
  }

  /** Add channels to the "changed" that is in the queue, or to a new one. */
  putChanged(channels) {
    if (!this.#changed) {
      this.#changed = new Set()
      this.#append({ event: 'changed', channels: this.#changed })
    }
    for (const channel of channels) this.#changed.add(channel)
  }

  #append(event) {
    this.#tail = this.#tail.next = { event }
    this.news.set()
  }

  take() {
    if (!this.#head.next) return undefined
    this.#head = this.#head.next
    const { event } = this.#head
    if (event.event === 'changed') {
      this.#changed = null
      return { event: 'changed', channels: [...event.channels] }
    }
    this.#size -= size(event)
    return event
  }
}
