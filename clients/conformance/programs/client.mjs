/** The conformance program over the Node package: see ../README.md. */

import { createInterface } from 'node:readline'
import { Client } from 'pg-pinpoint'

const snake = (name) => name.replace(/[A-Z]/g, (letter) => '_' + letter.toLowerCase())
const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase())
const TIME = /_(interval|backoff|timeout)$|^timeout$/
const options = Object.fromEntries(
  Object.entries(JSON.parse(process.env.PINPOINT_OPTIONS ?? '{}')).map(([name, value]) =>
    TIME.test(name) ? [`${camel(name)}Ms`, value * 1000] : [camel(name), value]
  )
)

/** Wait until what is written has been read: a slow reader makes a slow consumer. */
function show(event) {
  const fields = Object.fromEntries(Object.entries(event).map(([name, value]) => [snake(name), value]))
  delete fields.cause
  if (event.code !== undefined) fields.sqlstate = event.code
  if (event.retryInMs !== undefined) fields.retry_in = event.retryInMs / 1000
  if (event.columns) fields.rows = event.rows.map((row) => event.columns.map((name) => row[name]))
  return new Promise((resolve) => process.stdout.write(JSON.stringify(fields) + '\n', resolve))
}

/** A parameter with the JSON of any other. */
class Hidden {
  #value

  constructor(value) {
    this.#value = value
  }

  toPostgres() {
    return this.#value
  }
}

/** The first rows of a live query, which is closed then. */
async function rowsOf(live) {
  for await (const { event, rows } of live) if (event === 'rows') return rows
}

/** Consumers of live queries come and go; then another one gets rows, and two with other parameters. */
async function comeAndGo(client, query) {
  const one = async (number, wait) => {
    const live = client.live(`${query} -- ${number % 10}`)
    if (wait) await rowsOf(live)
    else live.close()
  }
  await Promise.all(Array.from({ length: 200 }, (_, number) => one(number, number % 3 === 0)))
  await one(0, true)
  await show({ event: 'came_and_went' })
  const lives = ['1', '2'].map((value) => client.live('SELECT $1::text', [new Hidden(value)], { rowMode: 'array' }))
  await show({ event: 'parameters', rows: await Promise.all(lives.map(rowsOf)) })
}

const client = new Client(process.env.PINPOINT_DSN, options)
try {
  const [mode, ...names] = process.argv.slice(2)
  const live = mode === 'live'
  const events = live ? client.live(names[0]) : client.subscribe(...names)
  const opened = []
  const commands = {
    '!': () => client.close(),
    '>': (query) => opened.push(client.live(query)),
    '<': () => opened.forEach((other) => other.close()),
    '+': (channel) => (live ? comeAndGo(client, names[0]) : events.add(channel)),
    '-': (channel) => events.remove(channel)
  }
  createInterface({ input: process.stdin })
    .on('line', (line) => commands[line[0]](line.slice(1)))
    .on('close', () => events.close())
  for await (const event of events) await show(event)
} catch (error) {
  await show({ event: 'error', message: error.message, sqlstate: error.code })
  process.exitCode = 1
} finally {
  await client.close()
  process.stdin.destroy()
}
