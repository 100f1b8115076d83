/**
 * A job queue: the workers of a process share one client and one pool. Any number of processes can run.
 *
 *     const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 50 }) // 50 workers
 *     await runJobs(new Client(process.env.DATABASE_URL), pool, async (payload) => ...) // Client: of pg-pinpoint
 *
 * Needs a table that is watched: CREATE TABLE jobs (id bigserial, payload text); SELECT pinpoint.watch('jobs').
 * Behind a pooler in transaction mode, each client holds a connection of the pooler nearly all the time, in pinpoint.wait().
 * So with `wait`, its pool must be larger than the number of clients: by the number of jobs that run at the same time.
 *
 * A job that fails, or whose session ends, is free again, so a job may run twice. runJobs() ends with the final error of the
 * client, also if it is closed. Then pool.end() waits for the jobs that are running.
 */
import { setTimeout as sleep } from 'node:timers/promises'

const TAKE = 'DELETE FROM jobs WHERE id = (SELECT id FROM jobs ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING payload'

export async function runJobs(client, pool, run) {
  let idle = pool.options.max // workers
  let look = false // somebody has to: one look is enough for any number of events

  function wake() {
    look = true
    if (idle > 0) work()
  }

  async function work() {
    idle--
    while (look && !pool.ending) {
      look = false
      let connection
      try {
        connection = await pool.connect()
        await connection.query('BEGIN')
        const [job] = (await connection.query(TAKE)).rows
        if (job) wake() // there may be more: they are for the other workers
        if (job) await run(job.payload)
        await connection.query('COMMIT')
        connection.release()
        if (job) look = true
      } catch (error) {
        console.error('a job is free again:', error.message)
        connection?.release(error) // which ends the session
        await sleep(1000)
        look = true
      }
    }
    idle++
  }

  // A session that ends between two statements would end the program.
  pool.on('error', () => {}).on('connect', (connection) => connection.on('error', () => {}))
  const timer = setInterval(wake, 60_000) // without an event: another process may have ended in the middle of a job
  try {
    for await (const event of client.subscribe('jobs')) if (event.event !== 'disconnected') wake()
  } finally {
    clearInterval(timer)
  }
}
