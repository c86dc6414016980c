package io.sluicegate.client;

import static io.sluicegate.client.ClientTest.connect;
import static io.sluicegate.client.ClientTest.expect;
import static io.sluicegate.client.ClientTest.of;
import static io.sluicegate.client.ClientTest.remaining;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluicegate.client.CheckException.Kind;
import io.sluicegate.client.Processes.Server;
import io.sluicegate.client.v1.RateLimitDescriptor;
import io.sluicegate.client.v1.RateLimitRequest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class PacingTest {
    /** A limit of 100 a second, without bursts, and one that is used up after a hit. */
    private static final String PACED = """
        domain: shop
        descriptors:
          - key: provider
            rate_limit: {algorithm: gcra, unit: second, requests_per_unit: 100, burst: 1}
          - key: user
            rate_limit: {algorithm: gcra, unit: day, requests_per_unit: 1}
        """;
    private static final Check MAIL = of("provider", "mail");
    private static final Check ANN = of("user", "ann");
    private static final Duration MINUTE = Duration.ofMinutes(1);

    private final ExecutorService threads = Executors.newCachedThreadPool();

    @AfterEach
    void stop() {
        threads.shutdownNow();
    }

    private Future<Verdict> acquire(SluicegateClient client, Check check, Duration maxWait) {
        return threads.submit(() -> client.acquire(check, maxWait));
    }

    /** Waits for the failure of a thread. */
    private static Throwable failure(Future<?> future) {
        return assertThrows(ExecutionException.class, future::get).getCause();
    }

    @Test
    void acquire_keeps_to_the_limit() throws Exception {
        try (Server server = Processes.serve(PACED, "--dynamic-metadata");
                SluicegateClient client = connect(server.grpc)) {
            client.health();
            long began = System.nanoTime();
            List<Future<Verdict>> jobs = new ArrayList<>();
            for (int i = 0; i < 30; i++) {
                jobs.add(acquire(client, MAIL, MINUTE));
            }
            for (Future<Verdict> job : jobs) {
                assertTrue(job.get().isAllowed());
            }
            long millis = (System.nanoTime() - began) / 1_000_000;
            System.out.println("30 jobs at 100 a second took " + millis + " ms");
            assertTrue(millis >= 290, millis + " ms");
        }
    }

    @Test
    void one_waiter_of_a_key_asks_in_order() throws Exception {
        AtomicInteger asking = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        AtomicInteger asked = new AtomicInteger();
        List<Integer> order = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch waiting = new CountDownLatch(1);
        try (Scripted service = Scripted.start(request -> {
            await(waiting);
            most.accumulateAndGet(asking.incrementAndGet(), Math::max);
            sleep(1);
            asking.decrementAndGet();
            return asked.incrementAndGet() % 2 == 1 ? Scripted.refusal(5) : Scripted.ALLOWED;
        }); SluicegateClient client = connect(service.address())) {
            List<Future<?>> waiters = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                int number = i;
                waiters.add(threads.submit(() -> {
                    client.acquire(MAIL, MINUTE);
                    return order.add(number);
                }));
                Processes.until("the waiter", () -> client.schedules().waiters() == number + 1);
            }
            waiting.countDown();
            for (Future<?> waiter : waiters) {
                waiter.get();
            }
        }
        assertEquals(order.stream().sorted().toList(), order);
        assertEquals(16, asked.get());
        assertEquals(1, most.get());
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    @Test
    void waiters_of_other_keys_are_independent() throws Exception {
        try (Server server = Processes.serve(PACED); SluicegateClient client = connect(server.grpc)) {
            client.check(ANN);
            Future<Verdict> waiter = acquire(client, ANN, Duration.ofDays(2));
            assertTrue(client.acquire(of("user", "eve"), Duration.ZERO).isAllowed());
            assertFalse(waiter.isDone());
        }
    }

    @Test
    void maximum_wait_ends_the_wait() throws Exception {
        try (Server server = Processes.serve(PACED); SluicegateClient client = connect(server.grpc)) {
            client.acquire(ANN, Duration.ZERO);
            assertThrows(WaitExceededException.class, () -> client.acquire(ANN, Duration.ZERO));
            assertThrows(WaitExceededException.class, () -> client.acquire(ANN, MINUTE));
            // Behind another waiter.
            acquire(client, ANN, Duration.ofSeconds(Long.MAX_VALUE));
            sleep(50);
            assertThrows(WaitExceededException.class, () -> client.acquire(ANN, Duration.ofMillis(10)));
            assertEquals(0, remaining(client, ANN));
        }
    }

    /** Counts what a service is charged. */
    private static long charged(RateLimitRequest request) {
        RateLimitDescriptor descriptor = request.getDescriptors(0);
        if (descriptor.getIsNegativeHits()) {
            return -descriptor.getHitsAddend().getValue();
        }
        return Math.max(1, request.getHitsAddend());
    }

    @Test
    void waiter_that_gives_up_during_its_check_is_refunded() throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        CountDownLatch answer = new CountDownLatch(1);
        AtomicLong charged = new AtomicLong();
        try (Scripted service = Scripted.start(request -> {
            if (asked.getCount() > 0) {
                asked.countDown();
                await(answer);
            }
            charged.addAndGet(charged(request));
            return Scripted.ALLOWED;
        }); SluicegateClient client = connect(service.address())) {
            Thread waiter = new Thread(() ->
                assertThrows(InterruptedException.class, () -> client.acquire(MAIL.withHits(3), MINUTE)));
            waiter.start();
            asked.await();
            waiter.interrupt();
            // It does not wait for the answer.
            waiter.join();
            Future<Verdict> next = acquire(client, MAIL, MINUTE);
            answer.countDown();
            assertTrue(next.get().isAllowed());
            assertEquals(1, charged.get());
        }
    }

    @Test
    void failed_check_ends_the_wait_of_its_caller() {
        try (SluicegateClient client = connect("127.0.0.1:1")) {
            expect(Kind.UNAVAILABLE, () -> {
                try {
                    client.acquire(MAIL, MINUTE);
                } catch (InterruptedException interrupted) {
                    throw new AssertionError(interrupted);
                }
            });
        }
    }

    @Test
    void close_ends_waits() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (Scripted service = Scripted.start(request -> {
            asked.incrementAndGet();
            return Scripted.refusal(3_600_000);
        })) {
            SluicegateClient client = connect(service.address());
            Pacer pacer = Pacer.builder(client, ANN).build();
            List<Future<?>> waiters = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                waiters.add(acquire(client, MAIL, Duration.ofDays(1)));
                waiters.add(threads.submit(() -> pacer.run(() -> null)));
            }
            Processes.until("the first waiters to ask", () -> asked.get() == 2);
            client.close();
            for (Future<?> waiter : waiters) {
                assertInstanceOf(IllegalStateException.class, failure(waiter));
            }
            assertThrows(IllegalStateException.class, () -> client.acquire(MAIL, Duration.ZERO));
        }
    }

    @Test
    void refusal_without_a_time_is_asked_again_later() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (Scripted service = Scripted.start(request ->
                asked.incrementAndGet() < 3 ? Scripted.OVERLOAD : Scripted.ALLOWED);
                SluicegateClient client = connect(service.address())) {
            client.acquire(MAIL, MINUTE);
            assertEquals(3, asked.get());
        }
    }

    @Test
    void pacer_keeps_to_the_limit() throws Exception {
        try (Server server = Processes.serve(PACED, "--dynamic-metadata");
                SluicegateClient client = connect(server.grpc);
                Pacer pacer = Pacer.builder(client, MAIL).build()) {
            client.health();
            long began = System.nanoTime();
            List<Future<Boolean>> jobs = new ArrayList<>();
            for (int i = 0; i < 30; i++) {
                jobs.add(threads.submit(() -> pacer.run(() -> true)));
            }
            for (Future<Boolean> job : jobs) {
                job.get();
            }
            long millis = (System.nanoTime() - began) / 1_000_000;
            assertTrue(millis >= 290, millis + " ms");
        }
    }

    @Test
    void pacer_shares_by_weight() throws Exception {
        CountDownLatch waiting = new CountDownLatch(1);
        try (Scripted service = Scripted.start(request -> {
            await(waiting);
            // So that the job is noted before the next one starts.
            sleep(2);
            return Scripted.ALLOWED;
        }); SluicegateClient client = connect(service.address());
                Pacer pacer = Pacer.builder(client, MAIL).weights(3, 1).build()) {
            List<Integer> started = Collections.synchronizedList(new ArrayList<>());
            List<Future<Boolean>> jobs = new ArrayList<>();
            for (int i = 0; i < 30; i++) {
                for (int priority : List.of(0, 1)) {
                    jobs.add(threads.submit(() -> pacer.run(priority, () -> started.add(priority))));
                }
            }
            Processes.until("all jobs to wait", () -> client.schedules().waiters() == 60);
            waiting.countDown();
            for (Future<Boolean> job : jobs) {
                job.get();
            }
            int low = started.subList(0, 40).stream().mapToInt(Integer::intValue).sum();
            assertTrue(low >= 9 && low <= 11, "the low priority has " + low + " of 40: " + started);
        }
    }

    @Test
    void pacer_reports_failures_of_jobs_and_arguments() throws Exception {
        try (Server server = Processes.serve(PACED); SluicegateClient client = connect(server.grpc);
                Pacer pacer = Pacer.builder(client, MAIL).build()) {
            Callable<Void> failing = () -> {
                throw new UnsupportedOperationException();
            };
            assertThrows(UnsupportedOperationException.class, () -> pacer.run(failing));
            assertThrows(IllegalArgumentException.class, () -> pacer.run(1, failing));
            assertThrows(IllegalArgumentException.class, () -> Pacer.builder(client, MAIL).weights(1, 0).build());
            assertThrows(IllegalArgumentException.class, () -> Pacer.builder(client, MAIL).weights());
        }
    }

    @Test
    void canceled_jobs_do_not_run_and_charge_nothing() throws Exception {
        AtomicLong charged = new AtomicLong();
        AtomicInteger ran = new AtomicInteger();
        try (Scripted service = Scripted.start(request -> {
            charged.addAndGet(charged(request));
            return Scripted.ALLOWED;
        }); SluicegateClient client = connect(service.address()); Pacer pacer = Pacer.builder(client, MAIL).build()) {
            List<Future<?>> jobs = new ArrayList<>();
            for (int i = 0; i < 100; i++) {
                jobs.add(threads.submit(() -> pacer.run(ran::incrementAndGet)));
            }
            for (Future<?> job : jobs) {
                sleep(1);
                job.cancel(true);
            }
            System.out.println(ran.get() + " of 100 jobs ran");
            pacer.run(ran::incrementAndGet);
            Processes.until("the refunds", () -> charged.get() == ran.get());
        }
    }

    @Test
    void pacer_waits_while_the_service_does_not_answer() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        AtomicInteger reported = new AtomicInteger();
        try (Scripted service = Scripted.start(request -> switch (asked.incrementAndGet()) {
            case 1, 2 -> throw io.grpc.Status.UNAVAILABLE.asRuntimeException();
            case 4 -> throw io.grpc.Status.INVALID_ARGUMENT.asRuntimeException();
            default -> Scripted.ALLOWED;
        }); SluicegateClient client = connect(service.address());
                Pacer pacer = Pacer.builder(client, MAIL).onError(failure -> reported.incrementAndGet()).build()) {
            assertEquals("ran", pacer.run(() -> "ran"));
            assertEquals(2, reported.get());
            // Waiting would not help.
            CheckException failure = assertThrows(CheckException.class, () -> pacer.run(() -> null));
            assertEquals(io.grpc.Status.Code.INVALID_ARGUMENT, failure.code());
            pacer.close();
            assertThrows(IllegalStateException.class, () -> pacer.run(() -> null));
        }
    }
}
