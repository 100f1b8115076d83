/**
 * Server-sent events: each browser gets the rows of a live query. A request that ends also ends its query.
 *
 *     const client = new Client(process.env.DATABASE_URL)        // of pg-pinpoint
 *     createServer(sendRows(client, 'SELECT id, total FROM orders ORDER BY id')).listen(8000)
 *
 * The tables of the query must be watched: SELECT pinpoint.watch('orders'). A final error of the client, for example a
 * wrong password, ends the program.
 */
import { once } from 'node:events'

export function sendRows(client, query, values = []) {
  return async (request, response) => {
    const gone = new AbortController()
    response.on('close', () => gone.abort())
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' })
    try {
      // All browsers share one execution. One that is slow gets only the newest rows.
      for await (const event of client.live(query, values, { signal: gone.signal })) {
        // After an "error" or "disconnected", the rows may be old until the next ones.
        const text = event.event === 'rows' ? `data: ${JSON.stringify(event.rows)}` : 'event: stale\ndata:'
        if (!response.write(`${text}\n\n`)) await once(response, 'drain', { signal: gone.signal })
      }
    } catch (error) {
      if (!gone.signal.aborted) throw error
    }
  }
}
