package org.pgpinpoint;

import java.time.Duration;
import java.util.function.DoubleSupplier;

/** How long to wait after failures in succession. */
final class Backoff {
  private Backoff() {}

  /**
   * The time until the next attempt: it doubles with each failure, up to a limit, and is then multiplied by a random
   * number from 0.5 to 1, so that clients do not come all at once.
   *
   * @param failures in succession, at least 1
   * @param random gives numbers from 0 to 1
   */
  static Duration delay(ClientBuilder options, int failures, DoubleSupplier random) {
    double doubled = options.minBackoff.toNanos() * Math.pow(2, Math.min(failures - 1, 60));
    double limited = Math.min(options.maxBackoff.toNanos(), doubled);
    return Duration.ofNanos((long) (limited * (0.5 + random.getAsDouble() / 2)));
  }
}
