/**
 * A cache without a query per hit: a value is dropped when its channel is notified.
 *
 *     const cache = new Cache(client, async (channel) => ...)    // client: of pg-pinpoint
 *     const prices = await cache.get('prices')
 *
 * The function reads the value, on the server on which the client listens. A value is stored only if no event of its
 * channel came since before it was read. A new connection begins without values; while it is lost, values are read each
 * time. cache.ended rejects with the final error of the client.
 */
export class Cache {
  #subscription
  #read
  #connected = false
  #values = new Map()
  #generations = new Map() // of each channel that is heard

  constructor(client, read) {
    this.#subscription = client.subscribe()
    this.#read = read
    this.ended = this.#follow().finally(() => (this.#connected = false))
  }

  async get(channel) {
    if (this.#connected && this.#values.has(channel)) return this.#values.get(channel)
    this.#subscription.add(channel) // the first event of a new channel is a "changed"
    const before = this.#generations.get(channel)
    const value = await this.#read(channel)
    if (before && before === this.#generations.get(channel)) this.#values.set(channel, value)
    return value
  }

  async #follow() {
    for await (const event of this.#subscription) {
      if (event.event === 'connected') {
        this.#generations.forEach((_, channel) => this.#drop(channel))
        this.#connected = true
      } else if (event.event === 'disconnected') this.#connected = false
      else if (event.event === 'notification') this.#drop(event.channel)
      else event.channels.forEach((channel) => this.#drop(channel))
    }
  }

  #drop(channel) {
    this.#generations.set(channel, Symbol(channel))
    this.#values.delete(channel)
  }
}
