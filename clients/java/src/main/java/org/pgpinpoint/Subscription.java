package org.pgpinpoint;

import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Set;

/** The events of some channels. The iterator blocks. The lock of the client protects the fields. */
public final class Subscription implements Iterator<Event>, AutoCloseable {
  final EventQueue queue;
  final Set<String> channels = new HashSet<>();
  final Set<String> heard = new HashSet<>(); // of which the consumer has been told
  private final Client client;

  Subscription(Client client) {
    this.client = client;
    queue = new EventQueue(client.options.buffer());
  }

  /** Listen on more channels. Each begins with a Changed. */
  public void add(String... names) {
    check(names);
    synchronized (client) {
      channels.addAll(List.of(names));
      client.listener.channelsChanged();
    }
  }

  /** Listen on fewer channels. */
  public void remove(String... names) {
    synchronized (client) {
      List.of(names).forEach(channels::remove);
      List.of(names).forEach(heard::remove);
      client.listener.channelsChanged();
    }
  }

  @Override
  public boolean hasNext() {
    try {
      return queue.hasNext();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new PinpointException("interrupted", null);
    }
  }

  /** Wait for the next event. Throws a PinpointException if the subscription cannot go on. */
  @Override
  public Event next() {
    try {
      return queue.next();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new PinpointException("interrupted", null);
    }
  }

  @Override
  public void close() {
    synchronized (client) {
      client.subscriptions.remove(this);
      client.listener.channelsChanged();
    }
    queue.end(new NoSuchElementException());
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
