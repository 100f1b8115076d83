package org.pgpinpoint;

import java.time.Duration;
import java.util.Objects;
import java.util.Properties;
import java.util.concurrent.ThreadFactory;

/** The options of a {@link Client}. Each method throws an IllegalArgumentException for a value out of its range. */
public final class ClientBuilder implements Cloneable {
  /** No limit, for {@link #queryTimeout}. */
  public static final Duration UNLIMITED = Duration.ofDays(1_000_000);
  /** No limit, for {@link #maxAttempts}. */
  public static final int UNLIMITED_ATTEMPTS = Integer.MAX_VALUE;

  private static final Duration SHORTEST = Duration.ofMillis(1);
  private static final Duration LONGEST = Duration.ofDays(1);

  final Properties properties;
  Event.Mode mode = Event.Mode.AUTO;
  Duration minInterval = Duration.ofMillis(50);
  long buffer = 64L << 20;
  Duration minBackoff = Duration.ofMillis(100);
  Duration maxBackoff = Duration.ofSeconds(15);
  int maxAttempts = UNLIMITED_ATTEMPTS;
  Duration timeout = Duration.ofSeconds(10);
  Duration queryTimeout = Duration.ofSeconds(60);
  Duration checkInterval = Duration.ofSeconds(10);
  Duration probeTimeout = Duration.ofSeconds(3);
  int queryConnections = 2;
  ThreadFactory threadFactory = Tasks.newFactory();

  ClientBuilder(String url) {
    properties = ConnectionString.parse(url);
  }

  /** A property of the driver, such as "user" or "password". It wins over the same one of the URL. */
  public ClientBuilder property(String name, String value) {
    properties.setProperty(name, value);
    return this;
  }

  /** How to receive: PUSH (LISTEN), WAIT (pinpoint.wait()), or AUTO, the default: determine which works. */
  public ClientBuilder mode(Event.Mode value) {
    mode = check("mode", value, Event.Mode.AUTO, Event.Mode.WAIT);
    return this;
  }

  /** Between the beginnings of two executions of a live query, and after a Changed with WAIT. Default: 50 ms. */
  public ClientBuilder minInterval(Duration value) {
    minInterval = check("minInterval", value, Duration.ZERO, LONGEST);
    return this;
  }

  /** Bytes of events for one consumer, about. Default: 64 MB. */
  public ClientBuilder buffer(long value) {
    buffer = check("buffer", value, 1L, Long.MAX_VALUE);
    return this;
  }

  /** The time before the second attempt to connect, or to execute a query. Default: 100 ms. */
  public ClientBuilder minBackoff(Duration value) {
    minBackoff = check("minBackoff", value, SHORTEST, LONGEST);
    return this;
  }

  /** The longest time between two attempts. Default: 15 s. */
  public ClientBuilder maxBackoff(Duration value) {
    maxBackoff = check("maxBackoff", value, SHORTEST, LONGEST);
    return this;
  }

  /** After more failed attempts in succession, the client ends. Default: {@link #UNLIMITED_ATTEMPTS}. */
  public ClientBuilder maxAttempts(int value) {
    maxAttempts = check("maxAttempts", value, 0, UNLIMITED_ATTEMPTS);
    return this;
  }

  /** For an attempt to connect to one host, and for short queries. Default: 10 s. */
  public ClientBuilder timeout(Duration value) {
    timeout = check("timeout", value, SHORTEST, LONGEST);
    return this;
  }

  /** For each wait for data of a live query; may be {@link #UNLIMITED}. Default: 60 s. */
  public ClientBuilder queryTimeout(Duration value) {
    queryTimeout = UNLIMITED.equals(value) ? value : check("queryTimeout", value, SHORTEST, LONGEST);
    return this;
  }

  /** Between two checks of a connection without heartbeats, and the longest pinpoint.wait(). Default: 10 s. */
  public ClientBuilder checkInterval(Duration value) {
    checkInterval = check("checkInterval", value, SHORTEST, LONGEST);
    return this;
  }

  /** In which a notification arrives through a pooler. Default: 3 s. */
  public ClientBuilder probeTimeout(Duration value) {
    probeTimeout = check("probeTimeout", value, SHORTEST, LONGEST);
    return this;
  }

  /** Connections that all live queries share. Default: 2. */
  public ClientBuilder queryConnections(int value) {
    queryConnections = check("queryConnections", value, 1, Integer.MAX_VALUE);
    return this;
  }

  /**
   * What makes the threads, which stay until the client is closed: two for the listener, and one for each connection of
   * live queries. The default is virtual threads where Java has them (21), and daemon threads otherwise.
   */
  public ClientBuilder threadFactory(ThreadFactory value) {
    threadFactory = Objects.requireNonNull(value);
    return this;
  }

  /**
   * The client. It connects when the first subscription or live query is made.
   *
   * @throws IllegalArgumentException if minBackoff is longer than maxBackoff
   */
  public Client build() {
    check("minBackoff", minBackoff, SHORTEST, maxBackoff);
    return new Client(clone());
  }

  @Override
  protected ClientBuilder clone() {
    try {
      return (ClientBuilder) super.clone();
    } catch (CloneNotSupportedException e) {
      throw new AssertionError(e);
    }
  }

  private static <T extends Comparable<T>> T check(String name, T value, T least, T most) {
    if (value == null || value.compareTo(least) < 0 || value.compareTo(most) > 0) {
      throw new IllegalArgumentException(name + " is " + value + ", and must be from " + least + " to " + most);
    }
    return value;
  }
}
