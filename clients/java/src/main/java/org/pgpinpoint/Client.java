package org.pgpinpoint;

import java.lang.System.Logger.Level;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.pgpinpoint.Events.Subscriber;

/**
 * A client of one database. It connects when the first subscription or live query is made, and lives until close() or
 * a final error: its threads keep it, but do not keep the program running.
 */
public final class Client implements AutoCloseable {
  final ClientBuilder options;
  final Counters counters = new Counters();
  final Tasks tasks; // the listener, and what watches it or cancels its call
  final Tasks executions; // of live queries
  final Connections connections;

  // The lock of this object protects the fields below.
  final Set<Subscriber> subscribers = new LinkedHashSet<>();
  final Index index = new Index();
  final Map<Object, Execution> live = new HashMap<>();
  final Listener listener;
  private boolean started;
  volatile PinpointException error; // which has ended the client

  Client(ClientBuilder options) {
    this.options = options;
    tasks = new Tasks(2, options.threadFactory, this::failTask);
    executions = new Tasks(options.queryConnections, options.threadFactory, this::failTask);
    connections = new Connections(this);
    listener = new Listener(this);
  }

  /**
   * The options of a client.
   *
   * @param url jdbc:postgresql://host:port/database?user=...&amp;password=..., with all parameters of pgJDBC, or
   *     postgresql://user:password@host:port/database; either may have several hosts
   * @throws IllegalArgumentException if it is neither
   */
  public static ClientBuilder builder(String url) {
    return new ClientBuilder(url);
  }

  /** A client with the default options, for a URL as in {@link #builder}. */
  public static Client of(String url) {
    return builder(url).build();
  }

  /**
   * Listen on channels. Each begins with a Changed.
   *
   * @throws IllegalArgumentException if a name is empty, longer than 63 bytes, contains NUL or is pinpoint_heartbeat
   * @throws PinpointException the one that has ended the client
   */
  public synchronized Subscription subscribe(String... channels) {
    Subscription.check(channels);
    start();
    Subscription subscription = new Subscription(this);
    subscribers.add(subscription.subscriber);
    Event current = listener.current();
    if (current != null) {
      subscription.subscriber.put(current);
    }
    subscription.add(channels);
    return subscription;
  }

  /**
   * The rows of a query now, and after each change of a table that it reads. An error of the query is a
   * {@link Result.Failed}.
   *
   * @param query one SELECT, whose parameters are "?"
   * @param parameters as for {@link java.sql.PreparedStatement#setObject(int, Object)}; do not modify them later
   * @throws PinpointException the one that has ended the client
   */
  public synchronized LiveQuery live(String query, Object... parameters) {
    Objects.requireNonNull(query, "the query is null");
    Objects.requireNonNull(parameters, "the parameters are null: one that is NULL is (Object) null");
    start();
    Execution execution = live.computeIfAbsent(Values.key(query, parameters), key -> {
      Execution fresh = new Execution(this, key, query, parameters.clone());
      subscribers.add(fresh);
      return fresh;
    });
    return execution.consumer();
  }

  private void start() {
    if (!started && error == null) {
      started = true;
      tasks.execute(listener);
    }
    if (error instanceof ClientClosedException) {
      throw new ClientClosedException(error);
    } else if (error != null) {
      throw new PinpointException(error.getMessage(), error.sqlState(), error);
    }
  }

  /** What was counted since the client was made. */
  public Stats stats() {
    return counters.stats();
  }

  /** End all subscriptions, live queries and connections. The iterators throw a ClientClosedException. */
  @Override
  public void close() {
    end(new ClientClosedException(null));
    try {
      // Their connections are closed. The limit is for a request to cancel, which the driver sends over its own one.
      tasks.awaitTermination(options.timeout.toNanos(), TimeUnit.NANOSECONDS);
      executions.awaitTermination(options.timeout.toNanos(), TimeUnit.NANOSECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  boolean isClosed() {
    return error != null;
  }

  private void failTask(Throwable cause) {
    String reason = "the client has failed: " + PinpointException.reason(cause);
    Counters.LOGGER.log(Level.ERROR, reason, cause);
    end(new PinpointException(reason, null, cause));
  }

  /** End all consumers with an error, and all that runs. */
  void end(PinpointException reason) {
    synchronized (this) {
      error = error == null ? reason : error;
      subscribers.forEach(subscriber -> subscriber.end(error));
      subscribers.clear();
      live.clear();
    }
    tasks.shutdownNow();
    executions.shutdownNow();
    connections.closeAll();
  }

  /** Add and remove channels of a subscriber, if it has not ended. */
  synchronized void listenOn(Subscriber subscriber, Collection<String> added, Collection<String> removed) {
    if (subscribers.contains(subscriber)) {
      index.remove(subscriber, removed);
      index.add(subscriber, added, listener.connected != null);
      listener.channelsAdded();
    }
  }

  synchronized void remove(Subscriber subscriber) {
    if (subscribers.remove(subscriber)) {
      index.remove(subscriber, List.copyOf(subscriber.channels));
    }
  }

  synchronized void tellAll(Event event) {
    subscribers.forEach(subscriber -> subscriber.put(event));
  }
}
