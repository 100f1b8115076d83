package org.pgpinpoint;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Semaphore;
import org.postgresql.Driver;
import org.postgresql.util.PGobject;

/** A client of one database. It connects when the first subscription is made. */
public final class Client implements AutoCloseable {
  final Options options;
  final Semaphore slots; // of connections for live queries
  private final String url;
  private final Properties properties = new Properties();

  // The lock of this object protects the fields below.
  final Set<Subscriber> subscribers = new HashSet<>();
  final Map<List<Object>, LiveQuery> live = new HashMap<>();
  final ArrayDeque<Connection> idle = new ArrayDeque<>(); // for live queries
  private final Set<Connection> open = new HashSet<>();
  Listener listener;
  PinpointException error;

  /**
   * A client.
   *
   * @param url a URL of the driver, which may have several hosts
   * @param properties those of the driver, such as "user" and "password"
   * @param options {@link Options#DEFAULT}, or others
   */
  public Client(String url, Properties properties, Options options) {
    this.url = url;
    this.options = options;
    slots = new Semaphore(options.queryConnections());
    // Statements are never prepared, because a pooler may be in between.
    this.properties.put("prepareThreshold", "0");
    int timeout = (int) Math.ceil(options.timeout());
    this.properties.put("loginTimeout", Integer.toString(timeout * hosts(url, properties))); // for all of them
    this.properties.put("connectTimeout", Integer.toString(timeout));
    // While it connects; later limit() sets it.
    this.properties.put("socketTimeout", Integer.toString(timeout));
    this.properties.put("tcpKeepAlive", "true");
    properties.stringPropertyNames().forEach(name -> this.properties.put(name, properties.getProperty(name)));
  }

  /** A client with the default options. url: a URL of the driver. */
  public Client(String url) {
    this(url, new Properties(), Options.DEFAULT);
  }

  private static int hosts(String url, Properties properties) {
    Properties parsed = Driver.parseURL(url, properties);
    return parsed == null ? 1 : parsed.getProperty("PGHOST", "").split(",").length;
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
    EventQueue queue = new EventQueue(options.buffer());
    subscribers.add(queue);
    if (listener.connected != null) {
      queue.put(listener.connected);
    }
    Subscription subscription = new Subscription(this, queue);
    subscription.add(channels);
    return subscription;
  }

  /**
   * The rows of a query now, and after each change of a table that it reads. Parameters are "?". An error of the query
   * is a {@link Result.Failed}.
   *
   * @throws PinpointException the one that has ended the client
   */
  public synchronized Live live(String query, Object... parameters) {
    start();
    parameters = parameters.clone();
    // Objects of different types can be equal, such as Date and Timestamp, or two PGobjects.
    List<Object> key = List.of(query, Arrays.asList(parameters), Arrays.stream(parameters).map(Client::type).toList());
    LiveQuery shared = live.get(key);
    if (shared == null) {
      shared = new LiveQuery(this, key, query, parameters);
      live.put(key, shared);
      subscribers.add(shared);
      shared.start();
    }
    return shared.consumer();
  }

  private static String type(Object parameter) {
    if (parameter == null) {
      return "";
    }
    return parameter.getClass().getName() + (parameter instanceof PGobject object ? " " + object.getType() : "");
  }

  private void start() {
    if (error != null) {
      throw error;
    }
    if (listener == null) {
      listener = new Listener(this);
      listener.start();
    }
  }

  /** End all subscriptions, live queries and connections. The iterators throw a PinpointException. */
  @Override
  public void close() {
    List<Thread> threads = new ArrayList<>();
    synchronized (this) {
      threads.addAll(live.values());
      if (listener != null) {
        threads.add(listener);
      }
    }
    fail(new PinpointException("the client is closed", null));
    for (Thread thread : threads) {
      thread.interrupt();
    }
    closeAll();
    for (Thread thread : threads) {
      try {
        thread.join();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }
    closeAll();
  }

  synchronized boolean isClosed() {
    return error != null;
  }

  /** End all consumers with an error. */
  synchronized void fail(PinpointException reason) {
    error = error == null ? reason : error;
    List.copyOf(subscribers).forEach(subscriber -> subscriber.end(error));
  }

  Connection connect() throws SQLException {
    Connection connection = DriverManager.getConnection(url, properties);
    synchronized (this) {
      if (error == null) {
        open.add(connection);
        return connection;
      }
    }
    discard(connection);
    throw error;
  }

  /** Close a connection without waiting for the server. */
  void discard(Connection connection) {
    synchronized (this) {
      open.remove(connection);
    }
    try {
      connection.abort(Runnable::run);
    } catch (SQLException e) {
      // It is closed.
    }
  }

  /** Close the connections of live queries, because the client may now listen on another server. */
  void closeAll() {
    List<Connection> connections;
    synchronized (this) {
      connections = List.copyOf(open);
      idle.clear();
    }
    connections.forEach(this::discard);
  }
}
