package org.pgpinpoint;

import java.sql.Array;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.core.Utils;

/** Keeps one connection that receives the notifications of a client. */
final class Listener extends Thread {
  static final String HEARTBEAT = "pinpoint_heartbeat";

  // to_regproc returns NULL on a server without pg_pinpoint.
  private static final String INQUIRY = """
      SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), pg_backend_pid(),
             to_regproc('pinpoint.changed_since') IS NOT NULL,
             to_regproc('pinpoint.wait') IS NOT NULL,
             coalesce((SELECT setting::int FROM pg_settings WHERE name = 'pinpoint.heartbeat_interval'), 0),
             (SELECT coalesce(min(setting::int), 0) FROM pg_settings
              WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0')""";
  private static final String HAS_PINPOINT = "SELECT to_regproc('pinpoint.changed_since') IS NOT NULL";
  static final String POSITION = "SELECT pinpoint.position()";
  private static final String CHANGED_SINCE =
      "SELECT changed::text[], position FROM pinpoint.changed_since(?::text, VARIADIC ?::text[])";
  private static final String WAIT = "CALL pinpoint.wait(?::text[], ?::text, ?::interval)";
  private static final String NO_LISTEN = "LISTEN does not work through this connection, because a pooler gives each"
      + " transaction another session. Connect to the server, or to a pool in session mode, or install pg_pinpoint 1.1"
      + " or later in this database.";
  private static final String NO_WAIT = "waiting needs the extension pg_pinpoint 1.1 or later in this database";
  private static final int SLICE = 100; // milliseconds; the driver cannot be woken while it reads

  /** What a client knows of the server of a connection. Times are in seconds; 0 is never. */
  private record Server(int version, boolean standby, int pid, boolean pinpoint, boolean hasWait, double interval,
      double timeLimit) {}

  /** The answer of changed_since(). */
  private record Changed(Set<String> channels, String position) {}

  /** The server does not answer any more. */
  private static final class ConnectionLost extends SQLException {
    private static final long serialVersionUID = 1L;

    ConnectionLost(String reason) {
      super(reason);
    }
  }

  // Of all clients. What is canceled leaves it at once: there is one for each batch of notifications.
  private static final ScheduledThreadPoolExecutor LIMITS = new ScheduledThreadPoolExecutor(1, task -> {
    Thread thread = new Thread(task, "pg_pinpoint limits");
    thread.setDaemon(true);
    return thread;
  });

  static {
    LIMITS.setRemoveOnCancelPolicy(true);
  }

  private final Client client;
  private final Options options;
  private boolean waits;
  private boolean everConnected;
  private Set<String> listened = new HashSet<>();

  // The lock of the client protects these fields.
  Event.Connected connected;
  String position;
  private boolean changes; // the channels of the subscribers have changed
  private Statement waiting; // a call of pinpoint.wait()
  private Set<String> asked; // its channels

  Listener(Client client) {
    super("pg_pinpoint listener");
    setDaemon(true);
    this.client = client;
    options = client.options;
    waits = options.mode() == Event.Mode.WAIT;
  }

  @Override
  public void run() {
    int failures = 0;
    while (!client.isClosed()) {
      try {
        session();
      } catch (Throwable e) { // also of the Java machine: otherwise nothing would be told
        if (client.isClosed()) {
          return;
        }
        String state = PinpointException.sqlState(e);
        synchronized (client) {
          failures = connected != null ? 1 : failures + 1;
          connected = null;
          if ("22P02".equals(state)) {
            position = null; // of a false heartbeat, or unknown to an older version: ask without
          }
        }
        client.closeAll();
        if (!everConnected && isPermanent(e, state) || failures > options.maxAttempts()) {
          client.fail(new PinpointException(PinpointException.reason(e), state));
          return;
        }
        double delay = Math.min(options.maxBackoff(), options.minBackoff() * Math.pow(2, Math.min(failures - 1, 30)));
        delay *= ThreadLocalRandom.current().nextDouble(0.5, 1);
        tellAll(new Event.Disconnected(PinpointException.reason(e), delay));
        try {
          Thread.sleep((long) (delay * 1000));
        } catch (InterruptedException interrupted) {
          return;
        }
      }
    }
  }

  /** Connect, and receive until the connection is lost. */
  private void session() throws SQLException {
    Connection connection = client.connect();
    try {
      listened = new HashSet<>();
      Server server = fetch(connection, INQUIRY, row -> new Server(row.getInt(1), row.getBoolean(2), row.getInt(3),
          row.getBoolean(4), row.getBoolean(5), row.getInt(6) / 1000.0, row.getInt(7) / 1000.0));
      boolean pooled = server.pid != connection.unwrap(PGConnection.class).getBackendPID();
      boolean wait = waits || pooled && options.mode() == null && !hearsThroughPooler(connection, server);
      if (wait && !server.hasWait) {
        throw new PinpointException(NO_WAIT, null);
      }
      if (!server.pinpoint) {
        setPosition(null);
      }
      Event.Connected event =
          new Event.Connected(server.version, server.standby, wait ? Event.Mode.WAIT : Event.Mode.PUSH);
      if (wait) {
        await(connection, event, server);
      } else {
        listen(connection, event, server, pooled);
      }
    } finally {
      client.discard(connection);
    }
  }

  interface Reader<T> {
    T read(ResultSet row) throws SQLException;
  }

  /** Execute a query at READ COMMITTED, which the functions need, and read its row. */
  <T> T fetch(Connection connection, String query, Reader<T> reader, Object... parameters) throws SQLException {
    limit(connection, options.timeout());
    try (Statement statement = connection.createStatement()) {
      statement.execute("BEGIN ISOLATION LEVEL READ COMMITTED");
      T result = query(connection, query, reader, parameters);
      statement.execute("COMMIT");
      return result;
    }
  }

  static <T> T query(Connection connection, String query, Reader<T> reader, Object... parameters) throws SQLException {
    try (PreparedStatement statement = prepare(connection, query, parameters); ResultSet rows = statement.executeQuery()) {
      rows.next();
      return reader.read(rows);
    }
  }

  static PreparedStatement prepare(Connection connection, String query, Object... parameters) throws SQLException {
    PreparedStatement statement = connection.prepareStatement(query);
    for (int i = 0; i < parameters.length; i++) {
      Object value = parameters[i] instanceof Set<?> set ? connection.createArrayOf("text", set.toArray()) : parameters[i];
      statement.setObject(i + 1, value);
    }
    return statement;
  }

  private void execute(Connection connection, String statements) throws SQLException {
    limit(connection, options.timeout());
    try (Statement statement = connection.createStatement()) {
      statement.execute(statements);
    }
  }

  /** How long the server may be silent, in seconds. */
  static void limit(Connection connection, double seconds) throws SQLException {
    connection.setNetworkTimeout(Runnable::run, (int) (seconds * 1000));
  }

  private static Set<String> set(Array array) throws SQLException {
    return new HashSet<>(List.of((String[]) array.getArray()));
  }

  /** Does a notification arrive while no transaction is running? */
  private boolean hearsThroughPooler(Connection connection, Server server) throws SQLException {
    if (server.standby) {
      return !server.hasWait; // a standby cannot notify
    }
    String channel = "pinpoint_probe_" + UUID.randomUUID().toString().replace("-", "").substring(16);
    execute(connection, "LISTEN " + channel);
    Connection other = client.connect();
    try {
      execute(other, "NOTIFY " + channel);
    } finally {
      client.discard(other);
    }
    // Through a pooler, there may be notifications that another client of its listens for.
    boolean heard = false;
    long end = System.nanoTime() + (long) (options.probeTimeout() * 1e9);
    for (long rest; !heard && (rest = end - System.nanoTime()) > 0; ) {
      heard = Arrays.stream(notifications(connection, rest / 1e9)).anyMatch(n -> n.getName().equals(channel));
    }
    execute(connection, "UNLISTEN " + channel);
    if (!heard && !server.hasWait) {
      throw new PinpointException(NO_LISTEN, null);
    }
    return heard;
  }

  /** The notifications that arrive within a time; returns with the first one. */
  private PGNotification[] notifications(Connection connection, double seconds) throws SQLException {
    // In the middle of a message, the driver waits without limit. A large one may take a while.
    Future<?> limit = LIMITS.schedule(() -> client.discard(connection),
        (long) ((seconds + options.queryTimeout()) * 1000), TimeUnit.MILLISECONDS);
    try {
      PGNotification[] arrived =
          connection.unwrap(PGConnection.class).getNotifications(Math.max(1, (int) (seconds * 1000)));
      return arrived == null ? new PGNotification[0] : arrived;
    } finally {
      limit.cancel(false);
    }
  }

  // ---- Channels ---------------------------------------------------------------

  /**
   * The channels of a subscriber have changed, or it has ended. Called with the lock of the client. A call that is
   * canceled too late begins again.
   */
  void channelsChanged(Subscriber subscriber) {
    Statement call = waiting;
    if (call != null && !changes) {
      boolean ended = !client.subscribers.contains(subscriber);
      if (ended || asked.containsAll(subscriber.channels())) {
        if (!ended) {
          tellChanged(subscriber, asked, Set.of());
        }
        return; // the call has all that are wanted
      }
      new Thread(() -> {
        try {
          // Until it ends: the server may not have begun to execute it.
          for (boolean goesOn = true; goesOn; ) {
            call.getConnection().unwrap(PGConnection.class).cancelQuery();
            Thread.sleep(SLICE);
            synchronized (client) {
              goesOn = waiting == call;
            }
          }
        } catch (SQLException | InterruptedException e) {
          // It ends later.
        }
      }, "pg_pinpoint cancel").start();
    }
    changes = true;
  }

  private Set<String> wanted() {
    synchronized (client) {
      changes = false;
      Set<String> wanted = new HashSet<>();
      client.subscribers.forEach(subscriber -> wanted.addAll(subscriber.channels()));
      return wanted;
    }
  }

  private boolean changes() {
    synchronized (client) {
      return changes || client.error != null;
    }
  }

  /** Tell subscriptions of changed channels, and of all whose notifications they receive from now on. */
  private void tellChanged(Set<String> heard, Set<String> changed) {
    synchronized (client) {
      client.subscribers.forEach(subscriber -> tellChanged(subscriber, heard, changed));
      client.notifyAll();
    }
  }

  private static void tellChanged(Subscriber subscriber, Set<String> heard, Set<String> changed) {
    List<String> channels = new ArrayList<>(subscriber.channels());
    channels.removeIf(c -> !heard.contains(c) || !changed.contains(c) && subscriber.heard().contains(c));
    subscriber.heard().addAll(channels);
    if (!channels.isEmpty()) {
      subscriber.putChanged(channels);
    }
  }

  private void tellAll(Event event) {
    synchronized (client) {
      client.subscribers.forEach(subscriber -> subscriber.put(event));
    }
  }

  private void begin(Event.Connected event) {
    everConnected = true;
    synchronized (client) {
      connected = event;
      client.notifyAll();
      tellAll(event); // those that come later are told by subscribe()
    }
  }

  private void setPosition(String text) {
    synchronized (client) {
      position = text;
    }
  }

  // ---- LISTEN -----------------------------------------------------------------

  private void listen(Connection connection, Event.Connected event, Server server, boolean pooled) throws SQLException {
    boolean heartbeats = server.pinpoint && server.interval > 0;
    double quiet = heartbeats ? 3 * server.interval : options.checkInterval();
    boolean anyHeartbeat = false;
    boolean first = true;
    long heard = System.nanoTime();
    if (heartbeats) {
      execute(connection, "LISTEN " + HEARTBEAT);
    }
    while (!client.isClosed()) {
      if (first || changes()) {
        Set<String> wanted = wanted();
        listenTo(connection, wanted, server.hasWait);
        Set<String> changed = Set.of();
        if (first) {
          changed = wanted;
          if (server.pinpoint) {
            // Only now, as an error at the end of the transaction loses the changed channels of the answer.
            Changed answer = fetch(connection, CHANGED_SINCE,
                row -> new Changed(set(row.getArray(1)), row.getString(2)), position, wanted);
            changed = answer.channels;
            setPosition(answer.position);
          }
          begin(event);
          heard = System.nanoTime();
          first = false;
        }
        tellChanged(wanted, changed);
      }
      double silent = (System.nanoTime() - heard) / 1e9;
      PGNotification[] arrived = notifications(connection, Math.min(SLICE / 1000.0, quiet - silent));
      for (PGNotification n : arrived) {
        heard = System.nanoTime();
        if (n.getName().equals(HEARTBEAT)) {
          anyHeartbeat = true;
          setPosition(n.getParameter().split(" ")[0]);
        } else {
          tell(new Event.Notification(n.getName(), n.getParameter(), n.getPID()));
        }
      }
      if (arrived.length > 0 || silent < quiet) {
        continue;
      }
      if (heartbeats) {
        if (pooled && server.hasWait && !anyHeartbeat && options.mode() == null) {
          fetch(connection, HAS_PINPOINT, row -> null); // it is not the connection
          waits = true;
        }
        throw new ConnectionLost("no heartbeat for " + quiet + " seconds");
      }
      if (fetch(connection, HAS_PINPOINT, row -> row.getBoolean(1)) != server.pinpoint) {
        throw new ConnectionLost("the extension pg_pinpoint was created or dropped");
      }
      heard = System.nanoTime();
    }
  }

  private void tell(Event.Notification notification) {
    synchronized (client) {
      for (Subscriber subscriber : client.subscribers) {
        if (subscriber.heard().contains(notification.channel())) {
          subscriber.put(notification);
        }
      }
    }
  }

  /** Make the connection listen to these channels. */
  private void listenTo(Connection connection, Set<String> wanted, boolean hasListen) throws SQLException {
    Set<String> fresh = new HashSet<>(wanted);
    fresh.removeAll(listened);
    Set<String> gone = new HashSet<>(listened);
    gone.removeAll(wanted);
    limit(connection, options.timeout());
    if (hasListen) {
      if (!fresh.isEmpty()) {
        query(connection, "SELECT pinpoint.listen(VARIADIC ?)", row -> null, fresh);
      }
      if (!gone.isEmpty()) {
        query(connection, "SELECT pinpoint.unlisten(VARIADIC ?)", row -> null, gone);
      }
    } else {
      StringBuilder statements = new StringBuilder();
      for (String channel : fresh) {
        Utils.escapeIdentifier(statements.append("LISTEN "), channel).append(';');
      }
      for (String channel : gone) {
        Utils.escapeIdentifier(statements.append("UNLISTEN "), channel).append(';');
      }
      if (!statements.isEmpty()) {
        execute(connection, statements.toString());
      }
    }
    listened = wanted;
  }

  // ---- pinpoint.wait() ----------------------------------------------------------

  private void await(Connection connection, Event.Connected event, Server server) throws SQLException {
    double timeout = options.checkInterval();
    if (server.timeLimit > 0) {
      timeout = Math.min(timeout, server.timeLimit / 2);
    }
    boolean first = true;
    // The first call shows whether it works. It and each call after a cancellation are not canceled, and end at
    // once, so there are answers, however often the channels change.
    boolean atOnce = true;
    while (!client.isClosed()) {
      Set<String> wanted = wanted();
      if (!first) {
        tellChanged(wanted, Set.of());
      }
      limit(connection, timeout + options.timeout());
      Set<String> channels = wanted.isEmpty() ? Set.of(HEARTBEAT) : wanted;
      try (PreparedStatement call = prepare(connection, WAIT, channels, position, timeout + " s")) {
        synchronized (client) {
          if (atOnce || changes) {
            call.setObject(3, "0 s");
          } else {
            waiting = call;
            asked = wanted;
          }
        }
        try (ResultSet rows = call.executeQuery()) {
          rows.next();
          Set<String> changed = set(rows.getArray("changed"));
          setPosition(rows.getString("position"));
          if (first) {
            begin(event);
            first = false;
          }
          atOnce = false;
          tellChanged(wanted, changed);
          connection.unwrap(PGConnection.class).getNotifications(); // of other clients of a pooler
          if (!changed.isEmpty()) {
            Thread.sleep((long) (options.minInterval() * 1000));
          }
        }
      } catch (InterruptedException e) {
        return; // closed
      } catch (SQLException e) {
        if (!"57014".equals(e.getSQLState())) { // canceled here, or a timeout that the server has
          throw e;
        }
        atOnce = true;
      } finally {
        synchronized (client) {
          waiting = null;
        }
      }
    }
  }

  /** Errors that another attempt does not mend: authorization, no such database, no such feature. */
  private static boolean isPermanent(Throwable error, String state) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof java.security.cert.CertificateException) {
        return true;
      }
    }
    // 08004: pgJDBC has no password, or cannot do the authentication that the server asks for.
    return error instanceof PinpointException || state != null && state.matches("(28|3D|42|0A|08004).*");
  }
}
