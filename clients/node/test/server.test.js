/** With a server: PINPOINT_DSN is the connection string of a superuser, in a database that the tests may change. */

import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { after, before, test } from 'node:test'
import pg from 'pg'
import { Client } from '../src/client.js'

const DSN = process.env.PINPOINT_DSN
const ROLE = 'pinpoint_test_role'
const skip = !DSN && 'PINPOINT_DSN is not set'
let admin

/** The first event of a kind. */
async function first(iterator, kind) {
  for (;;) {
    const { value } = await iterator.next()
    if (value.event === kind) return value
  }
}

/** The error of a live query, and the mode in which a subscription works. */
async function look(dsn = DSN) {
  const client = new Client(dsn)
  try {
    const events = client.subscribe('a')
    const { mode } = await first(events, 'connected')
    await first(events, 'changed')
    await admin.query("NOTIFY a, 'x'")
    assert.equal((await first(events, 'notification')).payload, 'x')
    const { code, message } = await first(client.live('SELECT 1 FROM pinpoint_test'), 'error')
    return { mode, code, message }
  } finally {
    await client.close()
  }
}

/** A client that is closed with the test: one that is open would let the program go on. */
function open(t, ...config) {
  const client = new Client(...config)
  t.after(() => client.close())
  return client
}

before(async () => {
  if (skip) return
  admin = new pg.Client(DSN)
  await admin.connect()
  await admin.query(`DROP EXTENSION IF EXISTS pg_pinpoint CASCADE; DROP TABLE IF EXISTS pinpoint_test;
    DROP ROLE IF EXISTS ${ROLE}; CREATE ROLE ${ROLE}; CREATE TABLE pinpoint_test (id int)`)
})

after(async () => {
  if (skip) return
  await admin.query(`DROP EXTENSION IF EXISTS pg_pinpoint CASCADE; DROP TABLE pinpoint_test; DROP ROLE ${ROLE}`)
  await admin.end()
})

test('without the extension, and with 1.0, live queries need 1.1', { skip }, async () => {
  assert.equal((await look()).code, '0A000')
  await admin.query("CREATE EXTENSION pg_pinpoint VERSION '1.0'")
  const { code, message, mode } = await look()
  assert.deepEqual([code, mode], ['0A000', 'push'])
  assert.match(message, /pg_pinpoint 1\.1/)
  await admin.query('DROP EXTENSION pg_pinpoint')
})

test('a role without USAGE of the schema can subscribe', { skip }, async () => {
  await admin.query('CREATE EXTENSION pg_pinpoint; REVOKE USAGE ON SCHEMA pinpoint FROM PUBLIC')
  const dsn = new URL(DSN)
  dsn.searchParams.set('options', `-c role=${ROLE}`)
  const { code, message, mode } = await look(dsn.href)
  assert.deepEqual([code, mode], ['42501', 'push'])
  assert.match(message, new RegExp(`GRANT USAGE ON SCHEMA pinpoint TO ${ROLE}`))
  await admin.query('DROP EXTENSION pg_pinpoint')
})

test('idle_session_timeout does not end the sessions of the client', { skip }, async (t) => {
  const dsn = new URL(DSN)
  dsn.searchParams.set('options', '-c idle_session_timeout=300ms')
  const client = open(t, dsn.href)
  const events = client.subscribe('a')
  await first(events, 'changed')
  const other = new pg.Client(dsn.href)
  const ended = new Promise((resolve) => other.on('error', () => {}).on('end', resolve))
  await other.connect()
  await ended
  await admin.query('NOTIFY a')
  assert.equal((await events.next()).value.event, 'notification')
})

/** A watched table with one row. */
const watched = () =>
  admin.query(`DROP EXTENSION IF EXISTS pg_pinpoint; CREATE EXTENSION pg_pinpoint; SELECT pinpoint.watch('pinpoint_test');
    TRUNCATE pinpoint_test; INSERT INTO pinpoint_test VALUES (7)`)

/** Rows of a live query until a condition is true. */
async function rowsUntil(live, condition) {
  for (;;) {
    const { value } = await live.next({ signal: AbortSignal.timeout(20_000) })
    if (value.event === 'rows' && condition(value.rows)) return value
  }
}

/** Wait until a consumer gets no more events. */
async function quiet(iterator) {
  for (;;) {
    const signal = AbortSignal.timeout(1000)
    try {
      await iterator.next({ signal })
    } catch (error) {
      if (error === signal.reason) return
      throw error
    }
  }
}

test('rows are objects, or arrays', { skip }, async (t) => {
  await watched()
  const client = open(t, DSN)
  const query = 'SELECT id, 1 AS one FROM pinpoint_test'
  const objects = await first(client.live(query), 'rows')
  assert.deepEqual([objects.rows[0].id, objects.rows[0].one, objects.columns], [7, 1, ['id', 'one']])
  const arrays = await first(client.live(query, [], { rowMode: 'array' }), 'rows')
  assert.deepEqual([arrays.rows, arrays.columns], [[[7, 1]], ['id', 'one']])
})

test('a change executes each query once, and determines its tables once', { skip }, async (t) => {
  await watched()
  const client = open(t, DSN)
  const { query } = pg.Client.prototype
  const texts = []
  t.mock.method(pg.Client.prototype, 'query', function (text, ...others) {
    texts.push(text.text ?? text)
    return query.call(this, text, ...others)
  })
  const count = (part) => texts.filter((text) => text.includes(part)).length
  const lives = Array.from({ length: 100 }, (_, n) => client.live('SELECT id, $1::int AS n FROM pinpoint_test', [n]))
  await Promise.all(lives.map((live) => rowsUntil(live, () => true)))
  await quiet(lives[99])
  const executed = count('AS n FROM pinpoint_test')
  assert.ok(executed >= 100 && executed < 150, `${executed} executions`)
  texts.length = 0
  await admin.query('UPDATE pinpoint_test SET id = 8')
  await Promise.all(lives.map((live, n) => rowsUntil(live, ([row]) => row.id === 8 && row.n === n)))
  await quiet(lives[99])
  assert.ok(count('AS n FROM pinpoint_test') < 150 && count('channels_of') < 150)
})

test('a connection for live queries that ends while it is idle is no error', { skip }, async (t) => {
  await watched()
  const live = open(t, DSN).live('SELECT id FROM pinpoint_test')
  await rowsUntil(live, () => true)
  await quiet(live)
  await admin.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'SELECT id FROM pinpoint_test'")
  await quiet(live)
  await admin.query('UPDATE pinpoint_test SET id = 9')
  assert.deepEqual((await live.next()).value.rows, [{ id: 9 }])
})

test('an exception while a notification is handled ends the consumers', { skip }, async (t) => {
  await watched()
  const client = open(t, DSN)
  const events = client.subscribe('a')
  await first(events, 'changed')
  const cause = new Error('planted')
  client.listener.channels.dispatch = () => {
    throw cause
  }
  await admin.query('NOTIFY a')
  await assert.rejects(events.next(), (error) => error.cause === cause)
})

test('stats and logger tell what happens', { skip }, async (t) => {
  await watched()
  const lines = []
  const log = (text) => lines.push(text)
  const client = open(t, DSN, { logger: { info: log, warn: log, error: log }, minBackoffMs: 1 })
  const events = client.subscribe('a')
  await first(events, 'changed')
  await admin.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()')
  await first(events, 'disconnected')
  await first(events, 'connected')
  const { eventsGiven, eventsDropped, reconnects, sinceSignOfLifeMs } = client.stats()
  assert.ok(eventsGiven >= 4)
  assert.deepEqual([eventsDropped, reconnects], [0, 1])
  assert.ok(sinceSignOfLifeMs >= 0 && sinceSignOfLifeMs < 20_000)
  const live = client.live("SELECT id FROM pinpoint_test WHERE id = $1 AND $2::int > 0", [1, 'geheim'])
  assert.equal((await first(live, 'error')).code, '22P02')
  await client.close()
  assert.match(lines[0], /^pg-pinpoint: connected to PostgreSQL \d+, mode push$/)
  assert.match(lines[1], /^pg-pinpoint: disconnected: .*; the next attempt is in \d+ ms$/)
  assert.equal(lines.at(-1), 'pg-pinpoint: a live query has failed: 22P02')
  assert.ok(!lines.join().includes('geheim'))
})

test('without heartbeats, changes that do not notify are told, also while notifications arrive', { skip }, async () => {
  const name = 'pinpoint_test_managed'
  const dsn = new URL(DSN)
  dsn.pathname = name
  const file = await readFile(new URL('../../../managed/pinpoint.sql', import.meta.url), 'utf8')
  await admin.query(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`)
  await admin.query(`CREATE DATABASE ${name}`)
  const other = new pg.Client(dsn.href)
  const client = new Client(dsn.href, { checkIntervalMs: 50 })
  let busy
  try {
    await other.connect()
    await other.query(file)
    await other.query("CREATE TABLE t (id int); INSERT INTO t VALUES (7); SELECT pinpoint.watch('t')")
    client.subscribe('busy')
    const live = client.live('SELECT * FROM t')
    await rowsUntil(live, ([row]) => row.id === 7)
    await quiet(live)
    busy = setInterval(() => other.query('NOTIFY busy').catch(() => {}), 5)
    await other.query('ALTER TABLE t ADD added int DEFAULT 8')
    await rowsUntil(live, ([row]) => row.added === 8)
  } finally {
    clearInterval(busy)
    await client.close()
    await other.end()
    await admin.query(`DROP DATABASE ${name} WITH (FORCE)`)
  }
})
