package org.pgpinpoint;

/**
 * Options of a client. Times are in seconds.
 *
 * @param mode how to hear; null to find out
 * @param minInterval between the beginnings of two executions of a live query
 * @param buffer bytes of events for one consumer
 * @param minBackoff between two attempts to connect
 * @param maxBackoff between two attempts to connect
 * @param maxAttempts after so many failed attempts in succession, subscriptions end with an error
 * @param timeout for an attempt to connect and for short queries
 * @param queryTimeout for a live query
 * @param checkInterval between two checks of a connection without heartbeats
 * @param probeTimeout in which a notification has to arrive through a pooler
 * @param queryConnections connections that all live queries share
 */
public record Options(Event.Mode mode, double minInterval, long buffer, double minBackoff, double maxBackoff,
    int maxAttempts, double timeout, double queryTimeout, double checkInterval, double probeTimeout,
    int queryConnections) {
  public static final Options DEFAULT =
      new Options(null, 0.05, 64L << 20, 0.1, 15, Integer.MAX_VALUE, 10, 60, 10, 3, 2);
}
