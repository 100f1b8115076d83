package org.pgpinpoint;

import java.lang.System.Logger.Level;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.core.Utils;

/** Keeps one connection that receives the notifications of a client. */
final class Listener implements Runnable {
  static final String HEARTBEAT = "pinpoint_heartbeat";

  private static final String CHANGED_SINCE =
      "SELECT changed::text[], position FROM pinpoint.changed_since(?::text, VARIADIC ?::text[])";
  private static final String TABLES_CHANGED = // of those of the channels that watched tables have
      "SELECT changed::text[], position FROM pinpoint.changed_since(?::text,"
          + " VARIADIC ARRAY(SELECT channel::text FROM pinpoint.watched WHERE channel = ANY (?::text[])))";
  private static final String WAIT = "CALL pinpoint.wait(?::text[], ?::text, ?::interval)";
  private static final String NO_LISTEN = "LISTEN does not work through this connection, because a pooler gives each"
      + " transaction another session. Connect to the server, or to a pool in session mode, or install pg_pinpoint 1.1"
      + " or later, or its pinpoint.sql, in this database.";
  private static final String NO_WAIT = "waiting needs pg_pinpoint 1.1 or later, or its pinpoint.sql, in this database";
  private static final int LOOK = 6; // check intervals between two looks at what is not notified
  private static final int SLICE_MILLIS = 25; // the driver cannot be woken while it reads
  private static final Duration WATCHED = Duration.ofSeconds(1); // by one timer
  private static final int CANCEL_MILLIS = 100; // between two attempts to cancel

  /** The answer of changed_since() or wait(). */
  private record Changed(Set<String> channels, String position) {
    Changed(List<Object> row) {
      this(((List<?>) row.get(0)).stream().map(String.class::cast).collect(Collectors.toSet()), (String) row.get(1));
    }
  }

  /** A call of pinpoint.wait() that may be canceled. */
  private record Call(Connection connection, Set<String> channels) {}

  private final Client client;
  private final ClientBuilder options;
  private final Connections connections;
  private boolean waits;
  private Long connectedAt; // for the last time; null: never
  volatile String position; // of the last heartbeat or answer, null without pg_pinpoint

  // The lock of the client protects these fields.
  Event.Connected connected;
  private String failure; // why there is no connection, if an attempt has failed or it was lost
  private long retryAt;
  private Call waiting;
  private boolean canceling; // it

  Listener(Client client) {
    this.client = client;
    options = client.options;
    connections = client.connections;
    waits = options.mode == Event.Mode.WAIT;
  }

  @Override
  public void run() {
    int failures = 0;
    while (!client.isClosed()) {
      try {
        session();
      } catch (Throwable e) { // also of the driver and of the Java machine
        boolean worked = connected != null && System.nanoTime() - connectedAt >= options.maxBackoff.toNanos();
        failures = worked ? 1 : failures + 1;
        Duration delay = Backoff.delay(options, failures, ThreadLocalRandom.current()::nextDouble);
        lost(e, delay, failures > options.maxAttempts);
        pause(delay);
      }
    }
  }

  /** The connection was lost, or could not be made. */
  private void lost(Throwable error, Duration delay, boolean isLast) {
    String reason = PinpointException.reason(error);
    String state = PinpointException.sqlState(error);
    synchronized (client) {
      connected = null;
    }
    if ("22P02".equals(state)) {
      position = null; // of a false heartbeat, or unknown to an older version: ask without
    }
    if (client.isClosed()) {
      return;
    } else if (isLast || connectedAt == null && PinpointException.isPermanent(error)) {
      Counters.LOGGER.log(Level.ERROR, "the client ends: {0}", reason);
      client.end(new PinpointException(reason, state, error));
      return;
    }
    connections.closeAll();
    Counters.LOGGER.log(Level.WARNING, "not connected: {0}; the next attempt is in {1} ms", reason, delay.toMillis());
    synchronized (client) {
      failure = reason;
      retryAt = System.nanoTime() + delay.toNanos();
      client.tellAll(current());
    }
  }

  /** What a new consumer is told, with the lock of the client held; null while the first attempt goes on. */
  Event current() {
    if (connected != null || failure == null) {
      return connected;
    }
    return new Event.Disconnected(failure, Duration.ofNanos(Math.max(0, retryAt - System.nanoTime())));
  }

  /** Wait, at most until the client is closed, which interrupts it. */
  private static void pause(Duration time) {
    try {
      TimeUnit.NANOSECONDS.sleep(time.toNanos());
    } catch (InterruptedException e) {
      // The client is closed.
    }
  }

  /** Connect, and receive until the connection is lost. */
  private void session() throws SQLException {
    Connection connection = connections.connect();
    try {
      Server server = Server.open(connections, connection);
      boolean probes = server.pooled() && options.mode == Event.Mode.AUTO;
      boolean wait = waits || probes && !hearsThroughPooler(connection, server);
      if (wait && !server.hasWait()) {
        throw new PinpointException(NO_WAIT, null);
      }
      if (!server.hasPositions()) {
        position = null;
      }
      if (wait) {
        await(connection, server);
      } else {
        listen(connection, server);
      }
    } finally {
      connections.discard(connection);
    }
  }

  /** Does a notification arrive while no transaction is running? */
  private boolean hearsThroughPooler(Connection connection, Server server) throws SQLException {
    if (server.standby()) {
      return !server.hasWait(); // a standby cannot notify
    }
    String channel = "pinpoint_probe_" + Long.toHexString(ThreadLocalRandom.current().nextLong());
    connections.execute(connection, "LISTEN " + channel);
    Connection other = connections.connect();
    try {
      connections.execute(other, "NOTIFY " + channel);
    } finally {
      connections.discard(other);
    }
    // Through a pooler, there may be notifications that another client of its listens for.
    boolean heard = false;
    long end = System.nanoTime() + options.probeTimeout.toNanos();
    for (long rest; !heard && (rest = end - System.nanoTime()) > 0;) {
      heard = Arrays.stream(notifications(connection, Duration.ofNanos(rest)))
          .anyMatch(n -> n.getName().equals(channel));
    }
    connections.execute(connection, "UNLISTEN " + channel);
    if (!heard && !server.hasWait()) {
      throw new PinpointException(NO_LISTEN, null);
    }
    return heard;
  }

  /** The notifications that arrive within a time; returns with the first one, or early. */
  private PGNotification[] notifications(Connection connection, Duration time) throws SQLException {
    long end = System.nanoTime() + Math.min(time.toNanos(), WATCHED.toNanos());
    // In the middle of a message, the driver waits without limit. A large one may take a while.
    Future<?> watch = client.tasks.schedule(() -> connections.discard(connection),
        WATCHED.plus(options.queryTimeout).toMillis(), TimeUnit.MILLISECONDS);
    try {
      PGConnection driver = connection.unwrap(PGConnection.class);
      while (true) {
        long rest = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
        PGNotification[] arrived = driver.getNotifications((int) Math.max(1, Math.min(SLICE_MILLIS, rest)));
        if (arrived != null && arrived.length > 0 || rest <= SLICE_MILLIS || isWanted()) {
          return arrived == null ? new PGNotification[0] : arrived;
        }
      }
    } finally {
      watch.cancel(false);
    }
  }

  /** Does the listener have something else to do than to wait? */
  private boolean isWanted() {
    synchronized (client) {
      return client.index.hasPending() || client.isClosed();
    }
  }

  /** The first answer on all channels. */
  private void begin(Server server, Event.Mode mode) {
    connectedAt = System.nanoTime();
    client.counters.connects.increment();
    Counters.LOGGER.log(Level.INFO, "connected to PostgreSQL {0}, mode {1}", Integer.toString(server.version()), mode);
    synchronized (client) {
      connected = new Event.Connected(server.version(), server.standby(), mode);
      failure = null;
      client.tellAll(connected); // those that come later are told by subscribe()
    }
  }

  private void tellChanged(Set<String> heard, Set<String> changed) {
    synchronized (client) {
      client.index.tellChanged(heard::contains, changed);
    }
  }

  /** Channels were added. Called with the lock of the client held. */
  void channelsAdded() {
    Call call = waiting;
    if (call == null) {
      return; // the listener looks for itself
    }
    tellChanged(call.channels, Set.of());
    if (client.index.hasUntold() && !canceling) {
      canceling = true;
      client.tasks.execute(() -> cancel(call));
    }
  }

  // ---- LISTEN -----------------------------------------------------------------

  private void listen(Connection connection, Server server) throws SQLException {
    Duration quiet = server.hasHeartbeats() ? server.interval().multipliedBy(3) : options.checkInterval;
    boolean anyHeartbeat = false;
    if (server.hasHeartbeats()) {
      connections.execute(connection, "LISTEN " + HEARTBEAT);
    }
    synchronized (client) {
      client.index.allPending();
    }
    Set<String> listened = listenToChanges(connection, server);
    Set<String> missed = listened;
    if (server.hasPositions()) {
      Changed answer = changedSince(connection, CHANGED_SINCE, position, listened);
      position = answer.position;
      missed = answer.channels;
    }
    synchronized (client) { // both at once, so that a live query is executed once
      begin(server, Event.Mode.PUSH);
      tellChanged(listened, missed);
    }
    boolean looks = server.hasWait() && !server.hasHeartbeats();
    long looked = System.nanoTime();
    String lookedAt = position;
    for (long heard = looked; !client.isClosed();) {
      if (isWanted()) {
        tellChanged(listenToChanges(connection, server), Set.of());
      }
      if (looks && System.nanoTime() - looked >= LOOK * options.checkInterval.toNanos()) {
        lookedAt = look(connection, lookedAt);
        looked = System.nanoTime();
      }
      Duration silent = Duration.ofNanos(System.nanoTime() - heard);
      PGNotification[] arrived = notifications(connection, quiet.minus(silent));
      synchronized (client) {
        for (PGNotification n : arrived) {
          if (n.getName().equals(HEARTBEAT)) {
            position = n.getParameter().split(" ")[0];
            anyHeartbeat = true;
          } else {
            client.index.tell(new Event.Notification(n.getName(), n.getParameter(), n.getPID()));
          }
        }
      }
      if (arrived.length == 0) {
        if (silent.compareTo(quiet) < 0) {
          continue;
        }
        check(connection, server, quiet, server.pooled() && !anyHeartbeat);
      }
      heard = System.nanoTime();
      client.counters.signOfLife();
    }
  }

  /** The connection was quiet for too long. */
  private void check(Connection connection, Server server, Duration quiet, boolean mayBePooler) throws SQLException {
    if (server.hasHeartbeats()) {
      if (mayBePooler && server.hasWait() && options.mode == Event.Mode.AUTO) {
        server.check(connections, connection); // it is not the connection
        Counters.LOGGER.log(Level.INFO, "no heartbeat arrives through the pooler: the client uses pinpoint.wait()");
        waits = true;
      }
      throw new SQLException("no heartbeat for " + quiet.toMillis() / 1000.0 + " seconds");
    }
    server.check(connections, connection);
  }

  /** Its position is only taken after COMMIT, as an error at the end of the transaction loses the channels. */
  private Changed changedSince(Connection connection, String query, String since, Set<String> channels)
      throws SQLException {
    return new Changed(connections.fetch(connection, query, since, channels.toArray(String[]::new)));
  }

  /**
   * Without heartbeats, some changes of a watched table are not notified, such as ALTER TABLE: ask for them. A channel
   * that is only notified may count as changed each time. Returns the position of the answer, for the next time.
   */
  private String look(Connection connection, String since) throws SQLException {
    Set<String> channels;
    synchronized (client) {
      channels = new HashSet<>(client.index.names());
    }
    Changed answer = changedSince(connection, TABLES_CHANGED, since, channels);
    synchronized (client) {
      client.index.tellChanged(name -> false, answer.channels);
    }
    return answer.position;
  }

  /** Make the connection listen to what has changed. Returns the channels on which it listens from now on. */
  private Set<String> listenToChanges(Connection connection, Server server) throws SQLException {
    Set<String> gone;
    Set<String> fresh;
    synchronized (client) {
      gone = client.index.takePending();
      fresh = new HashSet<>(gone);
      fresh.retainAll(client.index.names());
    }
    gone.removeAll(fresh);
    listen(connection, server, "listen", fresh);
    listen(connection, server, "unlisten", gone);
    return fresh;
  }

  private void listen(Connection connection, Server server, String command, Set<String> channels) throws SQLException {
    if (channels.isEmpty()) {
      return;
    } else if (server.hasWait()) {
      Connections.limit(connection, options.timeout);
      Connections.query(connection, "SELECT pinpoint." + command + "(VARIADIC ?::text[])",
          (Object) channels.toArray(String[]::new));
      return;
    }
    StringBuilder statements = new StringBuilder();
    for (String channel : channels) {
      Utils.escapeIdentifier(statements.append(command).append(' '), channel).append(';');
    }
    connections.execute(connection, statements.toString());
  }

  // ---- pinpoint.wait() ----------------------------------------------------------

  private void await(Connection connection, Server server) throws SQLException {
    Duration half = server.timeLimit().dividedBy(2);
    Duration timeout = half.compareTo(options.checkInterval) < 0 ? half : options.checkInterval;
    Connections.limit(connection, timeout.plus(options.timeout));
    // The first call shows whether it works. It and each call after a cancellation are not canceled, and end at
    // once, so there are answers, however often the channels change.
    for (boolean atOnce = true; !client.isClosed();) {
      Call call;
      synchronized (client) {
        client.index.takePending();
        call = new Call(connection, Set.copyOf(client.index.names()));
        if (connected != null) { // they begin with the position that was asked before
          client.index.tellChanged(call.channels::contains, Set.of());
        }
        waiting = atOnce ? null : call;
        canceling = false;
      }
      try {
        Changed answer = await(call, atOnce ? Duration.ZERO : timeout);
        client.counters.signOfLife();
        position = answer.position;
        synchronized (client) {
          if (connected == null) {
            begin(server, Event.Mode.WAIT);
          }
          tellChanged(call.channels, answer.channels);
        }
        atOnce = false;
        Connections.dropNotifications(connection);
        if (!answer.channels.isEmpty()) {
          pause(options.minInterval);
        }
      } catch (SQLException e) {
        if (!"57014".equals(e.getSQLState())) { // canceled here, or a timeout that the server has
          throw e;
        }
        atOnce = true;
      }
    }
  }

  private Changed await(Call call, Duration timeout) throws SQLException {
    Set<String> channels = call.channels.isEmpty() ? Set.of(HEARTBEAT) : call.channels;
    try {
      return new Changed(Connections.query(call.connection, WAIT, channels.toArray(String[]::new), position,
          timeout.toMillis() + " ms").rows().get(0));
    } finally {
      synchronized (client) {
        waiting = null;
      }
    }
  }

  /** End a call, until it ends: the server may not have begun to execute it. */
  private void cancel(Call call) {
    synchronized (client) {
      if (waiting != call) {
        return;
      }
    }
    try {
      call.connection.unwrap(PGConnection.class).cancelQuery();
      client.tasks.schedule(() -> cancel(call), CANCEL_MILLIS, TimeUnit.MILLISECONDS);
    } catch (SQLException e) {
      // It ends later.
    }
  }
}
