/** The programs of the README, and examples/node-recipes: with a server, as server.test.js. */

import assert from 'node:assert/strict'
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { chmod, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { createServer, get } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, before, test } from 'node:test'
import pg from 'pg'
import { Cache } from '../../../examples/node-recipes/cache.mjs'
import { runJobs } from '../../../examples/node-recipes/job-queue.mjs'
import { sendRows } from '../../../examples/node-recipes/server-sent-events.mjs'
import { Client } from '../src/client.js'

const skip = !process.env.PINPOINT_DSN && 'PINPOINT_DSN is not set'
const DATABASE = 'pinpoint_test_recipes'
let server // a connection to the database of PINPOINT_DSN
let database // and one to a new database
let dsn

before(async () => {
  if (skip) return
  server = new pg.Client(process.env.PINPOINT_DSN)
  await server.connect()
  await server.query(`DROP DATABASE IF EXISTS ${DATABASE} WITH (FORCE)`)
  await server.query(`CREATE DATABASE ${DATABASE}`)
  const url = new URL(process.env.PINPOINT_DSN)
  url.pathname = DATABASE
  dsn = url.href
  database = new pg.Client({ connectionString: dsn, application_name: 'test' })
  await database.connect()
  await database.query(`CREATE EXTENSION pg_pinpoint; CREATE TABLE orders (id int, total numeric, customer int);
    INSERT INTO orders VALUES (1, 9.50, 42); SELECT pinpoint.watch('orders')`)
})

after(async () => {
  if (skip) return
  await database.end()
  await server.query(`DROP DATABASE ${DATABASE} WITH (FORCE)`)
  await server.end()
})

async function until(condition, what) {
  const end = Date.now() + 20_000
  while (!(await condition())) {
    if (Date.now() > end) assert.fail(`not within 20 seconds: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

const change = (total) => database.query('UPDATE orders SET total = $1', [total])
const endConnections = () =>
  server.query('SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE datname = $1 AND application_name <> $2', [DATABASE, 'test'])

async function readmePrograms() {
  const text = await readFile(new URL('../README.md', import.meta.url), 'utf8')
  return [...text.matchAll(/^```js\n(.*?)^```/gms)].map(([, program]) => program)
}

/** Run a program of the README as its reader does, with its lines in an array. */
async function run(program, use) {
  const child = spawn(process.execPath, ['--input-type=module'], {
    cwd: new URL('..', import.meta.url), env: { ...process.env, DATABASE_URL: dsn }, stdio: ['pipe', 'pipe', 'inherit']
  })
  const lines = []
  createInterface({ input: child.stdout }).on('line', (line) => lines.push(line))
  child.stdin.end(program)
  try {
    await use((text) => until(() => lines.some((line) => line.includes(text)), `${text} in ${lines.join('; ')}`))
  } finally {
    child.kill()
  }
}

test('the programs of the README', { skip }, async () => {
  const [subscribes, lives] = await readmePrograms()
  await run(subscribes, async (shows) => {
    await shows('connected: push')
    await shows('read your tables: orders')
    await database.query("NOTIFY orders, 'hello'")
    await shows('read your tables: orders hello')
    await endConnections()
    await shows(': again in')
  })
  await run(lives, async (shows) => {
    await shows("[ { id: 1, total: '9.50' } ]")
    await change(10)
    await shows("[ { id: 1, total: '10' } ]")
    await endConnections()
    await change(11)
    await shows("[ { id: 1, total: '11' } ]")
  })
})

/** A request for server-sent events: { text, request }. */
function browse(port) {
  const browser = { text: '' }
  browser.request = get({ port, host: '127.0.0.1' }, (response) => {
    response.on('data', (data) => (browser.text += data)).on('error', () => {})
  })
  browser.request.on('error', () => {})
  return browser
}

test('server-sent events end with the request', { skip }, async () => {
  const client = new Client(dsn)
  const web = createServer(sendRows(client, 'SELECT total::int FROM orders'))
  await new Promise((resolve) => web.listen(0, '127.0.0.1', resolve))
  const browsers = [browse(web.address().port), browse(web.address().port)]
  const show = (text) => until(() => browsers.every((browser) => browser.text.endsWith(text)), text)
  try {
    await change(20)
    await show('data: [{"total":20}]\n\n')
    await endConnections()
    await change(21)
    await show('data: [{"total":21}]\n\n')
    assert.match(browsers[0].text, /event: stale\ndata:\n\n/)
    browsers.pop().request.destroy()
    await change(22)
    await show('data: [{"total":22}]\n\n')
    browsers.pop().request.destroy()
    await until(() => client.listener.channels.subscribers.size === 0, 'the live query ends')
  } finally {
    web.close()
    web.closeAllConnections()
    await client.close()
  }
})

test('a cache without a query per hit', { skip }, async () => {
  const client = new Client(dsn)
  let reads = 0
  let pause = () => {}
  const cache = new Cache(client, async () => {
    reads++
    const { rows } = await database.query('SELECT total::int FROM orders')
    await pause()
    return rows[0].total
  })
  const ended = assert.rejects(cache.ended, { message: 'the client is closed' })
  const hit = async () => {
    const earlier = reads
    await cache.get('orders')
    return reads === earlier
  }
  try {
    await change(30)
    await until(hit, 'a value is stored')
    assert.equal(await cache.get('orders'), 30)
    await change(31)
    await until(async () => (await cache.get('orders')) === 31, 'the change')
    await until(hit, 'a value is stored again')
    // A change while the value is read: it is not stored, or dropped.
    await change(32)
    await until(async () => !(await hit()), 'the value is dropped')
    await until(hit, 'a value is stored')
    await change(33)
    pause = async () => {
      pause = () => {}
      const before = client.stats().eventsGiven
      await change(34)
      await until(() => client.stats().eventsGiven > before, 'the event')
    }
    await until(async () => (await cache.get('orders')) === 34, 'the newest value')
    await until(hit, 'a value is stored')
    assert.equal(await cache.get('orders'), 34)
    // A lost connection.
    await endConnections()
    await change(35)
    await until(async () => (await cache.get('orders')) === 35, 'the change that was missed')
    await until(hit, 'a value is stored after the loss')
    assert.equal(client.stats().reconnects, 1)
  } finally {
    await client.close()
    await ended
  }
})

/** A PgBouncer in transaction mode before the server, whose pool has place for a client and 50 workers. Undefined: there is none. */
async function startPooler(t) {
  const env = { ...process.env, PATH: `${process.env.PATH}:/usr/sbin` }
  if (spawnSync('pgbouncer', ['--version'], { env }).error) return undefined
  const folder = await mkdtemp(join(tmpdir(), 'pinpoint-'))
  t.after(() => rm(folder, { recursive: true }))
  const password = database.password ? `password='${database.password}'` : ''
  const file = join(folder, 'pgbouncer.ini')
  await writeFile(file, `[databases]\n* = host=${database.host} port=${database.port} user=${database.user} ${password}\n` +
    `[pgbouncer]\nunix_socket_dir = ${folder}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 55\n`)
  await chmod(folder, 0o777)
  await chmod(file, 0o644)
  const user = []
  if (process.getuid() === 0) {
    // It refuses to run as root. The owner of a private TMPDIR can reach the folder.
    const { uid } = await stat(tmpdir())
    user.push('-u', execFileSync('id', ['-un', uid ? String(uid) : 'nobody'], { encoding: 'utf8' }).trim())
  }
  const pooler = spawn('pgbouncer', ['-q', ...user, file], { env, stdio: 'ignore' })
  t.after(() => pooler.kill())
  await until(() => existsSync(join(folder, '.s.PGSQL.6432')), 'PgBouncer starts')
  return { host: folder, port: 6432, user: 'u', database: DATABASE }
}

for (const pooled of [false, true]) {
  test(`a job queue with 50 workers, ${pooled ? 'behind PgBouncer in transaction mode' : 'direct'}`, { skip }, async (t) => {
    const config = pooled ? await startPooler(t) : { connectionString: dsn }
    if (!config) return t.skip('there is no PgBouncer')
    t.mock.method(console, 'error', () => {})
    await database.query(`DROP TABLE IF EXISTS jobs; CREATE TABLE jobs (id bigserial, payload text); SELECT pinpoint.watch('jobs')`)
    const insert = (first) => database.query('INSERT INTO jobs (payload) SELECT n::text FROM generate_series($1::int, $1 + 199) n', [first])
    const done = new Set()
    let running = 0
    let runs = 0
    let allRun
    const all = new Promise((resolve) => (allRun = resolve))
    let gate // for which jobs wait
    const run = async (payload) => {
      runs++
      if (++running === 50) allRun()
      await all
      await gate
      await new Promise((resolve) => setTimeout(resolve, 50))
      running--
      done.add(payload)
    }
    const client = new Client(config)
    const pool = new pg.Pool({ ...config, max: 50 })
    const ended = assert.rejects(runJobs(client, pool, run), { message: 'the client is closed' })
    try {
      for (const first of [0, 200, 400]) {
        if (first !== 200) await insert(first)
        else {
          let open
          gate = new Promise((resolve) => (open = resolve))
          await insert(first)
          await until(() => running === 50, '50 jobs run')
          await endConnections()
          open()
        }
        await until(() => done.size === first + 200, `the jobs from ${first} on`)
      }
      // ... and their sessions have not ended before COMMIT.
      await until(async () => (await database.query('SELECT FROM jobs')).rowCount === 0, 'no job is left')
      assert.ok(runs >= 650, 'the jobs that were running run again')
    } finally {
      await client.close()
      await ended
      await pool.end()
    }
  })
}
