/** The parameters of live queries: equal ones share an execution. */

/** A copy of what the application may modify. */
export function copyOf(value) {
  if (Array.isArray(value)) return value.map(copyOf)
  if (value instanceof Date) return new Date(value)
  if (value instanceof Uint8Array) return Buffer.from(value)
  return value
}

let others = 0

/** Equal for equal values. A value that cannot be compared equals no other. pg sends an undefined value as NULL. */
function comparable(value) {
  if (value === null || value === undefined) return null
  if (Array.isArray(value)) return ['array', ...value.map(comparable)]
  if (value instanceof Date) return ['date', String(value.getTime())]
  if (value instanceof Uint8Array) return ['bytes', Buffer.from(value).toString('base64')]
  if (['string', 'number', 'boolean', 'bigint'].includes(typeof value)) return [typeof value, String(value)]
  return ['other', others++]
}

/** Equal for equal queries. */
export const keyOf = ({ text, values, rowMode }) => JSON.stringify([text, rowMode, comparable(values)])
