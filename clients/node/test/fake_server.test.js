/** Odd answers of a server: each is a "disconnected", and the client tries again. Needs python3. */

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { test } from 'node:test'
import { Client } from '../src/client.js'

const PROGRAM = new URL('../../conformance/fake_server.py', import.meta.url).pathname

for (const script of ['no_code', 'short_code', 'cut', 'unknown_messages', 'authentication_methods', 'slow']) {
  test(`a server that answers with ${script}`, async () => {
    const server = spawn('python3', [PROGRAM, script], { stdio: ['pipe', 'pipe', 'inherit'] })
    try {
      const [port] = await once(server.stdout, 'data')
      const options = { minBackoffMs: 1, maxBackoffMs: 10, timeoutMs: 1000 }
      const client = new Client(`postgresql://u:p@127.0.0.1:${Number(port)}/d?sslmode=disable`, options)
      const subscription = client.subscribe('a')
      for (let attempt = 0; attempt < 4; attempt++) {
        assert.equal((await subscription.next()).value.event, 'disconnected')
      }
      await client.close()
      await assert.rejects(subscription.next(), { message: 'the client is closed' })
    } finally {
      server.stdin.end()
    }
  })
}
