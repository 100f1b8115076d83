package org.pgpinpoint;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Set;
import org.postgresql.PGConnection;
import org.postgresql.core.BaseConnection;

/** One query that is executed for all its consumers. The lock of the client protects the fields. */
final class LiveQuery extends Thread implements Subscriber {
  private static final String CHANNELS_OF = "SELECT relation::text, channel::text FROM pinpoint.channels_of(?)";

  private final Client client;
  private final List<Object> key;
  private final String query;
  private final Object[] parameters;
  private Set<String> channels = new HashSet<>();
  private final Set<String> heard = new HashSet<>();
  private final Set<Live> consumers = new HashSet<>();
  private boolean dirty;
  private Connection using; // of this execution

  LiveQuery(Client client, List<Object> key, String query, Object[] parameters) {
    super("pg_pinpoint live query");
    setDaemon(true);
    this.client = client;
    this.key = key;
    this.query = query;
    this.parameters = parameters;
  }

  /** A new consumer, with the lock of the client held. A result that is at hand may be older than this call. */
  Live consumer() {
    Live live = new Live(this);
    consumers.add(live);
    setDirty();
    return live;
  }

  void remove(Live live) {
    Connection ended = null;
    synchronized (client) {
      if (consumers.remove(live) && consumers.isEmpty()) {
        end(new NoSuchElementException());
        ended = using;
      }
    }
    if (ended != null) {
      client.discard(ended); // the driver reads until then, and another query cannot have its place
    }
  }

  @Override
  public Set<String> channels() {
    return channels;
  }

  @Override
  public Set<String> heard() {
    return heard;
  }

  @Override
  public void put(Event event) {
    if (event instanceof Event.Disconnected d) {
      tell(new Result.Disconnected(d.reason(), d.retryIn()));
    }
    setDirty();
  }

  @Override
  public void putChanged(Collection<String> names) {
    setDirty();
  }

  @Override
  public void end(RuntimeException error) {
    consumers.forEach(live -> live.end(error));
    client.live.remove(key, this);
    client.subscribers.remove(this);
    client.listener.channelsChanged(this);
    interrupt();
  }

  private void setDirty() {
    synchronized (client) {
      dirty = true;
      client.notifyAll();
    }
  }

  /** With the lock of the client held. */
  private void tell(Result result) {
    consumers.forEach(live -> live.put(result));
  }

  /** heardBy: the connection of the listener. If it was lost meanwhile, the rows may be from another server. */
  private void tell(Result result, Event.Connected heardBy) {
    synchronized (client) {
      if (client.listener.connected == heardBy) {
        tell(result);
      }
    }
  }

  @Override
  public void run() {
    Options options = client.options;
    int failures = 0;
    try {
      while (true) {
        Event.Connected heardBy;
        synchronized (client) {
          while (!dirty || client.listener.connected == null) {
            client.wait();
          }
          if (client.live.get(key) != this) {
            return;
          }
          heardBy = client.listener.connected;
          dirty = false; // what changes from now on is in another execution
        }
        long started = System.nanoTime();
        double pause;
        try {
          tell(execute(heardBy), heardBy);
          failures = 0;
          pause = options.minInterval() - (System.nanoTime() - started) / 1e9;
        } catch (InterruptedException e) {
          return;
        } catch (Throwable e) { // also of the Java machine: otherwise nothing would be told
          setDirty();
          failures++;
          tell(new Result.Failed(PinpointException.reason(e), PinpointException.sqlState(e)), heardBy);
          pause = Math.min(options.maxBackoff(), options.minBackoff() * Math.pow(2, Math.min(failures, 30)));
        }
        Thread.sleep(Math.max(0, (long) (pause * 1000)));
      }
    } catch (InterruptedException e) {
      // The end.
    }
  }

  private Result execute(Event.Connected heardBy) throws SQLException, InterruptedException {
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
        use(connection);
        Listener.limit(connection, client.options.queryTimeout());
        connection.unwrap(PGConnection.class).getNotifications(); // of other clients of a pooler
        listenToTables(connection);
        Result result = rows(connection);
        synchronized (client) {
          if (client.listener.connected != heardBy) {
            throw new SQLException("the rows may be from another server");
          }
          use(null);
          client.idle.push(connection);
        }
        return result;
      } catch (Throwable e) {
        client.discard(connection);
        throw e;
      }
    } finally {
      client.slots.release();
    }
  }

  /** The end of this query ends this connection, too. */
  private void use(Connection connection) throws SQLException {
    synchronized (client) {
      using = connection;
      if (client.live.get(key) != this) {
        throw new SQLException("the live query is closed");
      }
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

  /** Connect to the server on which the client listens. */
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
      use(connection);
      String position = client.listener.fetch(connection, Listener.POSITION, row -> row.getString(1));
      if (!server(position).equals(server(heard))) {
        throw new SQLException("the connection leads to another server than the one on which the client listens");
      }
      return connection;
    } catch (Throwable e) {
      client.discard(connection);
      throw e;
    }
  }

  private static List<String> server(String position) {
    return Arrays.stream(position.split("-")).limit(2).toList(); // a false heartbeat may have fewer
  }

  /** Listen on the channels of the tables that the query reads, before it is executed. */
  private void listenToTables(Connection connection) throws SQLException, InterruptedException {
    // With $1 instead of "?".
    String text = connection.unwrap(BaseConnection.class).getQueryExecutor()
        .createQuery(query, true, parameters.length > 0).query.getNativeSql();
    Set<String> tablesChannels = new HashSet<>();
    try (PreparedStatement statement = Listener.prepare(connection, CHANNELS_OF, text);
        ResultSet tables = statement.executeQuery()) {
      while (tables.next()) {
        String table = tables.getString(1);
        if (tables.getString(2) == null) {
          throw new PinpointException("the table \"" + table + "\" is not watched: execute SELECT pinpoint.watch('"
              + table.replace("'", "''") + "')", "55000");
        }
        tablesChannels.add(tables.getString(2));
      }
    }
    synchronized (client) {
      if (!channels.equals(tablesChannels)) {
        channels = tablesChannels;
        heard.retainAll(channels);
        client.listener.channelsChanged(this);
      }
      while (!heard.containsAll(channels)) {
        if (client.listener.connected == null) {
          throw new SQLException("the connection was lost");
        }
        client.wait();
      }
    }
  }
}
