package org.pgpinpoint;

import java.util.ArrayDeque;
import java.util.Collection;
import java.util.HashSet;
import java.util.Set;

/** The events of one subscription. A notification that does not fit becomes a Changed. */
final class EventQueue extends Events<Event> implements Subscriber {
  private static final int OVERHEAD = 200; // bytes that an event takes without its texts, about

  // The lock of the client protects these fields, that of this object the others.
  private final Set<String> channels = new HashSet<>();
  private final Set<String> heard = new HashSet<>();

  private final long limit; // bytes
  private final ArrayDeque<Event> events = new ArrayDeque<>();
  private Set<String> changed = new HashSet<>(); // of the Changed that is in the queue
  private long size;

  EventQueue(long limit) {
    this.limit = limit;
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
    if (size + bytes <= limit) {
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

  @Override
  public void end(RuntimeException error) {
    super.end(error);
  }
}
