package org.pgpinpoint;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.pgpinpoint.Events.Subscriber;

/**
 * One live query, which is executed for all its consumers. It has a thread and a connection only while it is executed.
 * The lock of the client protects the fields.
 */
final class Execution extends Subscriber implements Runnable {
  private static final String CHANNELS_OF = "SELECT relation::text, channel::text FROM pinpoint.channels_of(?)";

  final Client client;
  private final Object key;
  private final String query;
  private final Object[] parameters;
  private final Set<LiveQuery> consumers = new HashSet<>();
  private boolean dirty; // an execution has to begin after this was set
  private boolean busy; // it is executed, or will be
  private long notBefore = System.nanoTime();
  private int failures; // in succession
  private Connection using;
  private Result.Failed failure; // the last result, if it was one

  Execution(Client client, Object key, String query, Object[] parameters) {
    this.client = client;
    this.key = key;
    this.query = query;
    this.parameters = parameters;
  }

  /** A new consumer, with the lock of the client held. A result that is at hand may be older than this call. */
  LiveQuery consumer() {
    LiveQuery consumer = new LiveQuery(this);
    consumers.add(consumer);
    if (client.listener.current() instanceof Event.Disconnected disconnected) {
      consumer.put(disconnected);
    } else if (failure != null) {
      consumer.put(failure);
    }
    setDirty();
    return consumer;
  }

  void remove(LiveQuery consumer) {
    Connection ended = null;
    synchronized (client) {
      if (consumers.remove(consumer) && consumers.isEmpty() && client.live.remove(key, this)) {
        client.remove(this);
        ended = using;
      }
    }
    if (ended != null) {
      client.connections.discard(ended); // the driver reads until then, and another query cannot have its place
    }
  }

  @Override
  void put(Event event) {
    if (event instanceof Event.Disconnected disconnected) {
      tell(disconnected);
    }
    setDirty();
  }

  @Override
  void end(RuntimeException error) {
    consumers.forEach(consumer -> consumer.end(error));
  }

  private void tell(Result result) {
    failure = result instanceof Result.Failed failed ? failed : null;
    consumers.forEach(consumer -> consumer.put(result));
  }

  private boolean hasEnded() {
    return client.live.get(key) != this;
  }

  private void setDirty() {
    dirty = true;
    schedule();
  }

  /** Execute it when it may be, if it has to be. */
  private void schedule() {
    if (!dirty || busy || hasEnded() || client.listener.connected == null) {
      return;
    }
    busy = true;
    client.executions.schedule(this, notBefore - System.nanoTime(), TimeUnit.NANOSECONDS);
  }

  /** Execute it once. */
  @Override
  public void run() {
    Event.Connected heardBy;
    synchronized (client) {
      heardBy = client.listener.connected;
      if (hasEnded() || heardBy == null) { // a new connection of the listener sets it dirty
        busy = false;
        return;
      }
      dirty = false; // what changes from now on is in another execution
    }
    Result result;
    long started = System.nanoTime();
    try {
      result = execute(heardBy);
    } catch (Throwable e) { // also of the Java machine: otherwise nothing would be told
      result = new Result.Failed(PinpointException.reason(e), PinpointException.sqlState(e));
    }
    synchronized (client) {
      using = null;
      busy = false;
      if (result instanceof Result.Failed) {
        dirty = true;
        Duration delay = Backoff.delay(client.options, ++failures, ThreadLocalRandom.current()::nextDouble);
        notBefore = System.nanoTime() + delay.toNanos();
      } else if (result != null) { // otherwise it waits for the listener, which is no execution
        failures = 0;
        notBefore = started + client.options.minInterval.toNanos();
      }
      if (result != null && client.listener.connected == heardBy) { // otherwise it may be from another server
        tell(result);
      }
      schedule();
    }
  }

  /** A connection may have ended while it was idle, or by the query itself, which the next one will show. */
  private Result execute(Event.Connected heardBy) throws SQLException {
    Connection idle;
    while ((idle = client.connections.takeIdle()) != null) {
      try {
        return execute(heardBy, idle, true);
      } catch (SQLException e) {
        if (!Connections.isClosedByPeer(e) || !isWanted(heardBy)) {
          throw e;
        }
      }
    }
    return execute(heardBy, client.connections.connect(), false);
  }

  private boolean isWanted(Event.Connected heardBy) {
    synchronized (client) {
      return !hasEnded() && client.listener.connected == heardBy;
    }
  }

  /** Returns null if the listener does not listen on the channels of the tables yet. */
  private Result execute(Event.Connected heardBy, Connection connection, boolean isUsed) throws SQLException {
    try {
      use(connection);
      if (!isUsed) {
        checkServer(connection);
      }
      Connections.limit(connection, client.options.queryTimeout);
      Connections.dropNotifications(connection);
      Result result = listenToTables(channelsOf(connection)) ? Connections.query(connection, query, parameters) : null;
      synchronized (client) {
        if (client.listener.connected != heardBy) {
          throw new SQLException("the rows may be from another server");
        }
        use(null);
        client.connections.idle.push(connection);
      }
      return result;
    } catch (Throwable e) {
      client.connections.discard(connection);
      throw e;
    }
  }

  /** The end of this query ends this connection, too. */
  private void use(Connection connection) throws SQLException {
    synchronized (client) {
      using = connection;
      if (hasEnded()) {
        throw new SQLException("the live query is closed");
      }
    }
  }

  /** Is it the server on which the client listens? */
  private void checkServer(Connection connection) throws SQLException {
    Server.open(client.connections, connection).checkLive();
    String position = (String) client.connections.fetch(connection, "SELECT pinpoint.position()").get(0);
    String heard = client.listener.position;
    if (heard == null) {
      throw new SQLException("the extension pg_pinpoint was created or dropped");
    } else if (!serverOf(position).equals(serverOf(heard))) {
      throw new SQLException("the connection leads to another server than the one on which the client listens");
    }
  }

  private static List<String> serverOf(String position) {
    return Arrays.stream(position.split("-")).limit(2).toList(); // a false heartbeat may have fewer
  }

  private Set<String> channelsOf(Connection connection) throws SQLException {
    Set<String> names = new HashSet<>();
    for (List<Object> row : Connections.query(connection, CHANNELS_OF, Connections.text(connection, query)).rows()) {
      String table = (String) row.get(0);
      if (row.get(1) == null) {
        throw new PinpointException("the table \"" + table + "\" is not watched: execute SELECT pinpoint.watch('"
            + table.replace("'", "''") + "')", "55000");
      }
      names.add((String) row.get(1));
    }
    return names;
  }

  /** Returns whether the listener does already. If not, it sets this query dirty when it does. */
  private boolean listenToTables(Set<String> names) {
    synchronized (client) {
      if (!channels.equals(names)) {
        Set<String> gone = new HashSet<>(channels);
        gone.removeAll(names);
        boolean changed = dirty;
        client.listenOn(this, names, gone);
        dirty = changed; // what it is told now is before this execution
      }
      return client.index.isHeard(this);
    }
  }
}
