/** The options of a client and of its consumers. */

const DAY = 86_400_000 // milliseconds

const time = (value, least = 1) => ({ value, least, most: DAY })
const count = (value, least, most = Number.MAX_SAFE_INTEGER) => ({ value, least, most, whole: true })

/** unlimited: Infinity is also valid. */
const NUMBERS = {
  minIntervalMs: time(50, 0),
  buffer: count(64 * 1024 * 1024, 0),
  minBackoffMs: time(100),
  maxBackoffMs: time(15_000),
  maxAttempts: { ...count(Infinity, 0), unlimited: true },
  timeoutMs: time(10_000),
  queryTimeoutMs: { ...time(60_000), unlimited: true },
  checkIntervalMs: time(10_000),
  probeTimeoutMs: time(3_000),
  queryConnections: count(2, 1, 10_000)
}

function checkNumber(name, value) {
  const { least, most, whole, unlimited } = NUMBERS[name]
  if (typeof value !== 'number') throw new TypeError(`${name} is ${String(value)}, but has to be a number`)
  if (unlimited && value === Infinity) return
  if (!(value >= least && value <= most) || (whole && !Number.isInteger(value))) {
    const kind = whole ? 'a whole number' : 'a number'
    throw new RangeError(`${name} is ${value}, but has to be ${kind} from ${least} to ${most}${unlimited ? ', or Infinity' : ''}`)
  }
}

function checkOneOf(name, value, allowed) {
  if (!allowed.includes(value)) throw new TypeError(`${name} is "${String(value)}", but has to be one of: ${allowed.join(', ')}`)
}

function checkNames(given, allowed) {
  for (const name of Object.keys(given)) if (!allowed.includes(name)) throw new TypeError(`there is no option "${name}"`)
}

/** All options, with defaults. Throws a TypeError or a RangeError if one is not valid. An undefined one is its default. */
export function checkOptions({ mode = 'auto', logger, ...given }) {
  checkNames(given, Object.keys(NUMBERS))
  checkOneOf('mode', mode, ['auto', 'push', 'wait'])
  if (logger !== undefined && !['info', 'warn', 'error'].every((level) => typeof logger?.[level] === 'function'))
    throw new TypeError('logger has to be an object with the functions info, warn and error')
  const options = { mode, logger }
  for (const [name, { value }] of Object.entries(NUMBERS)) {
    options[name] = given[name] === undefined ? value : given[name]
    checkNumber(name, options[name])
  }
  return options
}

/** Those of a subscription or live query. Also throws the reason of a signal that has been aborted. */
export function checkConsumerOptions(given, names) {
  const { rowMode = 'array', signal } = given
  checkNames(given, names)
  checkOneOf('rowMode', rowMode, ['array'])
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw new TypeError('signal has to be an AbortSignal')
  signal?.throwIfAborted()
}
