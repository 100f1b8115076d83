import { setMaxListeners } from 'node:events'

/** Call a function when a signal is aborted. Any number of consumers can have one signal: Node.js warns at the eleventh. */
export function onAbort(signal, call) {
  if (!signal) return
  if (signal instanceof AbortSignal) setMaxListeners(0, signal)
  signal.addEventListener('abort', call, { once: true })
}

/** Something for which callers wait. */
export class Condition {
  isSet = false
  #waiting = new Set()

  set() {
    this.isSet = true
    for (const wake of this.#waiting) wake()
  }

  clear() {
    this.isSet = false
  }

  /** Wait until it is set, or for some milliseconds, or until a signal is aborted. */
  async wait(ms, signal) {
    if (this.isSet) return
    let wake
    let timer
    await new Promise((resolve) => {
      wake = resolve
      this.#waiting.add(wake)
      onAbort(signal, wake)
      if (ms !== undefined) timer = setTimeout(wake, ms)
    })
    this.#waiting.delete(wake)
    signal?.removeEventListener('abort', wake)
    clearTimeout(timer)
  }
}
