import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.pgpinpoint.Client;
import org.pgpinpoint.ClientBuilder;
import org.pgpinpoint.Event;
import org.pgpinpoint.LiveQuery;
import org.pgpinpoint.PinpointException;
import org.pgpinpoint.Result;
import org.pgpinpoint.Subscription;

/** The conformance program over the Java package: see ../../README.md. */
public final class ConformanceClient {
  private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

  public static void main(String[] arguments) {
    boolean failed = false;
    try (Client client = client()) {
      String[] names = java.util.Arrays.copyOfRange(arguments, 1, arguments.length);
      if (arguments[0].equals("live")) {
        LiveQuery live = client.live(names[0]);
        List<LiveQuery> opened = new ArrayList<>();
        commands(client, line -> {
          if (line.startsWith(">")) {
            opened.add(client.live(line.substring(1)));
          } else if (line.startsWith("<")) {
            opened.forEach(LiveQuery::close);
          } else {
            comeAndGo(client, names[0]);
          }
        }, live::close);
        live.forEach(ConformanceClient::show);
      } else {
        Subscription subscription = client.subscribe(names);
        commands(client, line -> {
          if (line.startsWith("+")) {
            subscription.add(line.substring(1));
          } else {
            subscription.remove(line.substring(1));
          }
        }, subscription::close);
        subscription.forEach(ConformanceClient::show);
      }
    } catch (PinpointException e) {
      print("event", "error", "message", e.getMessage(), "sqlstate", e.sqlState());
      failed = true;
    } catch (IllegalArgumentException e) {
      print("event", "error", "message", e.getMessage());
      failed = true;
    }
    System.exit(failed ? 1 : 0);
  }

  /** Consumers of live queries come and go; then another one gets rows, and two with other parameters. */
  private static void comeAndGo(Client client, String query) {
    IntStream.range(0, 200).parallel().forEach(number -> one(client, query, number, number % 3 == 0));
    one(client, query, 0, true);
    print("event", "came_and_went");
    Object[] parameters = {"1"};
    try (LiveQuery first = client.live("SELECT ?::text", parameters)) {
      parameters[0] = "2"; // of the first one it is a copy
      try (LiveQuery second = client.live("SELECT ?::text", parameters)) {
        print("event", "parameters", "rows", List.of(rows(first), rows(second)));
      }
    }
  }

  private static void one(Client client, String query, int number, boolean wait) {
    try (LiveQuery live = client.live(query + " -- " + number % 10)) {
      if (wait) {
        rows(live);
      }
    }
  }

  private static List<List<Object>> rows(LiveQuery live) {
    while (true) {
      if (live.next() instanceof Result.Rows result) {
        return result.rows();
      }
    }
  }

  private static void show(Event event) {
    if (event instanceof Event.Connected e) {
      print("event", "connected", "mode", e.mode().name().toLowerCase(), "standby", e.standby(), "server_version", e.serverVersion());
    } else if (event instanceof Event.Changed e) {
      print("event", "changed", "channels", e.channels());
    } else if (event instanceof Event.Notification e) {
      print("event", "notification", "channel", e.channel(), "payload", e.payload(), "pid", e.pid());
    } else if (event instanceof Event.Disconnected e) {
      print("event", "disconnected", "reason", e.reason(), "retry_in", e.retryIn().toNanos() / 1e9);
    }
  }

  private static void show(Result result) {
    if (result instanceof Result.Rows r) {
      print("event", "rows", "rows", r.rows(), "columns", r.columns());
    } else if (result instanceof Result.Failed f) {
      print("event", "error", "message", f.message(), "sqlstate", f.sqlState());
    } else if (result instanceof Event.Disconnected d) {
      print("event", "disconnected", "reason", d.reason(), "retry_in", d.retryIn().toNanos() / 1e9);
    }
  }

  private static synchronized void print(Object... namesAndValues) {
    Map<String, Object> fields = new TreeMap<>();
    for (int i = 0; i < namesAndValues.length; i += 2) {
      fields.put((String) namesAndValues[i], namesAndValues[i + 1]);
    }
    StringBuilder text = new StringBuilder();
    json(text, fields);
    OUT.println(text);
  }

  private static void json(StringBuilder text, Object value) {
    if (value instanceof Map<?, ?> map) {
      String separator = "{";
      for (Map.Entry<?, ?> entry : map.entrySet()) {
        json(text.append(separator), entry.getKey());
        json(text.append(':'), entry.getValue());
        separator = ",";
      }
      text.append('}');
    } else if (value instanceof Collection<?> list) {
      String separator = "[";
      text.append(list.isEmpty() ? "[" : "");
      for (Object element : list) {
        json(text.append(separator), element);
        separator = ",";
      }
      text.append(']');
    } else if (value == null || value instanceof Number || value instanceof Boolean) {
      text.append(value);
    } else {
      text.append('"');
      for (char c : value.toString().toCharArray()) {
        if (c == '"' || c == '\\') {
          text.append('\\').append(c);
        } else if (c < ' ') {
          text.append(String.format("\\u%04x", (int) c));
        } else {
          text.append(c);
        }
      }
      text.append('"');
    }
  }

  private static Client client() {
    String given = System.getenv().getOrDefault("PINPOINT_OPTIONS", "{}");
    ClientBuilder builder = Client.builder(System.getenv("PINPOINT_DSN"));
    builder.property("hostRecheckSeconds", "0"); // otherwise hosts that have failed are left out for longer than a test
    if (given.contains("\"mode\": \"wait\"")) {
      builder.mode(Event.Mode.WAIT);
    } else if (given.contains("\"mode\": \"push\"")) {
      builder.mode(Event.Mode.PUSH);
    }
    return builder.buffer((long) number(given, "buffer", 64 << 20)).maxBackoff(seconds(given, "max_backoff", 15))
        .timeout(seconds(given, "timeout", 10)).queryTimeout(seconds(given, "query_timeout", 60))
        .checkInterval(seconds(given, "check_interval", 10)).probeTimeout(seconds(given, "probe_timeout", 3)).build();
  }

  private static Duration seconds(String json, String name, double otherwise) {
    return Duration.ofNanos((long) (number(json, name, otherwise) * 1e9));
  }

  private static double number(String json, String name, double otherwise) {
    Matcher matcher = Pattern.compile("\"" + name + "\": ([0-9.]+)").matcher(json);
    return matcher.find() ? Double.parseDouble(matcher.group(1)) : otherwise;
  }

  /** Read lines of standard input until its end. */
  private static void commands(Client client, Consumer<String> command, Runnable end) {
    Thread thread = new Thread(() -> {
      try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
        lines.lines().forEach(line -> {
          if (line.equals("!")) {
            client.close();
          } else {
            command.accept(line);
          }
        });
      } catch (java.io.IOException e) {
        // The end.
      }
      end.run();
    });
    thread.setDaemon(true);
    thread.start();
  }
}
