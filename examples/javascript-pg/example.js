// A cache that PostgreSQL keeps up to date, and a worker of a job queue.
//
//     node example.js cache | worker
//
// DATABASE_URL names the database, which has ../schema.sql.

import pg from 'pg'

const connectionString = process.env.DATABASE_URL

// A worker looks again after so many milliseconds, whatever it was told: a job may
// have been given up by another worker.
const LOOK_AGAIN = 60_000

// Connects and LISTENs. next() waits for a payload, or for nothing at the end of
// the connection or of the time.
async function listen(channel) {
  const client = new pg.Client({ connectionString })
  const payloads = []
  let lost = false
  let wake = () => {}
  client.on('notification', (message) => { payloads.push(message.payload); wake() })
  client.on('error', () => { lost = true; wake() })
  client.on('end', () => { lost = true; wake() })
  await client.connect()
  await client.query(`LISTEN ${channel}`)
  const next = async (timeout) => {
    let timer
    if (payloads.length === 0 && !lost) {
      await new Promise((resolve) => {
        wake = resolve
        if (timeout) timer = setTimeout(resolve, timeout)
      })
    }
    clearTimeout(timer)
    return payloads.shift()
  }
  return { client, next, isLost: () => lost }
}

// Keeps a copy of the settings until there is one with the name "stop".
async function keepCache() {
  for (;;) {
    try {
      // First LISTEN, then read: what changes in between is told.
      const { client, next } = await listen('setting_changed')
      const { rows } = await client.query('SELECT key, value FROM settings')
      const cache = new Map(rows.map(({ key, value }) => [key, value]))
      console.log(`loaded ${cache.size}`)
      for (let key; (key = await next()) !== undefined;) {
        await refresh(client, cache, key)
        if (cache.has('stop')) return client.end()
      }
    } catch (error) {
      if (!isConnectionError(error)) throw error
    }
    // What changed meanwhile nobody will tell: connect, and read all.
  }
}

// SQLSTATEs of class 57 are of a server that ends sessions, 08 of connections.
function isConnectionError(error) {
  return error.severity === undefined || /^(57|08)/.test(error.code)
}

async function refresh(client, cache, key) {
  const { rows } = await client.query('SELECT value FROM settings WHERE key = $1', [key])
  if (rows.length > 0) {
    cache.set(key, rows[0].value)
    console.log(`${key} = ${rows[0].value}`)
  } else {
    cache.delete(key)
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
