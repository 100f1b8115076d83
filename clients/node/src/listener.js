/** The connection that receives notifications: by LISTEN and heartbeats, or by pinpoint.wait(). */

import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { ConnectionLost, destroy, fetch, limited } from './connection.js'

export const HEARTBEAT = 'pinpoint_heartbeat'

// to_regproc returns NULL on a server without pg_pinpoint.
const INQUIRY = `
  SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), pg_backend_pid(),
         to_regproc('pinpoint.changed_since') IS NOT NULL,
         to_regproc('pinpoint.wait') IS NOT NULL,
         coalesce((SELECT setting::float8 / 1000 FROM pg_settings
                    WHERE name = 'pinpoint.heartbeat_interval'), 0),
         (SELECT coalesce(min(setting::float8), 0) / 1000 FROM pg_settings
          WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0')`
const HAS_PINPOINT = "SELECT to_regproc('pinpoint.changed_since') IS NOT NULL"
const CHANGED_SINCE = 'SELECT changed::text[], position FROM pinpoint.changed_since($1, VARIADIC $2::text[])'
const WAIT = 'CALL pinpoint.wait($1::text[], $2::text, $3::interval)'

const NO_LISTEN =
  'LISTEN does not work through this connection, because a pooler gives each transaction another session.' +
  ' Connect to the server, or to a pool in session mode, or install pg_pinpoint 1.1 or later in this database.'

/** A subscription or a live query cannot go on. code: the SQLSTATE, if the server has sent one. */
export class PinpointError extends Error {
  constructor(message, code) {
    super(message)
    this.name = 'PinpointError'
    this.code = code
  }
}

/** The part of a position that tells the server. */
export const serverOf = (position) => position?.split('-').slice(0, 2).join('-')

/** Something that can be waited for. */
export class Signal {
  set() {
    this.isSet = true
    this.resolve?.()
  }

  clear() {
    this.isSet = false
    this.promise = null
  }

  wait() {
    if (this.isSet) return Promise.resolve()
    this.promise ??= new Promise((resolve) => (this.resolve = resolve))
    return this.promise
  }
}

/** Keeps one connection that receives the notifications of a client. */
export class Listener {
  subscribers = new Set() // subscriptions and live queries
  listened = new Set()
  position = null
  connected = null
  everConnected = false
  changes = new Signal() // the channels of the subscribers have changed

  constructor(client) {
    this.client = client
    this.waits = client.options.mode === 'wait'
    this.done = this.run()
  }

  async run() {
    const { options } = this.client
    let failures = 0
    while (!this.client.closed) {
      let error
      try {
        await this.session()
        continue // with other channels
      } catch (reason) {
        error = reason
      }
      if (this.client.closed) return
      // Of a false heartbeat, or unknown to an older version: ask without.
      if (error.code === '22P02') this.position = null
      failures = this.connected ? 1 : failures + 1
      this.connected = null
      this.client.dropQueryConnections()
      const permanent = error instanceof PinpointError || isPermanent(error)
      if ((permanent && !this.everConnected) || failures > options.maxAttempts) {
        this.client.fail(new PinpointError(describe(error), error.code))
        return
      }
      let delay = Math.min(options.maxBackoff, options.minBackoff * 2 ** Math.min(failures - 1, 30))
      delay *= 0.5 + Math.random() / 2
      this.tellAll({ event: 'disconnected', reason: describe(error), retryIn: delay })
      await this.client.sleep(delay)
    }
  }

  /** Connect, and receive until the connection is lost. */
  async session() {
    const { options } = this.client
    const connection = await this.client.connect()
    const lost = (error) => {
      connection.lost ??= error ?? new ConnectionLost('the connection was closed')
      this.changes.set()
    }
    connection.on('error', lost).on('end', lost)
    try {
      this.listened = new Set()
      const [version, standby, pid, pinpoint, hasWait, interval, timeLimit] = await fetch(connection, options.timeout, INQUIRY)
      const pooled = pid !== connection.processID
      // If only the channels have changed, the client is still connected.
      let waits = this.waits || this.connected?.mode === 'wait'
      if (pooled && !waits && options.mode === 'auto') waits = !(await this.hearsThroughPooler(connection, standby, hasWait))
      if (waits && !hasWait) throw new PinpointError('waiting needs the extension pg_pinpoint 1.1 or later in this database')
      if (!pinpoint) this.position = null
      const connected = { event: 'connected', serverVersion: version, standby, mode: waits ? 'wait' : 'push' }
      const heartbeats = pinpoint && interval > 0
      if (waits) await this.wait(connection, connected, timeLimit)
      else await this.listen(connection, connected, { pinpoint, hasWait, pooled, interval: heartbeats ? interval : 0 })
    } finally {
      connection.off('error', lost).off('end', lost)
      destroy(connection)
    }
  }

  /** Does a notification arrive while no transaction is running? */
  async hearsThroughPooler(connection, standby, hasWait) {
    const { timeout, probeTimeout } = this.client.options
    if (standby) return !hasWait // a standby cannot notify
    const channel = 'pinpoint_probe_' + randomBytes(8).toString('hex')
    let heard = false
    const arrives = new Promise((resolve) => {
      connection.on('notification', (message) => {
        heard ||= message.channel === channel
        if (heard) resolve()
      })
    })
    await limited(connection, connection.query(`LISTEN ${channel}`), timeout)
    const other = await this.client.connect()
    try {
      await limited(other, other.query("SELECT pg_notify($1, '')", [channel]), timeout)
    } finally {
      destroy(other)
    }
    await Promise.race([arrives, this.client.sleep(probeTimeout)])
    connection.removeAllListeners('notification')
    await limited(connection, connection.query(`UNLISTEN ${channel}`), timeout)
    if (!heard && !hasWait) throw new PinpointError(NO_LISTEN)
    return heard
  }

  // ---- Channels ---------------------------------------------------------------

  wanted() {
    this.changes.clear()
    return new Set([...this.subscribers].flatMap((subscriber) => [...subscriber.channels]))
  }

  /** Does a call that waits for these channels have all wanted ones? Then it continues, and subscribers are told. */
  covers(asked) {
    const covers = [...this.wanted()].every((channel) => asked.has(channel))
    if (covers) this.tellChanged(asked, new Set())
    return covers
  }

  /** Tell subscribers of changed channels, and of all whose notifications they receive from now on. */
  tellChanged(heard, changed) {
    for (const subscriber of this.subscribers) {
      const channels = [...subscriber.channels].filter(
        (channel) => heard.has(channel) && (changed.has(channel) || !subscriber.heard.has(channel))
      )
      for (const channel of channels) subscriber.heard.add(channel)
      if (channels.length > 0) subscriber.putChanged(channels)
    }
  }

  tellAll(event) {
    for (const subscriber of this.subscribers) subscriber.put(event)
  }

  begin(connected) {
    this.connected = connected
    this.everConnected = true
    this.tellAll(connected)
  }

  // ---- LISTEN -----------------------------------------------------------------

  async listen(connection, connected, server) {
    const { options } = this.client
    const quiet = server.interval ? 3 * server.interval : options.checkInterval
    let heard = performance.now()
    let anyHeartbeat = false
    let early = [] // what arrives before "connected"
    const dispatch = (event) => {
      for (const subscriber of this.subscribers) if (subscriber.heard.has(event.channel)) subscriber.put(event)
    }
    connection.on('notification', ({ channel, payload, processId }) => {
      heard = performance.now()
      if (channel === HEARTBEAT) {
        anyHeartbeat = true
        if (!early) this.position = payload.split(' ')[0]
        return
      }
      const event = { event: 'notification', channel, payload, pid: processId }
      if (early) early.push(event)
      else dispatch(event)
    })
    if (server.interval) await limited(connection, connection.query(`LISTEN ${HEARTBEAT}`), options.timeout)
    for (;;) {
      const wanted = this.wanted()
      await this.listenTo(connection, wanted, server.hasWait)
      let changed = new Set()
      if (!this.connected) {
        changed = wanted
        if (server.pinpoint) {
          const row = await fetch(connection, options.timeout, CHANGED_SINCE, [this.position, [...wanted]])
          changed = new Set(row[0])
          this.position = row[1]
        }
        this.begin(connected)
      }
      this.tellChanged(wanted, changed)
      early?.forEach(dispatch)
      early = null

      while (connection.lost || !this.changes.isSet) {
        if (connection.lost) throw connection.lost
        const rest = heard / 1000 + quiet - performance.now() / 1000
        if (rest > 0) {
          this.changes.clear() // its promise would keep what belongs to each race
          await Promise.race([this.changes.wait(), this.client.sleep(rest)])
        } else if (server.interval) {
          // What has arrived while something else ran is read now.
          await new Promise((resolve) => setImmediate(resolve))
          if (performance.now() < heard + quiet * 1000) continue
          if (server.pooled && server.hasWait && !anyHeartbeat && options.mode === 'auto') {
            await fetch(connection, options.timeout, HAS_PINPOINT) // it is not the connection
            this.waits ||= !anyHeartbeat
          }
          throw new ConnectionLost(`no heartbeat for ${quiet} seconds`)
        } else {
          const { rows } = await limited(connection, connection.query({ text: HAS_PINPOINT, rowMode: 'array' }), options.timeout)
          if (rows[0][0] !== server.pinpoint) throw new ConnectionLost('the extension pg_pinpoint was created or dropped')
          heard = performance.now()
        }
        if (this.client.closed) return
      }
    }
  }

  /** Make the connection listen to these channels. */
  async listenTo(connection, wanted, hasListen) {
    const fresh = [...wanted].filter((channel) => !this.listened.has(channel))
    const gone = [...this.listened].filter((channel) => !wanted.has(channel))
    const queries = []
    if (hasListen) {
      if (fresh.length) queries.push(['SELECT pinpoint.listen(VARIADIC $1::text[])', [fresh]])
      if (gone.length) queries.push(['SELECT pinpoint.unlisten(VARIADIC $1::text[])', [gone]])
    } else {
      const statements = [
        ...fresh.map((channel) => `LISTEN ${pg.escapeIdentifier(channel)}`),
        ...gone.map((channel) => `UNLISTEN ${pg.escapeIdentifier(channel)}`)
      ]
      if (statements.length) queries.push([statements.join(';')])
    }
    for (const [text, values] of queries) await limited(connection, connection.query(text, values), this.client.options.timeout)
    this.listened = wanted
  }

  // ---- pinpoint.wait() ----------------------------------------------------------

  async wait(connection, connected, timeLimit) {
    const { options } = this.client
    const longest = Math.min(options.checkInterval, timeLimit ? timeLimit / 2 : Infinity)
    for (let first = true; ; ) {
      const wanted = this.wanted()
      if (this.connected) this.tellChanged(wanted, new Set())
      // The first call shows whether it works. It ends at once, so each connection brings an answer,
      // however often the channels change.
      const seconds = first ? 0 : longest
      const values = [wanted.size ? [...wanted] : [HEARTBEAT], this.position, `${seconds} s`]
      const call = limited(connection, connection.query({ text: WAIT, values }), seconds + options.timeout)
      call.catch(() => {})
      try {
        let result
        while (!(result = await Promise.race(first ? [call] : [call, this.changes.wait()]))) {
          if (connection.lost) throw connection.lost
          // pg cannot cancel a query: wait for the other channels on a new connection.
          if (this.client.closed || !this.covers(wanted)) return
        }
        if (connection.lost) throw connection.lost
        const { changed, position } = result.rows[0]
        // A connection for other channels: the live queries have theirs.
        if (first && this.connected && serverOf(position) !== serverOf(this.position))
          throw new ConnectionLost('the connection leads to another server')
        first = false
        this.position = position
        if (!this.connected) this.begin(connected)
        this.tellChanged(wanted, new Set(changed))
        if (changed.length) await this.client.sleep(options.minInterval)
      } catch (error) {
        if (error.code !== '57014') throw error // a timeout that the server has
      }
      if (this.client.closed) return
    }
  }
}

export function describe(error) {
  const text = error.message || error.code || String(error)
  return error.hint ? `${text} (${error.hint})` : text
}

/** Errors that another attempt does not mend: authorization, no such database, no such feature. */
function isPermanent(error) {
  if (/^SASL: .*password/.test(error.message)) return true // there is none
  return /^(28|3D|42|0A)/.test(error.code ?? '') || /^(ERR_TLS|CERT|DEPTH_ZERO|SELF_SIGNED|UNABLE_TO)/.test(error.code ?? '')
}
