// A cache that PostgreSQL keeps up to date, and a worker of a job queue.
//
//     node example.js cache | worker
//
// DATABASE_URL names the database, which has ../schema.sql.

import postgres from 'postgres'

const sql = postgres(process.env.DATABASE_URL, { max: 1 })

// A worker looks again after so many milliseconds, whatever it was told: a job may
// have been given up by another worker.
const LOOK_AGAIN = 60_000

// One thing after the other, in the order in which they were asked for.
let last = Promise.resolve()
function inOrder(action) {
  last = last.then(action)
  return last
}

// Keeps a copy of the settings until there is one with the name "stop".
async function keepCache() {
  const cache = new Map()
  await new Promise((resolve, reject) => {
    const changed = (key) => inOrder(async () => {
      await again(() => refresh(cache, key))
      if (cache.has('stop')) resolve()
    }).catch(reject)

    // The library LISTENs again after a connection was lost, and then calls this:
    // what changed meanwhile nobody will tell, so read all.
    const listening = () => inOrder(() => again(async () => {
      const rows = await sql`SELECT key, value FROM settings`
      cache.clear()
      for (const { key, value } of rows) cache.set(key, value)
      console.log(`loaded ${cache.size}`)
    })).catch(reject)

    sql.listen('setting_changed', changed, listening).catch(reject)
  })
  await sql.end()
}

// The connection for queries may have been lost as well; the next one is new.
async function again(action) {
  for (;;) {
    try {
      return await action()
    } catch (error) {
      if (!/^(CONNECTION_|ECONN|57P)/.test(error.code)) throw error
    }
  }
}

async function refresh(cache, key) {
  const [row] = await sql`SELECT value FROM settings WHERE key = ${key}`
  if (row) {
    cache.set(key, row.value)
    console.log(`${key} = ${row.value}`)
  } else {
    cache.delete(key)
    console.log(`${key} gone`)
  }
}

// Does jobs until one says "stop".
async function work() {
  let done = 0
  let told = false
  let wake = () => {}
  await sql.listen('job_added', () => { told = true; wake() })
  console.log('ready')
  for (;;) {
    told = false
    for (let payload; (payload = await takeJob()) !== undefined; done++) {
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
function takeJob() {
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
