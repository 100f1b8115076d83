// A cache that PostgreSQL keeps up to date, and a worker of a job queue.
//
//     node example.js cache | worker
//
// DATABASE_URL names the database, which has ../schema.sql.

import { setTimeout as sleep } from 'node:timers/promises'
import postgres from 'postgres'

const connect = (options) => postgres(process.env.DATABASE_URL,
  { max: 1, max_lifetime: null, fetch_types: false, connect_timeout: CONNECT_TIMEOUT, ...options })

// A worker also looks for jobs after so many milliseconds without a notification,
// because another worker may have given up a job.
const LOOK_AGAIN = 60_000

// Seconds until an attempt to connect is given up, and milliseconds before the next.
const CONNECT_TIMEOUT = 10
const RECONNECT_AFTER = 200

// Milliseconds until LISTEN or a query is given up.
const TIMEOUT = 10_000

// The codes of lost connections: codes with E are the system's, as ECONNRESET and EPIPE. The
// others are of servers that refuse connections or end sessions.
const LOST = /^(CONNECT|E|08|40001|53|57)/

// A session has notified on the channel of heartbeats.
const NO_POSITION = '22P02'

// The copy of the settings, and the position up to which it is right.
const cache = { rows: new Map(), position: null }

// Keeps the copy until there is a setting with the name "stop".
async function keepCache() {
  while (!cache.rows.has('stop')) {
    try {
      await follow()
    } catch (error) {
      if (error.code === NO_POSITION) cache.position = null
      else if (!LOST.test(error.code)) throw error
      await sleep(RECONNECT_AFTER)
    }
  }
}

// Rejects if the promise is not settled in time. The library itself has no time-out for queries.
function inTime(promise) {
  let timer
  const limit = new Promise((resolve, reject) => {
    timer = setTimeout(() => reject({ code: 'CONNECTION_SILENT' }), TIMEOUT)
  })
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer))
}

// Keeps the copy right until there is a "stop", the connection is lost, or heartbeats end.
async function follow() {
  let sql, timer
  let silence = 0
  await new Promise((resolve, reject) => {
    // One thing after the other, and none after one that failed.
    let last = Promise.resolve()
    const inOrder = (action) => {
      last = last.then(action).then(() => { if (cache.rows.has('stop')) resolve() })
      last.catch(reject)
    }
    const alive = () => {
      clearTimeout(timer)
      if (silence) timer = setTimeout(resolve, silence)
    }

    // Not sql.listen(): after a lost connection, that connects and LISTENs again by itself.
    // Notifications of the new connection can come before the library says so, and a LISTEN
    // that fails is not tried again.
    sql = connect({
      onnotify(channel, payload) {
        if (channel === 'setting_changed') {
          inOrder(() => refresh(sql, payload))
        } else {
          alive()
          inOrder(() => { [cache.position] = payload.split(' ') })
        }
      },
      onclose() { reject({ code: 'CONNECTION_CLOSED' }) }
    })
    // First LISTEN, then look: what changes in between is told, and comes after this.
    inOrder(() => inTime(sql`LISTEN pinpoint_heartbeat`))
    inOrder(() => inTime(sql`LISTEN setting_changed`))
    inOrder(async () => {
      silence = 3 * await catchUp(sql)
      alive()
    })
  }).finally(() => {
    clearTimeout(timer)
    return sql?.end({ timeout: 0 })
  })
}

// Reads again what was missed. Returns the milliseconds between heartbeats; 0 is never.
async function catchUp(sql) {
  // Without pg_pinpoint there is no row.
  const [heartbeat] = await inTime(sql`
    SELECT setting::int AS interval FROM pg_settings
     WHERE name = 'pinpoint.heartbeat_interval'
       AND to_regproc('pinpoint.changed_since') IS NOT NULL`)
  // Stock PostgreSQL does not know what has changed.
  let answer = { changed: true, position: null }
  if (heartbeat) {
    [answer] = await inTime(sql`
      SELECT cardinality(changed) > 0 AS changed, position
        FROM pinpoint.changed_since(${cache.position}, 'setting_changed')`)
  }
  if (answer.changed) {
    await load(sql)
  } else {
    console.log('nothing missed')
  }
  cache.position = answer.position
  return heartbeat?.interval ?? 0
}

async function load(sql) {
  const rows = await inTime(sql`SELECT key, value FROM settings ORDER BY key`)
  cache.rows = new Map(rows.map(({ key, value }) => [key, value]))
  console.log(`loaded ${rows.length}`)
  for (const { key, value } of rows) console.log(`${key} = ${value}`)
}

async function refresh(sql, key) {
  const [row] = await inTime(sql`SELECT value FROM settings WHERE key = ${key}`)
  if (row) {
    cache.rows.set(key, row.value)
    console.log(`${key} = ${row.value}`)
  } else {
    cache.rows.delete(key)
    console.log(`${key} gone`)
  }
}

// Does jobs until one says "stop".
async function work() {
  const sql = connect()
  let done = 0
  let told = false
  let wake = () => {}
  await sql.listen('job_added', () => { told = true; wake() })
  console.log('ready')
  for (;;) {
    told = false
    for (let payload; (payload = await takeJob(sql)) !== undefined; done++) {
      if (payload === 'stop') {
        console.log(`done ${done}`)
        return sql.end()
      }
    }
    if (!told) {
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, LOOK_AGAIN)
        wake = () => { clearTimeout(timer); resolve() }
      })
    }
  }
}

// Does one job, which nobody else does meanwhile, and returns its payload.
function takeJob(sql) {
  return sql.begin(async (sql) => {
    const [job] = await sql`
      SELECT id, payload FROM jobs WHERE result IS NULL
       ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1`
    if (!job) return undefined
    await sql`
      UPDATE jobs SET result = ${job.payload.toUpperCase()}, worker = pg_backend_pid()
       WHERE id = ${job.id}`
    return job.payload
  })
}

await { cache: keepCache, worker: work }[process.argv[2]]()
process.exit() // a connection that is silent need not end
