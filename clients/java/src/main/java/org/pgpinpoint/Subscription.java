package org.pgpinpoint;

import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;

/** The events of some channels. The iterator blocks. */
public final class Subscription implements Iterator<Event>, AutoCloseable {
  private final Client client;
  private final EventQueue queue;

  Subscription(Client client, EventQueue queue) {
    this.client = client;
    this.queue = queue;
  }

  /**
   * Listen on more channels. Each begins with a Changed.
   *
   * @throws IllegalArgumentException if a name is not valid
   */
  public void add(String... names) {
    check(names);
    synchronized (client) {
      queue.channels().addAll(List.of(names));
      client.listener.channelsChanged(queue);
    }
  }

  /** Listen on fewer channels. Events that are already in the queue still follow. */
  public void remove(String... names) {
    synchronized (client) {
      List.of(names).forEach(queue.channels()::remove);
      List.of(names).forEach(queue.heard()::remove);
      client.listener.channelsChanged(queue);
    }
  }

  /** Wait for an event. Returns false after close(), and true before a final error, which next() throws. */
  @Override
  public boolean hasNext() {
    return queue.hasNext();
  }

  /**
   * Wait for the next event.
   *
   * @throws PinpointException if the subscription cannot go on, the client is closed, or the thread is interrupted
   * @throws NoSuchElementException after close()
   */
  @Override
  public Event next() {
    return queue.next();
  }

  /** End the subscription, without an error: hasNext() returns false after the events in the queue. */
  @Override
  public void close() {
    synchronized (client) {
      client.subscribers.remove(queue);
      client.listener.channelsChanged(queue);
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
