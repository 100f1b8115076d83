/** Milliseconds until the next attempt, after so many failures in succession. */
export function backoff(failures, { minBackoffMs, maxBackoffMs }, random = Math.random) {
  return Math.min(maxBackoffMs, minBackoffMs * 2 ** (failures - 1)) * (0.5 + random() / 2)
}
