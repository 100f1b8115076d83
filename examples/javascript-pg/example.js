// A cache that PostgreSQL keeps up to date, and a worker of a job queue.
//
//     node example.js cache | worker
//
// DATABASE_URL names the database, which has ../schema.sql.

import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

const connectionString = process.env.DATABASE_URL

// A worker looks again after so many milliseconds, whatever it was told: a job may
// have been given up by another worker.
const LOOK_AGAIN = 60_000

// Milliseconds until an attempt to connect or a query is given up, and before the
// next attempt to connect.
const TIMEOUT = 10_000
const RECONNECT_AFTER = 200

// In milliseconds; 0 is never. Without pg_pinpoint there is no row.
const HEARTBEAT_INTERVAL = `
  SELECT setting::int AS interval FROM pg_settings
   WHERE name = 'pinpoint.heartbeat_interval'
     AND to_regproc('pinpoint.changed_since') IS NOT NULL`
const CHANGED_SINCE = `
  SELECT changed, position FROM pinpoint.changed_since($1, 'setting_changed')`

// Connects and LISTENs. next() waits for a notification, or for nothing at the end
// of the connection or of the time.
async function listen(...channels) {
  const client = new pg.Client({
    connectionString, connectionTimeoutMillis: TIMEOUT, query_timeout: TIMEOUT
  })
  const notifications = []
  let lost = false
  let wake = () => {}
  client.on('notification', (message) => { notifications.push(message); wake() })
  client.on('error', () => { lost = true; wake() })
  client.on('end', () => { lost = true; wake() })
  await client.connect()
  for (const channel of channels) await client.query(`LISTEN ${channel}`)
  const next = async (timeout) => {
    let timer
    if (notifications.length === 0 && !lost) {
      await new Promise((resolve) => {
        wake = resolve
        if (timeout) timer = setTimeout(resolve, timeout)
      })
    }
    clearTimeout(timer)
    return notifications.shift()
  }
  return { client, next, isLost: () => lost }
}

// Keeps a copy of the settings until there is one with the name "stop".
async function keepCache() {
  // The copy, and the position up to which it is right.
  const cache = { rows: new Map(), position: null }
  while (!cache.rows.has('stop')) {
    let client
    try {
      // First LISTEN, then look: what changes in between is told.
      const session = await listen('setting_changed', 'pinpoint_heartbeat')
      client = session.client
      await follow(session, cache)
    } catch (error) {
      if (!isConnectionError(error)) throw error
      await sleep(RECONNECT_AFTER)
    } finally {
      client?.end().catch(() => {}) // may never be answered
    }
  }
}

// Keeps the cache right until there is a "stop", or no heartbeat any more.
async function follow({ client, next }, cache) {
  const { rows: [heartbeat] } = await client.query(HEARTBEAT_INTERVAL)
  // Stock PostgreSQL does not know what has changed.
  let answer = { changed: ['setting_changed'], position: null }
  if (heartbeat) ({ rows: [answer] } = await client.query(CHANGED_SINCE, [cache.position]))
  if (answer.changed.length > 0) {
    await load(client, cache)
  } else {
    console.log('nothing missed')
  }
  cache.position = answer.position

  const silence = heartbeat && 3 * heartbeat.interval
  while (!cache.rows.has('stop')) {
    const notification = await next(silence)
    if (!notification) return
    if (notification.channel === 'pinpoint_heartbeat') {
      [cache.position] = notification.payload.split(' ')
    } else {
      await refresh(client, cache.rows, notification.payload)
    }
  }
}

async function load(client, cache) {
  const { rows } = await client.query('SELECT key, value FROM settings ORDER BY key')
  cache.rows = new Map(rows.map(({ key, value }) => [key, value]))
  console.log(`loaded ${rows.length}`)
  for (const { key, value } of rows) console.log(`${key} = ${value}`)
}

// SQLSTATEs of class 57 are of a server that ends sessions, 08 of connections.
function isConnectionError(error) {
  return error.severity === undefined || /^(57|08)/.test(error.code)
}

async function refresh(client, copy, key) {
  const { rows } = await client.query('SELECT value FROM settings WHERE key = $1', [key])
  if (rows.length > 0) {
    copy.set(key, rows[0].value)
    console.log(`${key} = ${rows[0].value}`)
  } else {
    copy.delete(key)
    console.log(`${key} gone`)
  }
}

// Does jobs until one says "stop".
async function work() {
  let done = 0
  const { client, next, isLost } = await listen('job_added')
  console.log('ready')
  for (;;) {
    for (let payload; (payload = await takeJob(client)) !== undefined; done++) {
      if (payload === 'stop') {
        console.log(`done ${done}`)
        return client.end()
      }
    }
    await next(LOOK_AGAIN)
    if (isLost()) throw new Error('the connection was lost')
  }
}

// Does one job, which nobody else does meanwhile, and returns its payload.
async function takeJob(client) {
  await client.query('BEGIN')
  const { rows: [job] } = await client.query(
    `SELECT id, payload FROM jobs WHERE result IS NULL
      ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1`)
  if (job) {
    await client.query(
      'UPDATE jobs SET result = $1, worker = pg_backend_pid() WHERE id = $2',
      [job.payload.toUpperCase(), job.id])
  }
  await client.query('COMMIT')
  return job?.payload
}

await { cache: keepCache, worker: work }[process.argv[2]]()
process.exit() // a connection that is silent need not end
