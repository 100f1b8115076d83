package org.pgpinpoint;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Set;

/** The events of some channels. A notification that does not fit into the buffer becomes a Changed. */
public final class Subscription extends Events<Event> {
  private static final int OVERHEAD = 200; // bytes that an event takes without its texts, about

  private final Client client;
  final Subscriber subscriber = new Subscriber() {
    @Override
    void put(Event event) {
      change(() -> Subscription.this.put(event));
    }

    @Override
    void end(RuntimeException error) {
      Subscription.this.end(error);
    }
  };

  // The lock of the events protects these fields.
  private final ArrayDeque<Event> events = new ArrayDeque<>();
  private Set<String> changed = new HashSet<>(); // of the Changed that is in the queue
  private long size;

  Subscription(Client client) {
    this.client = client;
  }

  /**
   * Listen on more channels. Each begins with a Changed. Nothing happens after close().
   *
   * @throws IllegalArgumentException if a name is not valid
   */
  public void add(String... names) {
    check(names);
    client.listenOn(subscriber, List.of(names), List.of());
  }

  /** Listen on fewer channels. Events that are already in the queue still follow. */
  public void remove(String... names) {
    client.listenOn(subscriber, List.of(), List.of(names));
  }

  @Override
  public void close() {
    client.remove(subscriber);
    end(new NoSuchElementException("the subscription is closed"));
  }

  private void put(Event event) {
    if (event instanceof Event.Changed c) {
      putChanged(c.channels());
      return;
    }
    long bytes = sizeOf(event);
    if (size + bytes <= client.options.buffer) {
      size += bytes;
      events.add(event);
      client.counters.given.increment();
      return;
    }
    client.counters.drop();
    if (event instanceof Event.Notification notification) { // the others tell nothing to read
      putChanged(Set.of(notification.channel()));
    }
  }

  /** Add channels to the Changed that is in the queue, or to a new one. */
  private void putChanged(Collection<String> names) {
    if (changed.isEmpty()) {
      events.add(new Event.Changed(changed));
      client.counters.given.increment();
    }
    changed.addAll(names);
  }

  @Override
  Event poll() {
    Event event = events.poll();
    if (event instanceof Event.Changed) {
      event = new Event.Changed(Set.copyOf(changed));
      changed = new HashSet<>();
    } else if (event != null) {
      size -= sizeOf(event);
    }
    return event;
  }

  private static long sizeOf(Event event) {
    return event instanceof Event.Notification n ? OVERHEAD + 2L * (n.channel().length() + n.payload().length()) : OVERHEAD;
  }

  static void check(String... names) {
    for (String name : names) {
      if (name.isEmpty()) {
        throw new IllegalArgumentException("the name of a channel cannot be empty");
      } else if (name.getBytes(StandardCharsets.UTF_8).length > 63) {
        throw new IllegalArgumentException("the name of a channel can have 63 bytes: \"" + name + "\" is longer");
      } else if (name.indexOf('\0') >= 0) {
        throw new IllegalArgumentException("the name of a channel cannot contain the character NUL");
      } else if (name.equals(Listener.HEARTBEAT)) {
        throw new IllegalArgumentException("the channel \"" + name + "\" is for the client itself");
      }
    }
  }
}
