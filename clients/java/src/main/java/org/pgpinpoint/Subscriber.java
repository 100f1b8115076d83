package org.pgpinpoint;

import java.util.Collection;
import java.util.Set;

/** A subscription or a live query, as the listener sees it. Called with the lock of the client. */
interface Subscriber {
  Set<String> channels();

  /** Of which the consumer has been told. */
  Set<String> heard();

  void put(Event event);

  void putChanged(Collection<String> channels);

  void end(RuntimeException error);
}
