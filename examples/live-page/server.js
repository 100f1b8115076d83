// Shows a query in the browser, and each change of its tables, with server-sent events.
//
//     DATABASE_URL=postgresql:///shop PORT=8000 node server.js

import { readFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { Client } from 'pg-pinpoint'

const QUERY = `
  SELECT product, sum(quantity)::int AS sold, max(ordered_at)::time(0)::text AS last_order
    FROM orders GROUP BY product ORDER BY sold DESC, product`

// So often the page learns that its connection works, in milliseconds.
const SIGN_OF_LIFE = 5000

const client = new Client(process.env.DATABASE_URL)

async function sendEvents(request, response) {
  // All pages share one execution of the query.
  const results = client.live(QUERY, [], { rowMode: 'array' })
  const send = (event, data) => response.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`)
  const timer = setInterval(() => response.writableNeedDrain || send('alive', true), SIGN_OF_LIFE)
  let goOn = () => {}
  response.on('drain', () => goOn())
  response.on('close', () => {
    clearInterval(timer)
    results.close()
    goOn()
  })
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' })
  for await (const result of results) {
    // The browser itself has an event "error". A browser that does not read gets only the newest result.
    if (!send(result.event === 'error' ? 'problem' : result.event, result) && !response.destroyed)
      await new Promise((resolve) => (goOn = resolve))
  }
  response.end()
}

createServer(async (request, response) => {
  if (request.url === '/events') {
    sendEvents(request, response).catch((error) => {
      console.error(error.message)
      process.exit(1) // a final error has ended the client
    })
  } else {
    response.writeHead(200, { 'Content-Type': 'text/html; charset=utf-8' })
    response.end(await readFile(new URL('index.html', import.meta.url)))
  }
}).listen(Number(process.env.PORT ?? 8000), '127.0.0.1')
