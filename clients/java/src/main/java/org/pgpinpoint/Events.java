package org.pgpinpoint;

import java.util.Iterator;
import java.util.NoSuchElementException;

/** What a consumer waits for. The iterator blocks. The lock of this object protects the fields. */
abstract class Events<T> implements Iterator<T> {
  private RuntimeException end;

  abstract boolean isEmpty();

  /** The next item. */
  abstract T take();

  /** After the items that are there. A NoSuchElementException is the end without an error. */
  synchronized void end(RuntimeException error) {
    end = end == null ? error : end;
    notifyAll();
  }

  /** Wait for an item. Returns false after close(), and true before a final error, which next() throws. */
  @Override
  public synchronized boolean hasNext() {
    while (isEmpty() && end == null) {
      try {
        wait();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        throw new PinpointException("interrupted", null);
      }
    }
    return !isEmpty() || !(end instanceof NoSuchElementException);
  }

  /**
   * Wait for the next item.
   *
   * @throws PinpointException if the live query cannot go on, the client is closed, or the thread is interrupted
   * @throws NoSuchElementException after close()
   */
  @Override
  public synchronized T next() {
    if (!hasNext() || isEmpty()) {
      throw end;
    }
    return take();
  }
}
