package org.pgpinpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.pgpinpoint.Events.Subscriber;

/** Who listens on which channel, and what that costs. */
class IndexTest {
  /** Keeps what it is told. */
  private static final class Told extends Subscriber {
    private final List<Object> events = new ArrayList<>();

    @Override
    void put(Event event) {
      events.add(event instanceof Event.Changed changed ? changed.channels() : event);
    }

    @Override
    void end(RuntimeException error) {}
  }

  private static final Event.Notification NOTIFICATION = new Event.Notification("a", "", 1);

  private final Index index = new Index();
  private final Told one = new Told();
  private final Told other = new Told();

  @Test
  void eachBeginsWithAChangedAndThenGetsNotifications() {
    index.add(one, List.of("a", "b"), true);
    assertEquals(Set.of("a", "b"), index.takePending());
    index.tell(NOTIFICATION); // not yet
    index.tellChanged("a"::equals, Set.of());
    assertFalse(index.isHeard(one));
    index.add(other, List.of("a"), true);
    assertEquals(Set.of(), index.takePending());
    index.tell(NOTIFICATION);
    index.tellChanged(name -> true, Set.of());
    assertTrue(index.isHeard(one));
    index.tellChanged(name -> true, Set.of("a", "never"));
    assertEquals(List.of(Set.of("a"), NOTIFICATION, Set.of("b"), Set.of("a")), one.events);
    assertEquals(List.of(Set.of("a"), NOTIFICATION, Set.of("a")), other.events); // told at once
    assertFalse(index.hasPending() || index.hasUntold());
  }

  @Test
  void withoutAConnectionNothingIsHeard() {
    index.add(one, List.of("a"), true);
    index.tellChanged(name -> true, Set.of());
    index.add(other, List.of("a"), false);
    assertEquals(List.of(), other.events);
    assertTrue(index.hasUntold());
  }

  @Test
  void whoComesBetweenIsTold() {
    Told third = new Told();
    index.add(one, List.of("a"), true);
    index.add(other, List.of("a"), true); // before the first one is told
    index.tellChanged(name -> true, Set.of());
    assertEquals(List.of(Set.of("a")), other.events);
    index.add(third, List.of("a"), false); // before the next connection is made
    index.remove(one, List.of("a"));
    index.remove(other, List.of("a"));
    index.add(one, List.of("a"), true); // nobody is left who was told
    assertEquals(List.of(List.of(Set.of("a")), List.of()), List.of(one.events, third.events));
    index.tellChanged(name -> true, Set.of());
    assertEquals(List.of(List.of(Set.of("a"), Set.of("a")), List.of(Set.of("a"))), List.of(one.events, third.events));
  }

  @Test
  void onlyTheLastOneEndsAChannel() {
    index.add(one, List.of("a"), true);
    index.add(one, List.of("a"), true);
    index.add(other, List.of("a"), true);
    index.takePending();
    index.remove(one, List.of("a", "never"));
    index.tellChanged(name -> true, Set.of());
    index.tell(NOTIFICATION);
    assertEquals(List.of(), one.events);
    assertEquals(List.of(Set.of("a"), NOTIFICATION), other.events);
    assertFalse(index.hasPending() || index.hasUntold());
    index.remove(other, List.of("a"));
    assertEquals(Set.of("a"), index.takePending());
    assertEquals(Set.of(), index.names());
  }

  @Test
  void whatIsAddedAndRemovedAtOnceIsNotTold() {
    index.add(one, List.of("a"), true);
    index.remove(one, List.of("a"));
    index.tellChanged(name -> true, Set.of());
    assertEquals(List.of(), one.events);
    assertFalse(index.hasUntold());
  }

  /** The time of adding, hearing and removing a subscriber, and of a notification, in nanoseconds. */
  private static long cost(int subscriptions, int channels) {
    Index index = new Index();
    for (int i = 0; i < subscriptions; i++) {
      int number = i;
      index.add(new Told(), IntStream.range(0, channels).mapToObj(n -> number + " " + n).toList(), true);
    }
    index.takePending();
    index.tellChanged(name -> true, Set.of());
    long least = Long.MAX_VALUE; // the others were disturbed
    for (int round = 0; round < 20; round++) {
      long start = System.nanoTime();
      for (int i = 0; i < 200; i++) {
        Told told = new Told();
        index.add(told, List.of("a"), true);
        index.takePending();
        index.tellChanged("a"::equals, Set.of());
        index.tell(NOTIFICATION);
        index.remove(told, List.of("a"));
        index.takePending();
      }
      least = Math.min(least, System.nanoTime() - start);
    }
    return least / 200;
  }

  @Test
  void othersCostNothing() {
    cost(10, 1); // so that it is compiled
    long few = cost(10, 1);
    long subscriptions = cost(5000, 1);
    long channels = cost(1, 40000);
    System.out.println("nanoseconds for one beside 10, 5000 subscriptions, 40000 channels: " + few + ", " + subscriptions
        + ", " + channels);
    assertTrue(Math.max(subscriptions, channels) < 10 * few + 10_000, few + " " + subscriptions + " " + channels);
  }
}
