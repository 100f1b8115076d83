package org.pgpinpoint;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.postgresql.core.BaseConnection;

/** One query that is executed for all its consumers. The lock of the client protects the fields. */
final class LiveQuery extends Thread {
  private static final String CHANNELS_OF = "SELECT relation::text, channel::text FROM pinpoint.channels_of(?)";

  private final Client client;
  private final List<Object> key;
  private final String query;
  private final Object[] parameters;
  private final Subscription subscription;
  private final Set<Live> consumers = new HashSet<>();
  private boolean dirty;

  LiveQuery(Client client, List<Object> key, String query, Object[] parameters, Subscription subscription) {
    super("pg_pinpoint live query");
    setDaemon(true);
    this.client = client;
    this.key = key;
    this.query = query;
    this.parameters = parameters;
    this.subscription = subscription;
    Thread watcher = new Thread(this::watch, "pg_pinpoint changes of a live query");
    watcher.setDaemon(true);
    watcher.start();
  }

  /** A new consumer. A result that is at hand may be older than this call. */
  Live consumer() {
    Live live = new Live(this);
    synchronized (client) {
      consumers.add(live);
    }
    setDirty();
    return live;
  }

  void remove(Live live) {
    synchronized (client) {
      consumers.remove(live);
      if (!consumers.isEmpty() || !client.live.remove(key, this)) {
        return;
      }
    }
    subscription.close();
    interrupt();
  }

  void fail(PinpointException error) {
    consumers.forEach(live -> live.end(error));
  }

  private void setDirty() {
    synchronized (client) {
      dirty = true;
      client.notifyAll();
    }
  }

  private void watch() {
    try {
      while (subscription.hasNext()) {
        subscription.next();
        setDirty();
      }
    } catch (PinpointException e) {
      // The consumers know.
    }
  }

  private void tell(Result result) {
    synchronized (client) {
      consumers.forEach(live -> live.put(result));
    }
  }

  @Override
  public void run() {
    Options options = client.options;
    int failures = 0;
    String told = null;
    try {
      while (!client.isClosed()) {
        synchronized (client) {
          while (!dirty || client.listener.connected == null) {
            client.wait();
          }
          dirty = false; // what changes from now on is in another execution
        }
        long started = System.nanoTime();
        double pause;
        try {
          tell(execute());
          failures = 0;
          told = null;
          pause = options.minInterval() - (System.nanoTime() - started) / 1e9;
        } catch (SQLException | PinpointException e) {
          setDirty();
          failures++;
          String state = e instanceof SQLException sql ? sql.getSQLState() : ((PinpointException) e).sqlState();
          if (state != null && !state.startsWith("08") && !e.getMessage().equals(told)) {
            told = e.getMessage();
            tell(new Result.Failed(told, state));
          }
          pause = Math.min(options.maxBackoff(), options.minBackoff() * Math.pow(2, Math.min(failures, 30)));
        }
        Thread.sleep(Math.max(0, (long) (pause * 1000)));
      }
    } catch (InterruptedException e) {
      // The end.
    }
  }

  private Result execute() throws SQLException, InterruptedException {
    client.slots.acquire();
    try {
      Connection connection;
      synchronized (client) {
        connection = client.idle.poll();
      }
      if (connection == null) {
        connection = connect();
      }
      try {
        Listener.limit(connection, client.options.queryTimeout());
        listenToTables(connection);
        Result result = rows(connection);
        synchronized (client) {
          client.idle.push(connection);
        }
        return result;
      } catch (SQLException | PinpointException | InterruptedException e) {
        client.discard(connection);
        throw e;
      }
    } finally {
      client.slots.release();
    }
  }

  private Result rows(Connection connection) throws SQLException {
    try (PreparedStatement statement = Listener.prepare(connection, query, parameters);
        ResultSet set = statement.executeQuery()) {
      int count = set.getMetaData().getColumnCount();
      List<String> columns = new ArrayList<>();
      for (int i = 1; i <= count; i++) {
        columns.add(set.getMetaData().getColumnLabel(i));
      }
      List<List<Object>> rows = new ArrayList<>();
      while (set.next()) {
        Object[] row = new Object[count];
        for (int i = 0; i < count; i++) {
          row[i] = set.getObject(i + 1);
        }
        rows.add(Arrays.asList(row));
      }
      return new Result.Rows(rows, columns);
    }
  }

  /** Connect to the server whose changes are heard. */
  private Connection connect() throws SQLException {
    String heard;
    synchronized (client) {
      heard = client.listener.position;
    }
    if (heard == null) {
      throw new PinpointException("live queries need the extension pg_pinpoint 1.1 or later in this database", "0A000");
    }
    Connection connection = client.connect();
    try {
      String position = client.listener.fetch(connection, Listener.POSITION, row -> row.getString(1));
      if (!server(position).equals(server(heard))) {
        throw new SQLException("this is another server");
      }
      return connection;
    } catch (SQLException e) {
      client.discard(connection);
      throw e;
    }
  }

  private static List<String> server(String position) {
    return List.of(position.split("-")).subList(0, 2);
  }

  /** Listen on the channels of the tables that the query reads, before it is executed. */
  private void listenToTables(Connection connection) throws SQLException, InterruptedException {
    // With $1 instead of "?".
    String text = connection.unwrap(BaseConnection.class).getQueryExecutor()
        .createQuery(query, true, parameters.length > 0).query.getNativeSql();
    Set<String> channels = new HashSet<>();
    try (PreparedStatement statement = Listener.prepare(connection, CHANNELS_OF, text);
        ResultSet tables = statement.executeQuery()) {
      while (tables.next()) {
        String table = tables.getString(1);
        if (tables.getString(2) == null) {
          throw new PinpointException("the table \"" + table + "\" is not watched: execute SELECT pinpoint.watch('"
              + table.replace("'", "''") + "')", "55000");
        }
        channels.add(tables.getString(2));
      }
    }
    synchronized (client) {
      Set<String> gone = new HashSet<>(subscription.channels);
      gone.removeAll(channels);
      Set<String> fresh = new HashSet<>(channels);
      fresh.removeAll(subscription.channels);
      if (!gone.isEmpty()) {
        subscription.remove(gone.toArray(String[]::new));
      }
      if (!fresh.isEmpty()) {
        subscription.add(fresh.toArray(String[]::new));
      }
      while (!subscription.heard.containsAll(channels)) {
        if (client.listener.connected == null) {
          throw new SQLException("the connection was lost");
        }
        client.wait();
      }
    }
  }
}
