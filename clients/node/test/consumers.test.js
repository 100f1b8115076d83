/** How consumers end, and what is logged: without a server. */

import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { getEventListeners } from 'node:events'
import { test } from 'node:test'
import { Client, PinpointError } from '../src/client.js'

const NOWHERE = 'postgresql://user:geheim@127.0.0.1:1/x'
const LONG = { minBackoffMs: 1e6, maxBackoffMs: 1e6 } // no second attempt to connect

/** A client whose first attempt to connect has failed: from now on, nothing happens, and new consumers are told nothing. */
async function idle(t) {
  const client = new Client(NOWHERE, LONG)
  t.after(() => client.close())
  const subscription = client.subscribe('a')
  assert.equal((await subscription.next()).value.event, 'disconnected')
  client.listener.failure = null
  return { client, subscription }
}

const DONE = { done: true, value: undefined }

for (const end of ['return', 'close']) {
  test(`${end}() ends an iterator that waits`, async (t) => {
    const { client, subscription } = await idle(t)
    for (const iterator of [subscription, client.live('SELECT 1')]) {
      const next = iterator.next()
      await iterator[end]()
      assert.deepEqual(await next, DONE)
      assert.deepEqual(await iterator.next(), DONE)
    }
    assert.equal(client.listener.channels.subscribers.size, 0)
  })
}

test('return() discards events in the queue, close() does not', async (t) => {
  const { client, subscription } = await idle(t)
  const other = client.subscribe('b')
  for (const each of [subscription, other]) each.putChanged(['a'])
  await subscription.return()
  assert.deepEqual(await subscription.next(), DONE)
  other.close()
  assert.equal((await other.next()).value.event, 'changed')
  assert.deepEqual(await other.next(), DONE)
})

test('a signal ends a subscription and a live query at once', async (t) => {
  const { client, subscription } = await idle(t)
  const controller = new AbortController()
  const { signal } = controller
  const iterators = [client.subscribe('b', { signal }), client.live('SELECT 1', [], { signal })]
  const kept = client.subscribe('c', { signal })
  kept.close()
  const nexts = iterators.map((iterator) => iterator.next())
  const reason = new Error('enough')
  iterators[0].putChanged(['b'])
  await nexts.shift()
  iterators[0].putChanged(['b']) // not read
  controller.abort(reason)
  for (const next of [...nexts, iterators[0].next()]) await assert.rejects(next, reason)
  assert.deepEqual([...client.listener.channels.subscribers], [subscription])
  assert.equal(getEventListeners(signal, 'abort').length, 0)
  assert.deepEqual(await kept.next(), DONE)
  assert.throws(() => client.subscribe('b', { signal }), reason)
  assert.throws(() => client.live('SELECT 1', [], { signal }), reason)
})

test('a signal ends a call of next(), which loses no event', async (t) => {
  const { client, subscription } = await idle(t)
  const controller = new AbortController()
  const next = subscription.next({ signal: controller.signal })
  controller.abort()
  await assert.rejects(next, { name: 'AbortError' })
  subscription.putChanged(['a'])
  await assert.rejects(subscription.next({ signal: controller.signal }), { name: 'AbortError' })
  const { signal } = new AbortController()
  assert.deepEqual((await subscription.next({ signal })).value, { event: 'changed', channels: ['a'] })
  const waiting = subscription.next({ signal })
  subscription.putChanged(['a'])
  await waiting
  assert.equal(getEventListeners(signal, 'abort').length, 0)
})

test('any number of consumers can have one signal', async (t) => {
  const { client } = await idle(t)
  const warned = t.mock.method(process, 'emitWarning')
  const { signal } = new AbortController()
  for (let i = 0; i < 12; i++) client.subscribe('a', { signal })
  const calls = Array.from({ length: 12 }, () => client.subscribe('a').next({ signal }))
  assert.equal(warned.mock.callCount(), 0)
  await client.close()
  await Promise.allSettled(calls)
})

test('arguments are checked', async (t) => {
  const { client } = await idle(t)
  for (const name of [['a', 'b'], 1, null, undefined]) assert.throws(() => client.subscribe(name), TypeError)
  for (const name of ['', 'x'.repeat(64), 'a\0', 'pinpoint_heartbeat']) assert.throws(() => client.subscribe(name), RangeError)
  for (const options of [{ signal: 1 }, { rowMode: 'array' }]) assert.throws(() => client.subscribe('a', options), TypeError)
  for (const options of [{ signal: 1 }, { rowMode: 'arrays' }, { row: 1 }])
    assert.throws(() => client.live('SELECT 1', [], options), TypeError)
  assert.throws(() => client.live('SELECT 1', { rowMode: 'array' }), TypeError)
  for (const query of [undefined, null, { text: 'SELECT 1' }]) assert.throws(() => client.live(query), TypeError)
  assert.equal(client.listener.channels.subscribers.size, 1)
})

test('await using closes a subscription and a client', async (t) => {
  const { client, subscription } = await idle(t)
  await subscription[Symbol.asyncDispose]()
  const other = client.subscribe('a')
  await client[Symbol.asyncDispose]()
  await assert.rejects(async () => {
    for (;;) await other.next()
  }, { name: 'PinpointError', code: 'ERR_CLIENT_CLOSED' })
})

test('losses and the final error are logged, without the password', async () => {
  const lines = []
  const log = (level) => (text) => lines.push(`${level} ${text}`)
  const logger = { info: log('info'), warn: log('warn'), error: log('error') }
  const client = new Client(NOWHERE, { logger, minBackoffMs: 1, maxAttempts: 1 })
  const subscription = client.subscribe('a')
  assert.equal((await subscription.next()).value.event, 'disconnected')
  await assert.rejects(subscription.next(), PinpointError)
  assert.deepEqual(lines.map((line) => line.split(':')[0]), ['warn pg-pinpoint', 'error pg-pinpoint'])
  assert.ok(!lines.join().includes('geheim'))
  assert.deepEqual(client.stats(), { eventsGiven: 1, eventsDropped: 0, reconnects: 0, sinceSignOfLifeMs: null })
  await client.close()
  assert.equal(lines.length, 2)
  const failing = () => {
    throw new Error('the disk is full')
  }
  const other = new Client(NOWHERE, { ...LONG, logger: { info: failing, warn: failing, error: failing } })
  assert.equal((await other.subscribe('a').next()).value.event, 'disconnected')
  await other.close()
})

test('require() works', () => {
  const [major, minor] = process.versions.node.split('.').map(Number)
  if (major === 20 ? minor < 19 : major === 22 && minor < 12) return
  const program = "const { Client } = require('pg-pinpoint'); console.log(typeof Client)"
  const cwd = new URL('..', import.meta.url)
  assert.equal(execFileSync(process.execPath, ['--no-warnings', '-e', program], { cwd, encoding: 'utf8' }).trim(), 'function')
})
