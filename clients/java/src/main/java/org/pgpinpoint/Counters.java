package org.pgpinpoint;

import java.time.Duration;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;

/** What a client has counted. */
final class Counters {
  static final System.Logger LOGGER = System.getLogger("org.pgpinpoint");

  final LongAdder given = new LongAdder();
  final LongAdder connects = new LongAdder();
  private final AtomicLong dropped = new AtomicLong();
  private volatile long heard = System.nanoTime();

  void signOfLife() {
    heard = System.nanoTime();
  }

  void drop() {
    long count = dropped.incrementAndGet();
    if (Long.bitCount(count) == 1) { // not a line for each
      LOGGER.log(System.Logger.Level.WARNING, "a consumer is too slow: {0} events were dropped so far", count);
    }
  }

  Stats stats() {
    return new Stats(given.sum(), dropped.get(), Math.max(0, connects.sum() - 1),
        Duration.ofNanos(System.nanoTime() - heard));
  }
}
