// What an application writes without the package, and without any care for lost connections: events
// of a channel, or the rows of a query after each notification on it.

import pg from 'pg'

const [channel, query] = process.argv.slice(2)
const show = (event) => process.stdout.write(JSON.stringify(event) + '\n')

const connections = [new pg.Client(process.env.PINPOINT_DSN), new pg.Client(process.env.PINPOINT_DSN)]
const [listening, querying] = connections
for (const connection of connections) await connection.connect()
listening.on('notification', async ({ channel, payload }) => {
  if (!query) show({ event: 'notification', channel, payload })
  else show({ event: 'rows', rows: (await querying.query({ text: query, rowMode: 'array' })).rows })
})
await listening.query(`LISTEN ${channel}`)
show({ event: 'connected' })
