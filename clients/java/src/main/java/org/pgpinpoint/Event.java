package org.pgpinpoint;

import java.util.Set;

/** An event of a subscription. */
public sealed interface Event {
  /** How a client receives notifications: with LISTEN, or with pinpoint.wait(). */
  enum Mode { PUSH, WAIT }

  /** The connection works, and listens on all channels. serverVersion: for instance 150018. */
  record Connected(int serverVersion, boolean standby, Mode mode) implements Event {}

  /** These channels may have been notified while the client did not listen: read your tables. */
  record Changed(Set<String> channels) implements Event {}

  /** A notification. pid: the process ID of the session that sent it. */
  record Notification(String channel, String payload, int pid) implements Event {}

  /** The connection was lost, or could not be made. The next attempt is in retryIn seconds. */
  record Disconnected(String reason, double retryIn) implements Event {}
}
