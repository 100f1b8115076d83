package org.pgpinpoint;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Set;

/** The events of some channels. A notification that does not fit into the buffer becomes a Changed. */
public final class Subscription extends Events<Event> implements Subscriber {
  private static final int OVERHEAD = 200; // bytes that an event takes without its texts, about

  private final Client client;

  // The lock of the client protects these fields, that of this object the others.
  private final Set<String> channels = new HashSet<>();
  private final Set<String> heard = new HashSet<>();

  private final ArrayDeque<Event> events = new ArrayDeque<>();
  private Set<String> changed = new HashSet<>(); // of the Changed that is in the queue
  private long size;

  Subscription(Client client) {
    this.client = client;
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
  public void close() {
    synchronized (client) {
      client.subscribers.remove(this);
      client.listener.channelsChanged();
    }
    end(new NoSuchElementException());
  }

  @Override
  public Set<String> channels() {
    return channels;
  }

  @Override
  public Set<String> heard() {
    return heard;
  }

  private static long sizeOf(Event event) {
    return event instanceof Event.Notification n ? OVERHEAD + 2L * (n.channel().length() + n.payload().length()) : OVERHEAD;
  }

  @Override
  public synchronized void put(Event event) {
    long bytes = sizeOf(event);
    if (size + bytes <= client.options.buffer()) {
      size += bytes;
      events.add(event);
      notifyAll();
    } else if (event instanceof Event.Notification notification) {
      putChanged(Set.of(notification.channel()));
    }
  }

  /** Add channels to the Changed that is in the queue, or to a new one. */
  @Override
  public synchronized void putChanged(Collection<String> names) {
    if (changed.isEmpty()) {
      events.add(new Event.Changed(changed));
    }
    changed.addAll(names);
    notifyAll();
  }

  @Override
  boolean isEmpty() {
    return events.isEmpty();
  }

  @Override
  Event take() {
    Event event = events.remove();
    if (event instanceof Event.Changed) {
      event = new Event.Changed(Set.copyOf(changed));
      changed = new HashSet<>();
    } else {
      size -= sizeOf(event);
    }
    return event;
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
