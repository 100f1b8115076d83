// The types of the Node package, as an application in TypeScript sees them.

import { Client, PinpointError, type Event, type Subscription } from 'pg-pinpoint'

const client = new Client({ host: 'localhost' }, { mode: 'push', maxAttempts: 3, minBackoffMs: 200, logger: console })
const { signal } = new AbortController()
const subscription: Subscription = client.subscribe('a', 'b', { signal })
subscription.add('c')

function text(event: Event): string {
  switch (event.event) {
    case 'notification':
      return event.channel + event.payload
    case 'changed':
      return event.channels.join()
    case 'connected':
      return event.mode
    case 'disconnected':
      return `${event.reason} ${event.retryInMs.toFixed()}`
  }
}

export async function main(): Promise<void> {
  try {
    for await (const event of subscription) console.log(text(event))
  } catch (error) {
    if (error instanceof PinpointError) console.log(error.code ?? error.message)
  }
  await client.subscribe('c').next({ signal: AbortSignal.timeout(1000) })
  for await (const event of client.live<[number, string]>('SELECT id, name FROM t', [], { rowMode: 'array', signal }))
    if (event.event === 'rows') console.log(event.rows[0]?.[1].length)
  for await (const event of client.live('SELECT 1 AS n')) if (event.event === 'rows') console.log(event.rows[0]?.n)
  for await (const event of client.live<{ id: number; name: string }>('SELECT id, name FROM t WHERE id = $1', [1])) {
    if (event.event === 'rows') console.log(event.rows[0]?.name.length, event.columns)
    else if (event.event === 'disconnected') console.log(event.reason, event.retryInMs.toFixed())
    else console.log(event.message, event.code)
  }
  console.log(client.stats().sinceSignOfLifeMs?.toFixed())
  await client.close()
}
