package org.pgpinpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.pgpinpoint.Events.Subscriber;

/** Exceptions in each loop, and a server that gives odd answers. */
class FaultsTest {
  private static final Duration DEADLINE = Duration.ofSeconds(60);
  private static final Path FAKE_SERVER = Path.of("..", "conformance", "fake_server.py");
  private static final RuntimeException PLANTED = new IllegalStateException("planted");

  private Process fake;

  @AfterEach
  void stop() {
    if (fake != null) {
      fake.destroy();
    }
  }

  private ClientBuilder builder(String script) throws IOException {
    assumeTrue(Files.exists(FAKE_SERVER), "only in a checkout");
    fake = new ProcessBuilder("python3", FAKE_SERVER.toString(), script).redirectError(ProcessBuilder.Redirect.INHERIT)
        .start();
    BufferedReader port = fake.inputReader();
    return Client.builder("postgresql://me:secret@127.0.0.1:" + port.readLine() + "/shop?sslmode=disable")
        .timeout(Duration.ofSeconds(1)).minBackoff(Duration.ofMillis(1)).maxBackoff(Duration.ofMillis(1));
  }

  @ParameterizedTest
  @ValueSource(strings = {"no_code", "short_code", "cut", "unknown_messages", "slow"})
  void oddAnswersAreToldAndTriedAgain(String script) throws Exception {
    try (Client client = builder(script).build(); Subscription subscription = client.subscribe("a")) {
      for (int attempt = 0; attempt < (script.equals("slow") ? 2 : 5); attempt++) {
        Event event = subscription.next(DEADLINE).orElseThrow();
        assertTrue(event instanceof Event.Disconnected d && !d.reason().isBlank(), event.toString());
        assertFalse(event.toString().contains("secret"), event.toString());
      }
      assertEquals(0, client.stats().reconnects()); // no connection has worked
    }
  }

  @Test
  void authenticationThatTheDriverLacksEndsIt() throws Exception {
    try (Client client = builder("authentication_methods").build(); Subscription subscription = client.subscribe("a")) {
      assertThrows(PinpointException.class, () -> {
        while (true) {
          subscription.next(DEADLINE).orElseThrow();
        }
      });
    }
  }

  @Test
  void tooManyAttemptsEndIt() throws Exception {
    try (Client client = builder("no_code").maxAttempts(2).build(); Subscription subscription = client.subscribe("a")) {
      subscription.next(DEADLINE).orElseThrow();
      subscription.next(DEADLINE).orElseThrow();
      PinpointException error = assertThrows(PinpointException.class, () -> subscription.next(DEADLINE));
      assertTrue(error.getMessage().contains("no such upstream"), error.getMessage());
    }
  }

  private static void endsWithThePlanted(Events<?> events) {
    PinpointException error = assertThrows(PinpointException.class, () -> {
      while (true) {
        events.next(DEADLINE).orElseThrow();
      }
    });
    assertSame(PLANTED, error.getCause());
  }

  /** The loop of the listener. */
  @Test
  void anExceptionInTheListenerIsAFinalError() {
    try (Client client = Client.of("postgresql://localhost:1")) {
      synchronized (client) {
        client.subscribers.add(new Subscriber() {
          @Override
          void put(Event event) {
            throw PLANTED;
          }

          @Override
          void end(RuntimeException error) {}
        });
      }
      endsWithThePlanted(client.subscribe("a"));
      assertThrows(PinpointException.class, () -> client.live("SELECT 1"));
    }
  }

  /** It need not wait for the next attempt. */
  @Test
  void whoComesDuringAnOutageIsToldAtOnce() throws Exception {
    Duration hour = Duration.ofHours(1);
    try (Client client = Client.builder("postgresql://localhost:1").minBackoff(hour).maxBackoff(hour).build()) {
      Duration limit = Duration.ofSeconds(20);
      for (Object event : List.of(client.subscribe("a").next(limit).get(), client.subscribe("b").next(limit).get(),
          client.live("SELECT 1").next(limit).get())) {
        assertTrue(event instanceof Event.Disconnected lost && lost.retryIn().compareTo(hour) <= 0, event.toString());
      }
    }
  }

  /** The loop of the live queries. */
  @Test
  void anExceptionInAWorkerIsAFinalError() {
    try (Client client = Client.of("postgresql://localhost:1")) {
      Subscription subscription = client.subscribe("a");
      client.executions.execute(() -> {
        throw PLANTED;
      });
      endsWithThePlanted(subscription);
    }
  }

  /** A task that begins later. */
  @Test
  void anExceptionInATimerIsAFinalError() {
    try (Client client = Client.of("postgresql://localhost:1")) {
      Subscription subscription = client.subscribe("a");
      Runnable task = () -> {
        throw PLANTED;
      };
      client.tasks.schedule(task, 1, TimeUnit.MILLISECONDS);
      endsWithThePlanted(subscription);
    }
  }

  @Test
  void noThreadIsAFinalError() {
    ClientBuilder builder = Client.builder("postgresql://localhost:1").threadFactory(task -> {
      throw PLANTED;
    });
    try (Client client = builder.build()) {
      PinpointException error = assertThrows(PinpointException.class, () -> client.subscribe("a"));
      assertEquals("the client has failed: planted", error.getMessage());
    }
  }

  /** Also while the driver waits for the server. */
  @Test
  void closeEndsAllThreads() throws Exception {
    Client client = builder("slow").timeout(Duration.ofSeconds(20)).build();
    assertTrue(client.subscribe("a").next(Duration.ofMillis(100)).isEmpty()); // it connects
    client.close();
    assertTrue(client.tasks.isTerminated() && client.executions.isTerminated());
  }
}
