package org.pgpinpoint;

import java.net.SocketTimeoutException;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.postgresql.Driver;
import org.postgresql.core.BaseConnection;
import org.postgresql.core.QueryExecutor;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

/** Makes the connections of a client, and shares some of them among the live queries. */
final class Connections {
  private final Client client;
  private final Properties properties = new Properties();
  private final Set<Connection> open = ConcurrentHashMap.newKeySet();
  final ArrayDeque<Connection> idle = new ArrayDeque<>(); // for live queries; the lock of the client protects it

  Connections(Client client) {
    this.client = client;
    ClientBuilder options = client.options;
    int hosts = options.properties.getProperty("PGHOST", "").split(",").length;
    int timeout = (int) Math.ceil(options.timeout.toMillis() / 1000.0);
    properties.setProperty("loginTimeout", Integer.toString(timeout * hosts)); // for all of them
    properties.setProperty("connectTimeout", Integer.toString(timeout));
    // While it connects; later limit() sets it.
    properties.setProperty("socketTimeout", Integer.toString(timeout));
    properties.setProperty("tcpKeepAlive", "true");
    properties.setProperty("ApplicationName", "pg-pinpoint");
    // Statements are never prepared, because a pooler may be in between.
    properties.setProperty("prepareThreshold", "0");
    properties.putAll(options.properties);
  }

  Connection connect() throws SQLException {
    Connection connection = new Driver().connect("jdbc:postgresql:///", properties); // the properties say the rest
    open.add(connection);
    if (client.isClosed()) { // its end may have come before that
      discard(connection);
      throw client.error;
    }
    return connection;
  }

  /** A connection of an earlier execution, null if there is none. */
  Connection takeIdle() {
    synchronized (client) {
      return idle.poll();
    }
  }

  /** Close a connection without waiting for the server. */
  void discard(Connection connection) {
    open.remove(connection);
    try {
      connection.abort(Runnable::run);
    } catch (SQLException e) {
      // It is closed.
    }
  }

  /** Was the connection closed by the other side, before or while it was used? */
  static boolean isClosedByPeer(SQLException error) {
    String state = error.getSQLState() == null ? "" : error.getSQLState();
    ServerErrorMessage message = error instanceof PSQLException own ? own.getServerErrorMessage() : null;
    boolean isFatal = message == null || "FATAL".equals(message.getSeverity()); // not an error of dblink in the query
    return (state.startsWith("57P") || state.startsWith("08") && isFatal)
        && !(error.getCause() instanceof SocketTimeoutException);
  }

  /** Close all, because the client may now listen on another server. */
  void closeAll() {
    synchronized (client) {
      idle.clear();
    }
    open.forEach(this::discard);
  }

  // ---- Statements -----------------------------------------------------------------

  /** The first row of a query, which is executed at READ COMMITTED, as the functions need. */
  List<Object> fetch(Connection connection, String query, Object... parameters) throws SQLException {
    execute(connection, "BEGIN ISOLATION LEVEL READ COMMITTED");
    List<Object> row = query(connection, query, parameters).rows().get(0);
    execute(connection, "COMMIT");
    return row;
  }

  void execute(Connection connection, String statements) throws SQLException {
    limit(connection, client.options.timeout);
    try (Statement statement = connection.createStatement()) {
      statement.execute(statements);
    }
  }

  /** Execute a query, and read its rows. */
  static Result.Rows query(Connection connection, String query, Object... parameters) throws SQLException {
    try (PreparedStatement statement = connection.prepareStatement(query)) {
      for (int i = 0; i < parameters.length; i++) {
        statement.setObject(i + 1, parameters[i]);
      }
      try (ResultSet set = statement.executeQuery()) {
        List<String> columns = new ArrayList<>();
        for (int i = 1; i <= set.getMetaData().getColumnCount(); i++) {
          columns.add(set.getMetaData().getColumnLabel(i));
        }
        List<List<Object>> rows = new ArrayList<>();
        while (set.next()) {
          Object[] row = new Object[columns.size()];
          for (int i = 0; i < row.length; i++) {
            row[i] = Values.detach(set.getObject(i + 1));
          }
          rows.add(Collections.unmodifiableList(Arrays.asList(row)));
        }
        return new Result.Rows(Collections.unmodifiableList(rows), Collections.unmodifiableList(columns));
      }
    }
  }

  /** How long the server may be silent. */
  static void limit(Connection connection, Duration time) throws SQLException {
    connection.setNetworkTimeout(Runnable::run, time.equals(ClientBuilder.UNLIMITED) ? 0 : (int) time.toMillis());
  }

  private static QueryExecutor driver(Connection connection) throws SQLException {
    return connection.unwrap(BaseConnection.class).getQueryExecutor();
  }

  /** Drop what has come for other clients of a pooler. PGConnection.getNotifications() waits a millisecond for more. */
  static void dropNotifications(Connection connection) throws SQLException {
    driver(connection).getNotifications();
  }

  /** The text of a query that the server gets, with $1 instead of "?". */
  static String text(Connection connection, String query) throws SQLException {
    return driver(connection).createQuery(query, true, true).query.getNativeSql();
  }
}
