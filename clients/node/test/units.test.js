/** Parts without a server: node --test */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { backoff } from '../src/backoff.js'
import { Client } from '../src/client.js'
import { hosts } from '../src/connection.js'
import { isPermanent, PinpointError } from '../src/errors.js'
import { Live } from '../src/live_query.js'
import { copyOf, keyOf } from '../src/parameters.js'
import { EventQueue } from '../src/queue.js'

const NOWHERE = 'postgresql://127.0.0.1:1/x'

/** A client that waits for its second attempt to connect, which never comes. */
function waiting(t) {
  const client = new Client(NOWHERE, { minBackoffMs: 1e6, maxBackoffMs: 1e6 })
  t.after(() => client.close())
  return client
}

test('options are checked', () => {
  const wrong = [
    { timeoutMs: Infinity }, { timeoutMs: NaN }, { timeoutMs: '5' }, { timeoutMs: 0 }, { timeoutMs: 1e9 }, { minBackoffMs: -1 },
    { buffer: -1 }, { buffer: 1.5 }, { queryConnections: 0 }, { queryConnections: -1 }, { mode: 'wiat' }, { mode: 1 },
    { nonsense: 1 }, { timeout: 5 }, { logger: {} }, { logger: null }, { toString: 1 }, { maxAttempts: -1 }, { maxAttempts: null }
  ]
  for (const options of wrong) {
    const [name] = Object.keys(options)
    const names = (error) => (error instanceof TypeError || error instanceof RangeError) && error.message.includes(name)
    assert.throws(() => new Client(NOWHERE, options), names, JSON.stringify(options))
  }
  const { options } = new Client(NOWHERE, { maxAttempts: Infinity, queryTimeoutMs: Infinity, buffer: 0, timeoutMs: undefined })
  assert.deepEqual([options.maxAttempts, options.queryTimeoutMs, options.buffer, options.timeoutMs], [Infinity, Infinity, 0, 10000])
})

test('a list of hosts becomes a list of configurations', () => {
  const strings = (connectionString) => hosts({ connectionString, ssl: true }).map((config) => config.ssl && config.connectionString)
  assert.deepEqual(strings('postgresql://u:a,b@h:1,[::1]:2/d?x=y,z'), ['postgresql://u:a,b@h:1/d?x=y,z', 'postgresql://u:a,b@[::1]:2/d?x=y,z'])
  assert.deepEqual(strings('postgres://h,i'), ['postgres://h', 'postgres://i'])
  for (const one of ['postgresql://u:a,b@h/d,e', 'postgresql:///d?host=/tmp', 'postgresql://h/d?target_session_attrs=any&x=y'])
    assert.deepEqual(strings(one), [one])
  assert.deepEqual(hosts({ host: 'h' }), [{ host: 'h' }])
  for (const end of ['read-write', 'anything', 'any2&x=y', ''])
    assert.throws(() => new Client(`postgresql://h,i/d?x=y&target_session_attrs=${end}`), TypeError)
})

test('backoff doubles up to its maximum, times 0.5 to 1', () => {
  const options = { minBackoffMs: 100, maxBackoffMs: 15000 }
  const least = [1, 2, 3, 8, 9, 5000].map((failures) => backoff(failures, options, () => 0))
  assert.deepEqual(least, [50, 100, 200, 6400, 7500, 7500])
  assert.equal(backoff(2, options, () => 0.5), 200 * 0.75)
})

test('a SQLSTATE is compared whole', () => {
  for (const code of ['28000', '28P01', '3D000', '42501', '0A000']) assert.ok(isPermanent({ code, message: '' }), code)
  for (const code of [undefined, '', '2', '28', '280001', '4é', '57P03']) assert.ok(!isPermanent({ code, message: 'x' }), code)
  assert.ok(!isPermanent(undefined))
})

test('parameters are equal if their type and value are', () => {
  const key = (...values) => keyOf({ text: 'SELECT', values })
  const equal = [['a'], [1], [true], [null], [Buffer.from('a')], [new Date(5)], [[1, ['a']]], [2n]]
  for (const values of equal) assert.equal(key(...values), key(...values.map(copyOf)))
  assert.equal(new Set(equal.map((values) => key(...values))).size, equal.length)
  assert.notEqual(key({ a: 1 }), key({ a: 1 }))
  const date = new Date(5)
  const copy = copyOf(date)
  date.setTime(6)
  assert.equal(copy.getTime(), 5)
})

test('a notification that does not fit becomes a change', async () => {
  const counts = { eventsGiven: 0, eventsDropped: 0 }
  const logged = []
  const queue = new EventQueue({ options: { buffer: 500 }, counts, log: (...line) => logged.push(line) })
  const notification = { event: 'notification', channel: 'a', payload: '', pid: 1 }
  for (let i = 0; i < 5; i++) queue.put(notification)
  assert.deepEqual((await queue.next()).value, notification)
  assert.deepEqual((await queue.next()).value, notification)
  assert.deepEqual((await queue.next()).value, { event: 'changed', channels: ['a'] })
  assert.deepEqual([counts, logged.length], [{ eventsGiven: 3, eventsDropped: 3 }, 1])
})

test('the same error of a live query is given once', async () => {
  const live = new Live({ counts: {}, listener: { current() {} } }, { consumers: new Set(), refresh() {} })
  const error = { event: 'error', message: 'm', code: '1' }
  live.put(error)
  assert.deepEqual((await live.next()).value, error)
  live.put({ ...error })
  live.put({ ...error, code: '2' })
  assert.equal((await live.next()).value.code, '2')
})

test('a consumer that comes while a live query fails is told at once', async () => {
  const client = { counts: {}, listener: { current: () => ({ event: 'connected' }) } }
  const failure = { event: 'error', message: 'm' }
  const live = new Live(client, { consumers: new Set(), failure, refresh() {} })
  assert.deepEqual((await live.next()).value, failure)
})

test('the index has each channel as long as somebody wants it', async (t) => {
  const client = waiting(t)
  const first = client.subscribe('a', 'b')
  const second = client.subscribe('a')
  const index = client.listener.channels
  index.takeChanges()
  first.remove('a')
  assert.equal(index.takeChanges().gone.size, 0)
  second.close()
  first.add('a')
  const { added, gone } = index.takeChanges()
  assert.deepEqual([[...added], [...gone], [...first.untold]], [[], [], ['b', 'a']])
  first.remove('a')
  second.add('c') // it is closed
  assert.deepEqual([...index.takeChanges().gone], ['a'])
  assert.deepEqual([...index.takeAll()], ['b'])
})

test('one subscription beside 40,000 others costs its own channels', async (t) => {
  const client = waiting(t)
  const once = () => {
    const start = performance.now()
    for (let i = 0; i < 200; i++) {
      client.subscribe(`other${i}`).close()
      client.listener.channels.takeChanges()
    }
    return (performance.now() - start) * 5 // microseconds for one
  }
  const perAdd = () => Math.min(...Array.from({ length: 10 }, once)) // something else may have run in the others
  const few = perAdd()
  for (let i = 0; i < 40000; i++) client.subscribe(`channel${i}`)
  client.listener.channels.takeChanges()
  const many = perAdd()
  assert.ok(many < 10 * few + 100, `${many} and ${few} microseconds`)
})

test('an exception in the loop of the listener ends the consumers', async (t) => {
  const client = waiting(t)
  const subscription = client.subscribe('a')
  const cause = new Error('planted')
  client.listener.channels.tellAll = () => {
    throw cause
  }
  await assert.rejects(subscription.next(), (error) => error instanceof PinpointError && error.cause === cause)
  assert.throws(() => client.subscribe('b'), PinpointError)
})

test('a consumer that comes during an outage is told at once', async (t) => {
  const client = waiting(t)
  for (const events of [client.subscribe('a'), client.subscribe('b'), client.live('SELECT 1')]) {
    const { event, retryInMs } = (await events.next()).value
    assert.equal(event, 'disconnected')
    assert.ok(retryInMs > 1e5 && retryInMs <= 1e6)
  }
})

test('an exception in the loop of a live query ends its consumers', async (t) => {
  const client = waiting(t)
  const subscription = client.subscribe('a')
  assert.equal((await subscription.next()).value.event, 'disconnected')
  const live = client.live('SELECT 1')
  assert.equal((await live.next()).value.event, 'disconnected')
  const cause = new Error('planted')
  client.sleep = () => Promise.reject(cause)
  client.listener.connected = {}
  live.put = () => {}
  client.connections.connect = () => Promise.reject(new Error('no connection'))
  client.listener.channels.subscribers.forEach((subscriber) => subscriber.refresh?.())
  await assert.rejects(live.next(), (error) => error instanceof PinpointError && error.cause === cause)
  client.listener.connected = null
})

test('a live query that waits for its turn is not executed while the connection is lost', async (t) => {
  const client = waiting(t)
  assert.equal((await client.subscribe('a').next()).value.event, 'disconnected')
  const { listener, connections } = client
  const places = [await connections.takePlace(), await connections.takePlace()]
  let attempts = 0
  connections.connect = () => Promise.reject(new Error(`attempt ${++attempts}`))
  listener.connected = {}
  const live = client.live('SELECT 1')
  await new Promise(setImmediate)
  listener.connected = null
  places.forEach((place) => connections.givePlace(place))
  await new Promise(setImmediate)
  assert.equal(attempts, 0)
  live.close()
})
