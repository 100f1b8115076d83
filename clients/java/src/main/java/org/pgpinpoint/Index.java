package org.pgpinpoint;

import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import org.pgpinpoint.Events.Subscriber;

/**
 * Who listens on which channel. A change costs what it changes, and a notification costs those who listen on its
 * channel. Called with the lock of the client held.
 */
final class Index {
  /** The subscribers of a channel: those who were told that it is heard get its notifications. */
  private record Channel(Set<Subscriber> told, Set<Subscriber> untold) {}

  private static final Channel NOBODY = new Channel(Set.of(), Set.of());

  private final Map<String, Channel> channels = new HashMap<>();
  // Channels that have a subscriber that was not told. It has had many: to go through a HashSet would cost that.
  private final Set<String> untold = new LinkedHashSet<>();
  private Set<String> pending = new HashSet<>(); // channels that got their first subscriber or lost their last one

  /**
   * A subscriber is told at once if another one of the channel was told, and the client is connected. The other one has
   * kept the channel here since then, and each connection listens on all that is here before the client is connected:
   * so the channel is heard. If nobody was told yet, tellChanged() tells all of them when it is heard.
   */
  void add(Subscriber subscriber, Collection<String> names, boolean connected) {
    Set<String> heard = new HashSet<>();
    for (String name : names) {
      if (subscriber.channels.add(name)) {
        Channel channel = channels.computeIfAbsent(name, n -> {
          pending.add(n);
          return new Channel(new LinkedHashSet<>(), new LinkedHashSet<>());
        });
        boolean isHeard = connected && !channel.told.isEmpty();
        (isHeard ? channel.told : channel.untold).add(subscriber);
        (isHeard ? heard : untold).add(name);
      }
    }
    if (!heard.isEmpty()) {
      subscriber.put(new Event.Changed(heard));
    }
  }

  void remove(Subscriber subscriber, Collection<String> names) {
    for (String name : names) {
      if (subscriber.channels.remove(name)) {
        Channel channel = channels.get(name);
        channel.told.remove(subscriber);
        channel.untold.remove(subscriber);
        if (channel.untold.isEmpty()) {
          untold.remove(name);
        }
        if (channel.told.isEmpty() && channel.untold.isEmpty()) {
          channels.remove(name);
          pending.add(name);
        }
      }
    }
  }

  Set<String> names() {
    return channels.keySet();
  }

  /** A new connection listens on nothing. */
  void allPending() {
    pending = new HashSet<>(channels.keySet());
  }

  boolean hasPending() {
    return !pending.isEmpty();
  }

  /** The channels whose first subscriber came, or whose last one went, since the last call. */
  Set<String> takePending() {
    Set<String> taken = pending;
    pending = new HashSet<>();
    return taken;
  }

  /** Was somebody not told that his channel is heard? */
  boolean hasUntold() {
    return !untold.isEmpty();
  }

  boolean isHeard(Subscriber subscriber) {
    return subscriber.channels.stream().allMatch(name -> channels.get(name).told.contains(subscriber));
  }

  /** Tell subscribers of changed channels, which are heard, and all whose channels are heard from now on. */
  void tellChanged(Predicate<String> heard, Collection<String> changed) {
    Map<Subscriber, Set<String>> news = new LinkedHashMap<>();
    for (String name : changed) {
      for (Subscriber subscriber : channels.getOrDefault(name, NOBODY).told) {
        news.computeIfAbsent(subscriber, key -> new HashSet<>()).add(name);
      }
    }
    for (String name : untold) {
      if (heard.test(name)) {
        Channel channel = channels.get(name);
        for (Subscriber subscriber : channel.untold) {
          news.computeIfAbsent(subscriber, key -> new HashSet<>()).add(name);
        }
        channel.told.addAll(channel.untold);
        channel.untold.clear();
      }
    }
    untold.removeIf(heard);
    news.forEach((subscriber, names) -> subscriber.put(new Event.Changed(names)));
  }

  void tell(Event.Notification notification) {
    channels.getOrDefault(notification.channel(), NOBODY).told.forEach(subscriber -> subscriber.put(notification));
  }
}
