/** Connections, with limits of time. */

import pg from 'pg'

/** The server does not answer any more. */
export class ConnectionLost extends Error {}

/** pg takes one host. A list of hosts, as libpq has it, becomes a list of configurations. */
export function hosts(config) {
  const [, attributes = 'any'] = /[?&]target_session_attrs=([^&]*)/.exec(config.connectionString ?? '') ?? []
  if (attributes !== 'any') {
    throw new TypeError('target_session_attrs is not supported, because pg ignores it: name only hosts that have the attribute')
  }
  // The hosts end at "/" or "?": a comma before "@" is one of the user or password.
  const [, before, list, after] = /^(\w+:\/\/(?:[^@/?]*@)?)([^@/?]*,[^@/?]*)((?:[/?].*)?)$/s.exec(config.connectionString ?? '') ?? []
  if (!list) return [config]
  return list.split(',').map((host) => ({ ...config, connectionString: before + host + after }))
}

/** A promise that fails after some seconds; then the connection is closed. */
export async function limited(connection, promise, seconds) {
  let timer
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => {
      destroy(connection)
      reject(new ConnectionLost('the server does not answer'))
    }, seconds * 1000)
  })
  try {
    return await Promise.race([promise, limit])
  } finally {
    clearTimeout(timer)
  }
}

/** open: a set of all connections of the client. */
export async function connect(config, timeout, open) {
  const connection = new pg.Client(config)
  connection.on('error', () => {}) // "end" follows
  // connect() itself never returns if the connection is closed here.
  const ended = new Promise((_, reject) => {
    connection.on('end', () => {
      open.delete(connection)
      reject(new ConnectionLost('the connection was closed'))
    })
  })
  ended.catch(() => {})
  open.add(connection)
  try {
    await limited(connection, Promise.race([connection.connect(), ended]), timeout)
    return connection
  } catch (error) {
    destroy(connection)
    throw error
  }
}

/** Close a connection at once, whatever it is doing. */
export function destroy(connection) {
  connection.end().catch(() => {})
  connection.connection.stream.destroy()
}

/** A row, at READ COMMITTED, which the functions need. */
export async function fetch(connection, timeout, text, values) {
  const work = async () => {
    await connection.query('BEGIN ISOLATION LEVEL READ COMMITTED')
    const result = await connection.query({ text, values, rowMode: 'array' })
    await connection.query('COMMIT')
    return result.rows[0]
  }
  return limited(connection, work(), timeout)
}
