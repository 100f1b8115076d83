import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.Executors;
import org.pgpinpoint.Client;
import org.pgpinpoint.LiveQuery;
import org.pgpinpoint.Result;

/**
 * Server-sent events: each browser gets the rows of a live query. A request that ends also ends its query.
 *
 * <p>PINPOINT_DSN=postgresql:///shop PORT=8000 java -cp "lib/*" ServerSentEvents.java
 *
 * <p>Needs a table that is watched: CREATE TABLE orders (id int, total int); SELECT pinpoint.watch('orders').
 */
public final class ServerSentEvents {
  // JSONB has no line breaks, which would end an event.
  private static final String QUERY = "SELECT coalesce(jsonb_agg(o ORDER BY id), '[]')::text FROM orders AS o";
  private static final Duration PING = Duration.ofSeconds(2); // only a write notices that the browser is gone

  public static void main(String[] arguments) throws IOException {
    start(Client.of(System.getenv("PINPOINT_DSN")), Integer.parseInt(System.getenv("PORT")));
  }

  public static HttpServer start(Client client, int port) throws IOException {
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
    server.setExecutor(Executors.newCachedThreadPool()); // Java 21: newVirtualThreadPerTaskExecutor()
    server.createContext("/", exchange -> send(client, exchange));
    server.start();
    return server;
  }

  private static void send(Client client, HttpExchange exchange) throws IOException {
    exchange.getResponseHeaders().add("Content-Type", "text/event-stream");
    exchange.getResponseHeaders().add("Cache-Control", "no-store");
    exchange.sendResponseHeaders(200, 0);
    try (OutputStream out = exchange.getResponseBody();
        LiveQuery orders = client.live(QUERY)) { // all browsers share one execution
      while (true) {
        out.write((text(orders.next(PING)) + "\n\n").getBytes(StandardCharsets.UTF_8));
        out.flush();
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt(); // the server stops
    }
  }

  private static String text(Optional<Result> result) {
    if (result.isEmpty()) {
      return ":"; // a comment
    } else if (result.get() instanceof Result.Rows rows) {
      return "data: " + rows.rows().get(0).get(0);
    }
    return "event: stale\ndata:"; // Failed, Disconnected: the rows may be old until the next ones
  }
}
