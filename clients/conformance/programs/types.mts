// The types of the Node package, as an application in TypeScript sees them.

import { Client, PinpointError, type Event } from 'pg-pinpoint'

const client = new Client({ host: 'localhost' }, { mode: 'push', maxAttempts: 3 })
const subscription = client.subscribe('a', 'b')
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
      return `${event.reason} ${event.retryIn.toFixed(1)}`
  }
}

export async function main(): Promise<void> {
  try {
    for await (const event of subscription) console.log(text(event))
  } catch (error) {
    if (error instanceof PinpointError) console.log(error.code ?? error.message)
  }
  for await (const event of client.live<[number, string]>('SELECT id, name FROM t WHERE id = $1', [1])) {
    if (event.event === 'rows') console.log(event.rows[0]?.[1].length, event.columns)
    else if (event.event === 'disconnected') console.log(event.reason, event.retryIn.toFixed(1))
    else console.log(event.message, event.code)
  }
  await client.close()
}
