package org.pgpinpoint;

import java.util.ArrayDeque;
import java.util.Collection;
import java.util.HashSet;
import java.util.NoSuchElementException;
import java.util.Set;

/** The events of one consumer, which may be slow. A notification that does not fit becomes a Changed. */
final class EventQueue {
  private static final int OVERHEAD = 200; // bytes that an event takes without its texts, about

  private final long limit;
  private final ArrayDeque<Event> events = new ArrayDeque<>();
  private Set<String> changed = new HashSet<>(); // of the Changed that is in the queue
  private long size;
  private RuntimeException end;

  /** limit: bytes. */
  EventQueue(long limit) {
    this.limit = limit;
  }

  private static long sizeOf(Event event) {
    return event instanceof Event.Notification n ? OVERHEAD + 2L * (n.channel().length() + n.payload().length()) : OVERHEAD;
  }

  synchronized void put(Event event) {
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
  synchronized void putChanged(Collection<String> channels) {
    if (changed.isEmpty()) {
      events.add(new Event.Changed(changed));
    }
    changed.addAll(channels);
    notifyAll();
  }

  /** After the events that are in the queue. A NoSuchElementException is the end without an error. */
  synchronized void end(RuntimeException error) {
    end = end == null ? error : end;
    notifyAll();
  }

  /** Wait for an event. Returns false at the end. */
  synchronized boolean hasNext() throws InterruptedException {
    while (events.isEmpty() && end == null) {
      wait();
    }
    return !events.isEmpty() || !(end instanceof NoSuchElementException);
  }

  synchronized Event next() throws InterruptedException {
    if (!hasNext() || events.isEmpty()) {
      throw end;
    }
    Event event = events.remove();
    if (event instanceof Event.Changed) {
      event = new Event.Changed(Set.copyOf(changed));
      changed = new HashSet<>();
    } else {
      size -= sizeOf(event);
    }
    return event;
  }
}
