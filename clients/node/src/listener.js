/** The connection that receives notifications: by LISTEN and heartbeats, or by pinpoint.wait(). */

import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { backoff } from './backoff.js'
import { Channels, HEARTBEAT } from './channels.js'
import { Condition } from './condition.js'
import { destroy, fetch, OWN_SESSION, limited } from './connection.js'
import { ConnectionLost, describe, isPermanent, ofLoop, PinpointError } from './errors.js'

// A schema that the role may not use is as one that is not there: to_regproc would fail. With pinpoint.sql there are no
// heartbeats, even if the server has the library for another database.
const HAS = (name) => `EXISTS (SELECT FROM pg_proc JOIN pg_namespace ON pronamespace = pg_namespace.oid
                 WHERE nspname = 'pinpoint' AND proname = '${name}' AND has_schema_privilege(pg_namespace.oid, 'USAGE'))`
const INQUIRY = `
  SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), pg_backend_pid(),
         ${HAS('changed_since')}, ${HAS('wait')},
         coalesce((SELECT setting::float8 FROM pg_settings WHERE name = 'pinpoint.heartbeat_interval'
                    AND EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_pinpoint')), 0),
         (SELECT coalesce(min(setting::float8), 0) FROM pg_settings
          WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0'),
         (SELECT format('GRANT USAGE ON SCHEMA pinpoint TO %I', current_user) FROM pg_namespace
           WHERE nspname = 'pinpoint' AND NOT has_schema_privilege(oid, 'USAGE')),
         ${OWN_SESSION}`
const HAS_PINPOINT = `SELECT ${HAS('changed_since')}`
const CHANGED_SINCE = 'SELECT changed::text[], position FROM pinpoint.changed_since($1, VARIADIC $2::text[])'
// Of those of the channels that watched tables have.
const TABLES_CHANGED = `SELECT changed::text[], position FROM pinpoint.changed_since($1,
  VARIADIC ARRAY(SELECT channel::text FROM pinpoint.watched WHERE channel = ANY ($2::text[])))`
const LISTEN = 'SELECT pinpoint.listen(VARIADIC $1::text[]), pinpoint.unlisten(VARIADIC $2::text[])'
const WAIT = 'CALL pinpoint.wait($1::text[], $2::text, $3::interval)'

const NO_LISTEN =
  'LISTEN does not work through this connection, because a pooler gives each transaction another session.' +
  ' Connect to the server, or to a pool in session mode, or install pg_pinpoint 1.1 or later, or its pinpoint.sql, in this database.'

const NEEDS = 'needs pg_pinpoint 1.1 or later, or its pinpoint.sql, in this database'

export const OTHER_SERVER = 'the connection leads to another server than the one on which the client listens'

const commands = (name, channels) => [...channels].map((channel) => `${name} ${pg.escapeIdentifier(channel)}`)

/** The part of a position that tells the server. */
export const serverOf = (position) => position?.split('-').slice(0, 2).join('-')

/** Keeps one connection that receives the notifications of a client. */
export class Listener {
  channels = new Channels()
  position = null // from which the next connection asks what has changed
  connected = null // the event
  connectedAt = null
  failure = null // why there is no connection, if an attempt has failed or it was lost: { reason, cause, retryAt }
  heardAt = null // the last sign of life
  refusesLive = null // the error of live queries on this server

  constructor(client) {
    this.client = client
    this.waits = client.options.mode === 'wait'
    this.done = this.run().catch((error) => client.fail(ofLoop(error)))
  }

  async run() {
    const { client } = this
    const { options } = client
    let failures = 0
    while (!client.closed) {
      try {
        await this.session() // until it needs a new connection for other channels
      } catch (error) {
        if (client.closed) return
        // Of a false heartbeat, or unknown to an older version: ask without.
        if (error?.code === '22P02') this.position = null
        const lasted = this.connected && performance.now() - this.connectedAt >= options.maxBackoffMs
        failures = lasted ? 1 : failures + 1
        this.connected = null
        client.connections.drop()
        const reason = describe(error)
        if ((isPermanent(error) && this.connectedAt === null) || failures > options.maxAttempts)
          return client.fail(new PinpointError(reason, error?.code, { cause: error }))
        const retryInMs = Math.round(backoff(failures, options))
        client.log('warn', `disconnected: ${reason}; the next attempt is in ${retryInMs} ms`)
        this.failure = { reason, cause: error, retryAt: performance.now() + retryInMs }
        this.channels.tellAll({ event: 'disconnected', reason, retryInMs, cause: error })
        await client.sleep(retryInMs)
      }
    }
  }

  /** What a new consumer is told: "connected", "disconnected", or nothing while the first attempt goes on. */
  current() {
    if (this.connected) return this.connected
    if (!this.failure) return undefined
    const { reason, cause, retryAt } = this.failure
    return { event: 'disconnected', reason, retryInMs: Math.max(0, Math.round(retryAt - performance.now())), cause }
  }

  /** Connect, and receive until the connection is lost. */
  async session() {
    const { mode, timeoutMs } = this.client.options
    const connection = await this.client.connections.connect()
    const lost = () => this.channels.changes.set()
    connection.on('error', lost).on('end', lost)
    try {
      const inquiry = await fetch(connection, timeoutMs, INQUIRY, [connection.processID])
      const [serverVersion, standby, pid, pinpoint, hasWait, interval, timeLimit, grant] = inquiry
      if (hasWait) this.refusesLive = null
      else if (grant) this.refusesLive = new PinpointError(`a live query needs a privilege: execute ${grant}`, '42501')
      else this.refusesLive = new PinpointError(`a live query ${NEEDS}`, '0A000')
      const pooled = pid !== connection.processID
      // If only the channels have changed, the client is still connected.
      let waits = this.waits || this.connected?.mode === 'wait'
      if (pooled && !waits && mode === 'auto') {
        waits = !(await this.hearsThroughPooler(connection, standby, hasWait))
        this.client.log('info', `behind a pooler: ${waits ? 'pinpoint.wait()' : 'LISTEN'} is used`)
      }
      if (waits && !hasWait) throw new PinpointError(`waiting ${NEEDS}`, '0A000')
      if (!pinpoint) this.position = null
      const connected = { event: 'connected', serverVersion, standby, mode: waits ? 'wait' : 'push' }
      const server = { pinpoint, hasWait, interval: pinpoint ? interval : 0, isUncertain: pooled && hasWait && mode === 'auto' }
      if (waits) await this.wait(connection, connected, timeLimit)
      else await this.listen(connection, connected, server)
    } finally {
      destroy(connection)
    }
  }

  /** Does a notification arrive while no transaction is running? */
  async hearsThroughPooler(connection, standby, hasWait) {
    const { timeoutMs, probeTimeoutMs } = this.client.options
    if (standby) return !hasWait // a standby cannot notify
    const channel = 'pinpoint_probe_' + randomBytes(8).toString('hex')
    const heard = new Condition()
    connection.on('notification', (message) => message.channel === channel && heard.set()).on('end', () => heard.set())
    await limited(connection, connection.query(`LISTEN ${channel}`), timeoutMs)
    const other = await this.client.connections.connect()
    try {
      await limited(other, other.query("SELECT pg_notify($1, '')", [channel]), timeoutMs)
    } finally {
      destroy(other)
    }
    await heard.wait(probeTimeoutMs)
    await limited(connection, connection.query(`UNLISTEN ${channel}`), timeoutMs) // fails if the connection has ended
    if (!heard.isSet && !hasWait) throw new PinpointError(NO_LISTEN, '0A000')
    return heard.isSet
  }

  begin(connected) {
    if (this.connectedAt !== null) this.client.counts.reconnects++
    this.connected = connected
    this.failure = null
    this.connectedAt = this.heardAt = performance.now()
    this.client.log('info', `connected to PostgreSQL ${connected.serverVersion}, mode ${connected.mode}`)
    this.channels.tellAll(connected)
  }

  // ---- LISTEN -----------------------------------------------------------------

  /** server.interval: milliseconds between heartbeats, 0 without. server.isUncertain: LISTEN may not work, until a heartbeat arrives. */
  async listen(connection, connected, server) {
    const { channels } = this
    const { timeoutMs } = this.client.options
    const early = [] // notifications before "connected"
    connection.on('notification', ({ channel, payload, processId: pid }) => {
      this.heardAt = performance.now()
      if (channel === HEARTBEAT) {
        server.isUncertain = false
        if (this.connected) this.position = payload.split(' ')[0]
        return
      }
      const event = { event: 'notification', channel, payload, pid }
      try {
        if (this.connected) channels.dispatch(event)
        else early.push(event)
      } catch (error) {
        this.client.fail(ofLoop(error)) // the driver would take it as an error of the connection
      }
    })
    if (server.interval) await limited(connection, connection.query(`LISTEN ${HEARTBEAT}`), timeoutMs)
    const added = channels.takeAll()
    await this.listenTo(connection, { added, gone: new Set() }, server.hasWait)
    let changed = [...added]
    if (server.pinpoint) [changed, this.position] = await fetch(connection, timeoutMs, CHANGED_SINCE, [this.position, changed])
    this.begin(connected)
    channels.tellChanged(changed)
    for (const event of early) channels.dispatch(event)
    await this.follow(connection, server)
  }

  /** Listen on more channels, or on fewer, until the connection is lost. */
  async follow(connection, server) {
    const { client, channels } = this
    const { timeoutMs, checkIntervalMs } = client.options
    let asked = this.position
    let checkAt = performance.now() + checkIntervalMs
    const rest = () => (server.interval ? this.heardAt + 3 * server.interval : checkAt) - performance.now()
    for (let checks = 1; ; ) {
      const isLate = rest() <= 0
      if (isLate) await new Promise((resolve) => setImmediate(resolve)) // what has arrived while something else ran is read now
      else await channels.changes.wait(rest())
      if (connection.lost) throw connection.lost // also if the client is closed
      if (channels.changes.isSet) {
        await this.listenTo(connection, channels.takeChanges(), server.hasWait)
        channels.tellChanged()
      }
      if (!isLate || rest() > 0) continue
      if (server.interval) {
        if (server.isUncertain) {
          await fetch(connection, timeoutMs, HAS_PINPOINT) // it is not the connection
          this.waits = true
          client.log('info', 'no heartbeat arrives by LISTEN: pinpoint.wait() is used')
        }
        throw new ConnectionLost(`no heartbeat for ${(3 * server.interval) / 1000} seconds`)
      }
      const [pinpoint] = await fetch(connection, timeoutMs, HAS_PINPOINT)
      if (pinpoint !== server.pinpoint) throw new ConnectionLost('the extension pg_pinpoint was created or dropped')
      this.heardAt = performance.now()
      checkAt = this.heardAt + checkIntervalMs
      if (server.hasWait && checks++ % 6 === 0) asked = await this.ask(connection, asked)
    }
  }

  /**
   * Tell subscribers which watched tables have changed since a position: some changes do not notify, such as ALTER TABLE. A
   * channel that is only notified may count as changed each time.
   */
  async ask(connection, position) {
    const values = [position, this.channels.names()]
    const [changed, next] = await fetch(connection, this.client.options.timeoutMs, TABLES_CHANGED, values)
    this.channels.tellChanged(changed)
    return next
  }

  /** Make the connection listen on more channels, and no longer on those that are gone. */
  async listenTo(connection, { added, gone }, hasListen) {
    if (added.size + gone.size === 0) return
    const query = hasListen
      ? { text: LISTEN, values: [[...added], [...gone]] }
      : [...commands('LISTEN', added), ...commands('UNLISTEN', gone)].join(';')
    await limited(connection, connection.query(query), this.client.options.timeoutMs)
  }

  // ---- pinpoint.wait() ----------------------------------------------------------

  /** timeLimit: milliseconds of a statement on the server, 0 without. */
  async wait(connection, connected, timeLimit) {
    const { client, channels } = this
    const { checkIntervalMs, timeoutMs, minIntervalMs } = client.options
    const longest = Math.min(checkIntervalMs, timeLimit ? timeLimit / 2 : Infinity)
    // The first call shows whether it works. It ends at once, so each connection brings an answer, however often the
    // channels change.
    let ms = 0
    for (;;) {
      if (connection.lost) throw connection.lost // also if the client is closed
      const wanted = channels.takeAll()
      if (this.connected) channels.tellChanged()
      const values = [wanted.size ? [...wanted] : [HEARTBEAT], this.position, `${ms} ms`]
      const call = limited(connection, connection.query({ text: WAIT, values }), ms + timeoutMs)
      try {
        // pg cannot cancel a query: wait for the other channels on a new connection.
        if (ms > 0 && !(await this.endsWith(call, wanted))) return
        const { changed, position } = (await call).rows[0]
        // A connection for other channels: the live queries have theirs.
        if (ms === 0 && this.connected && serverOf(position) !== serverOf(this.position)) throw new ConnectionLost(OTHER_SERVER)
        ms = longest
        this.position = position
        this.heardAt = performance.now()
        if (!this.connected) this.begin(connected)
        channels.tellChanged(changed)
        if (changed.length) await client.sleep(minIntervalMs)
      } catch (error) {
        if (error.code !== '57014') throw error // a timeout that the server has
      }
    }
  }

  /** Wait until a call of pinpoint.wait() ends. False: it has to be given up, because it waits for too few channels. */
  async endsWith(call, wanted) {
    const { channels } = this
    let done = false
    const end = () => {
      done = true
      channels.changes.set()
    }
    call.then(end, end)
    for (;;) {
      await channels.changes.wait()
      if (done) return true
      for (const channel of channels.takeChanges().added) if (!wanted.has(channel)) return false
      channels.tellChanged()
    }
  }
}
