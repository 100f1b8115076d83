package org.pgpinpoint;

import java.time.Duration;

/**
 * Counters of a client.
 *
 * @param eventsGiven to all consumers
 * @param eventsDropped which did not fit into the buffer of a consumer
 * @param reconnects connections that worked after the first one
 * @param sinceSignOfLife the time since the server was heard last; since the client was made, if it never was
 */
public record Stats(long eventsGiven, long eventsDropped, long reconnects, Duration sinceSignOfLife) {}
