package org.pgpinpoint;

import java.time.Duration;
import java.util.Set;

/** An event of a subscription. */
public sealed interface Event {
  /** How a client receives notifications: with LISTEN, or with pinpoint.wait(). AUTO is only an option. */
  enum Mode { AUTO, PUSH, WAIT }

  /** The connection works, and listens on all channels. serverVersion: for instance 150018. mode: PUSH or WAIT. */
  record Connected(int serverVersion, boolean standby, Mode mode) implements Event {}

  /** These channels may have been notified while the client did not listen: read your tables. */
  record Changed(Set<String> channels) implements Event {}

  /** A notification. pid: the process ID of the session that sent it. */
  record Notification(String channel, String payload, int pid) implements Event {}

  /** The connection was lost, or could not be made. retryIn: until the next attempt. */
  record Disconnected(String reason, Duration retryIn) implements Event, Result {}
}
