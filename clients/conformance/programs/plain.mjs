// What an application writes without the package, and without any care for lost connections.

import pg from 'pg'

const client = new pg.Client(process.env.PINPOINT_DSN)
await client.connect()
client.on('notification', ({ channel, payload }) => {
  process.stdout.write(JSON.stringify({ event: 'notification', channel, payload }) + '\n')
})
await client.query(`LISTEN ${process.argv[2]}`)
process.stdout.write(JSON.stringify({ event: 'connected' }) + '\n')
