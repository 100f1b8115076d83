/** Connections, with limits of time. */

import pg from 'pg'
import { ConnectionLost } from './errors.js'

/**
 * The client's sessions are idle by purpose, and what they execute ends with their connection. Those of a pooler are not only
 * its own. $1: the process ID of the connection.
 */
export const OWN_SESSION = `
  (SELECT string_agg(set_config(name, CASE setting WHEN '0' THEN '1s' ELSE '0' END, false), '') FROM pg_settings
    WHERE pg_backend_pid() = $1::int AND (name = 'idle_session_timeout' AND setting <> '0'
          OR name = 'client_connection_check_interval' AND setting = '0' AND version() ~ 'linux'))`

/** The connections of a client. */
export class Connections {
  #configs
  #timeout
  #open = new Set()
  #places // in each, a live query can be executed: { connection }, which is of the last one
  #queue = [] // of live queries that wait for a place

  constructor(config, { timeoutMs, queryConnections }) {
    this.#configs = hosts(typeof config === 'string' ? { connectionString: config } : config)
    this.#timeout = timeoutMs
    this.#places = Array.from({ length: queryConnections }, () => ({}))
  }

  /** Connect to the first host that answers. */
  async connect() {
    const open = this.#open
    let error
    for (const config of this.#configs) {
      try {
        return await connect(config, this.#timeout, open)
      } catch (reason) {
        error = reason
      }
      if (open !== this.#open) break // drop() was called
    }
    throw error
  }

  /** Wait until a live query can be executed. */
  async takePlace() {
    return this.#places.pop() ?? new Promise((resolve) => this.#queue.push(resolve))
  }

  givePlace(place) {
    if (this.#queue.length) this.#queue.shift()(place)
    else this.#places.push(place)
  }

  /** Close all, because the client is closed, or may now listen on another server. */
  drop() {
    this.#open.forEach(destroy)
    this.#open = new Set()
  }
}

/** pg takes one host. A list of hosts, as libpq has it, becomes a list of configurations. */
export function hosts(config) {
  const text = config.connectionString ?? ''
  if (/[?&]target_session_attrs=(?!any(&|$))/.test(text)) {
    throw new TypeError('target_session_attrs is not supported, because pg ignores it: name only hosts that have the attribute')
  }
  // The hosts end at "/" or "?": a comma before "@" is one of the user or password.
  const [, before, list, after] = /^(\w+:\/\/(?:[^@/?]*@)?)([^@/?]*,[^@/?]*)((?:[/?].*)?)$/s.exec(text) ?? []
  if (!list) return [config]
  return list.split(',').map((host) => ({ ...config, connectionString: before + host + after }))
}

/** A promise that fails after some milliseconds; then the connection is closed. */
export async function limited(connection, promise, ms) {
  if (ms === Infinity) return promise
  let timer
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => {
      destroy(connection)
      reject(new ConnectionLost('the server does not answer'))
    }, ms)
  })
  try {
    return await Promise.race([promise, limit])
  } finally {
    clearTimeout(timer)
  }
}

/** pg throws where nobody catches it if it cannot read an answer, which would end the program: it ends the connection. */
function guard(stream) {
  const { emit } = stream
  stream.emit = (...event) => {
    try {
      return emit.apply(stream, event)
    } catch (error) {
      stream.destroy(error)
    }
  }
}

/** A connection of pg. open: a set that has it while it is open. lost: why it has ended. destroyed: the client has ended it. */
async function connect(config, ms, open) {
  const connection = new pg.Client(config)
  connection.connectionParameters.fallback_application_name ||= 'pg-pinpoint'
  const lost = (error) => (connection.lost ??= error ?? new ConnectionLost('the connection was closed'))
  connection.on('error', lost).on('end', lost) // an "end" may follow an "error" late
  connection.on('end', () => open.delete(connection))
  for (const event of ['connect', 'sslconnect']) connection.connection.on(event, () => guard(connection.connection.stream))
  open.add(connection)
  try {
    await limited(connection, connection.connect(), ms)
    return connection
  } catch (error) {
    destroy(connection)
    throw error
  }
}

/** Close a connection at once, whatever it is doing. pg's own end() waits for the server, and connect() would never return. */
export function destroy(connection) {
  connection.destroyed = true
  connection.lost ??= new ConnectionLost('the client has closed the connection')
  connection.connection.end()
  connection.connection.stream.destroy()
}

/** Has the other side ended the connection? The error of a query may come before that of its connection. */
export const hasEnded = (connection, error) => !connection.destroyed && (connection.lost || /^57P/.test(error?.code))

/** A row, at READ COMMITTED, which the functions need. */
export async function fetch(connection, ms, text, values) {
  const work = async () => {
    await connection.query('BEGIN ISOLATION LEVEL READ COMMITTED')
    const result = await connection.query({ text, values, rowMode: 'array' })
    await connection.query('COMMIT')
    return result.rows[0]
  }
  return limited(connection, work(), ms)
}
