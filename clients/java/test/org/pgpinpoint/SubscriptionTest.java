package org.pgpinpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** The queue of a consumer, and how it ends. */
class SubscriptionTest {
  private static final Duration AT_ONCE = Duration.ZERO;

  // Nothing listens there.
  private final Client client = Client.builder("postgresql://localhost:1").buffer(1000).build();
  private final Subscription subscription = client.subscribe("a");

  private void put(Event event) {
    subscription.subscriber.put(event);
  }

  /** What the client itself has told. */
  private Event nextNotDisconnected() throws InterruptedException {
    while (true) {
      Optional<Event> event = subscription.next(AT_ONCE);
      if (event.isEmpty() || !(event.get() instanceof Event.Disconnected)) {
        return event.orElse(null);
      }
    }
  }

  @Test
  void whatDoesNotFitBecomesAChanged() throws InterruptedException {
    client.close();
    Subscription full = new Subscription(client);
    Event.Notification large = new Event.Notification("a", "x".repeat(350), 1);
    full.subscriber.put(large);
    full.subscriber.put(new Event.Notification("b", "x".repeat(350), 1));
    full.subscriber.put(new Event.Notification("c", "x".repeat(350), 1));
    assertEquals(large, full.next());
    assertEquals(new Event.Changed(Set.of("b", "c")), full.next());
    assertEquals(Optional.empty(), full.next(AT_ONCE));
    assertTrue(client.stats().eventsDropped() >= 2);
    full.subscriber.put(large); // there is place again
    assertEquals(large, full.next());
  }

  @Test
  void closeEndsItWithoutAnError() throws InterruptedException {
    Event.Notification notification = new Event.Notification("a", "", 1);
    put(notification);
    subscription.close();
    assertEquals(notification, nextNotDisconnected()); // what was there before
    assertFalse(subscription.iterator().hasNext());
    assertThrows(NoSuchElementException.class, subscription::next);
    subscription.add("b");
    assertFalse(client.index.names().contains("b"));
    client.close();
  }

  @Test
  void closeOfTheClientIsAFinalError() {
    client.close();
    assertThrows(ClientClosedException.class, subscription.iterator()::hasNext);
    PinpointException error = assertThrows(ClientClosedException.class, () -> subscription.forEach(event -> { }));
    assertEquals("the client is closed", error.getMessage());
    assertThrows(ClientClosedException.class, () -> client.subscribe("a"));
    assertThrows(ClientClosedException.class, () -> client.live("SELECT 1"));
    assertThrows(NullPointerException.class, () -> client.live(null));
  }

  @Test
  void anInterruptEndsTheWait() {
    Subscription other = new Subscription(client);
    Thread.currentThread().interrupt();
    assertThrows(PinpointException.class, other::next);
    assertTrue(Thread.interrupted());
    Thread.currentThread().interrupt();
    assertThrows(InterruptedException.class, () -> other.next(Duration.ofDays(1)));
    client.close();
  }

  @Test
  void namesAreChecked() {
    for (String name : new String[] {"", "x".repeat(64), "\u8a9e".repeat(22), "a\0", Listener.HEARTBEAT}) {
      assertThrows(IllegalArgumentException.class, () -> client.subscribe(name));
      assertThrows(IllegalArgumentException.class, () -> subscription.add(name));
    }
    client.subscribe("a", "a").close();
    client.close();
  }
}
