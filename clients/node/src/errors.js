/** Errors, and what the client makes of those of the driver and of the server. */

import pg from 'pg'

/** A subscription or a live query cannot go on. */
export class PinpointError extends Error {
  constructor(message, code, options) {
    super(message, options)
    this.name = 'PinpointError'
    this.code = code
  }
}

/** The server does not answer any more. */
export class ConnectionLost extends Error {}

/** For the log: without the text of errors that may contain a parameter. */
export const logged = (error) => (error instanceof PinpointError || error instanceof ConnectionLost ? error.message : error?.code ?? error?.name)

/** The final error of a loop of the package that has ended with an exception. */
export const ofLoop = (error) => new PinpointError(`the client has failed: ${describe(error)}`, error?.code, { cause: error })

export function describe(error) {
  const text = error?.message || error?.code || String(error)
  return error?.hint ? `${text} (${error.hint})` : text
}

/**
 * SQLSTATEs of errors that another attempt does not mend: no such role or not admitted, a wrong password, no such
 * database, a missing privilege, a pinpoint.wait() that the role's settings exclude. A proxy may send any text as a SQLSTATE, or none.
 */
const PERMANENT = ['28000', '28P01', '3D000', '42501', '0A000']

/** Errors that another attempt does not mend. */
export function isPermanent(error) {
  if (error instanceof PinpointError) return true
  if (/^SASL: .*password/.test(error?.message)) return true // there is none
  return PERMANENT.includes(error?.code) || /^(ERR_TLS|CERT|DEPTH_ZERO|SELF_SIGNED|UNABLE_TO)/.test(error?.code ?? '')
}

/** Errors of the query, and not of the connection. */
export const isOfQuery = (error) => error instanceof PinpointError || error instanceof pg.DatabaseError
