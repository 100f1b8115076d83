import java.util.HashMap;
import java.util.Map;
import java.util.function.Function;
import org.pgpinpoint.Client;
import org.pgpinpoint.Event;
import org.pgpinpoint.Subscription;

/**
 * A cache without a query per hit: a value is dropped when its channel is notified.
 *
 * <p>A value is stored only if no event of its channel came since before it was read. While the connection is lost,
 * values are read each time.
 *
 * <pre>{@code
 * Cache<List<Price>> cache = new Cache<>(client, channel -> readPrices());
 * new Thread(cache).start();
 * List<Price> prices = cache.get("prices");
 * }</pre>
 *
 * <p>The function reads the value of a channel on the server on which the client listens.
 */
public final class Cache<V> implements Runnable {
  private final Subscription subscription;
  private final Function<String, V> read;
  private final Map<String, V> values = new HashMap<>();
  private final Map<String, Object> generations = new HashMap<>(); // of each channel that is heard
  private boolean connected;

  public Cache(Client client, Function<String, V> read) {
    subscription = client.subscribe();
    this.read = read;
  }

  public V get(String channel) {
    Object before;
    synchronized (this) {
      if (values.containsKey(channel)) {
        return values.get(channel);
      }
      before = generations.get(channel);
    }
    subscription.add(channel); // the first event of a new channel is a Changed
    V value = read.apply(channel);
    synchronized (this) {
      if (connected && before != null && before == generations.get(channel)) {
        values.put(channel, value);
      }
    }
    return value;
  }

  /** Follow the events. It ends with the client, and throws its error. */
  @Override
  public void run() {
    try {
      subscription.forEach(this::follow);
    } finally {
      connect(false);
    }
  }

  private void follow(Event event) {
    if (event instanceof Event.Changed changed) {
      changed.channels().forEach(this::drop);
    } else if (event instanceof Event.Notification notification) {
      drop(notification.channel());
    } else {
      connect(event instanceof Event.Connected);
    }
  }

  private synchronized void drop(String channel) {
    generations.put(channel, new Object());
    values.remove(channel);
  }

  /** What was read before may be old, as the Changed follows the Connected. */
  private synchronized void connect(boolean now) {
    connected = now;
    generations.replaceAll((channel, old) -> new Object());
    values.clear();
  }
}
