package io.sluicegate.client;

import static io.sluicegate.client.ClientTest.LIMITS;
import static io.sluicegate.client.ClientTest.connect;
import static io.sluicegate.client.ClientTest.of;
import static io.sluicegate.client.ClientTest.remaining;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluicegate.client.CheckException.Kind;
import io.sluicegate.client.Processes.Server;
import io.sluicegate.client.Processes.Shedding;
import jakarta.servlet.http.HttpServletRequest;
import java.io.OutputStream;
import java.net.Socket;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;
import org.junit.jupiter.api.Test;

class FilterTest {
    /** Limits requests by the header User; requests with an empty one are not limited. */
    private static List<Descriptor> user(HttpServletRequest request) {
        String user = RequestValues.header(request, "User");
        return user.isEmpty() ? List.of() : List.of(Descriptor.of("user", user));
    }

    private static List<Descriptor> overridden(HttpServletRequest request) {
        return List.of(Descriptor.of("user", "eve").withOverride(LimitOverride.of(5, Duration.ofMinutes(1))));
    }

    private static RateLimitFilter.Builder filter(SluicegateClient client) {
        return RateLimitFilter.builder(client).domain("shop").descriptors(FilterTest::user);
    }

    @Test
    void refuses_with_retry_after_and_headers() throws Exception {
        try (Server server = Processes.serve(LIMITS, "--response-headers", "x-ratelimit-draft-03");
                SluicegateClient client = connect(server.grpc); Site site = new Site(filter(client).build())) {
            for (int i = 0; i < 5; i++) {
                HttpResponse<String> response = site.get("ann");
                assertEquals(200, response.statusCode());
                assertTrue(response.headers().firstValue("x-ratelimit-limit").isPresent());
            }
            HttpResponse<String> refusal = site.get("ann");
            assertEquals(429, refusal.statusCode());
            assertEquals(1, refusal.headers().allValues("retry-after").size());
            assertEquals("0", refusal.headers().firstValue("x-ratelimit-remaining").orElseThrow());
            assertEquals(200, site.get("eve").statusCode());
            assertEquals(200, site.get("").statusCode());
            assertEquals(7, site.handled.get());
        }
    }

    @Test
    void options() throws Exception {
        try (Server server = Processes.serve(LIMITS); SluicegateClient client = connect(server.grpc);
                Site site = new Site(filter(client)
                    .hits(request -> Hits.charge(5))
                    .timeout(Duration.ofSeconds(20))
                    .skip(request -> request.getRequestURI().equals("/healthz"))
                    .onLimited((request, response, verdict) -> response.sendError(418))
                    .build())) {
            assertEquals(200, site.get("ann").statusCode());
            HttpResponse<String> refusal = site.get("ann");
            assertEquals(418, refusal.statusCode());
            assertTrue(refusal.headers().firstValue("retry-after").isPresent());
            HttpRequest.Builder skipped = HttpRequest.newBuilder(site.url("/healthz")).header("User", "ann");
            assertEquals(200, Site.send(skipped).statusCode());
            assertThrows(NullPointerException.class, () -> RateLimitFilter.builder(client).domain("shop").build());
            assertThrows(NullPointerException.class,
                () -> RateLimitFilter.builder(client).descriptors(FilterTest::user).build());
        }
    }

    @Test
    void failure_mode_decides_without_an_answer() throws Exception {
        try (Server server = Processes.serve(LIMITS); SluicegateClient known = connect(server.grpc);
                SluicegateClient unreachable = connect("127.0.0.1:1"); Site site = new Site(null)) {
            record Failure(SluicegateClient client, Function<HttpServletRequest, List<Descriptor>> descriptors,
                Kind kind) {
            }

            for (Failure failure : List.of(
                new Failure(unreachable, FilterTest::user, Kind.UNAVAILABLE),
                new Failure(known, FilterTest::overridden, Kind.OVERRIDE_NOT_APPLIED))) {
                for (FailureMode mode : FailureMode.values()) {
                    AtomicReference<Kind> reported = new AtomicReference<>();
                    site.filterBy(RateLimitFilter.builder(failure.client)
                        .domain("unknown")
                        .descriptors(failure.descriptors)
                        .failureMode(mode)
                        .onError((request, exception) -> reported.set(exception.kind()))
                        .build());
                    assertEquals(mode == FailureMode.OPEN ? 200 : 503, site.get("ann").statusCode());
                    assertEquals(failure.kind, reported.get());
                }
            }
        }
    }

    @Test
    void shed_request_is_refused_with_failure_mode_open() throws Exception {
        try (Shedding shedding = Shedding.start(LIMITS); SluicegateClient client = connect(shedding.server().grpc);
                Site site = new Site(filter(client).build())) {
            assertEquals(429, site.get("ann").statusCode());
            site.filterBy(filter(client).descriptors(FilterTest::overridden).build());
            assertEquals(429, site.get("ann").statusCode());
            assertEquals(0, site.handled.get());
        }
    }

    /** A client that disconnects during the check must not pass by the failure mode. */
    @Test
    void request_of_a_disconnected_client_is_checked() throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        CountDownLatch answer = new CountDownLatch(1);
        CountDownLatch limited = new CountDownLatch(1);
        try (Scripted service = Scripted.start(request -> {
            asked.countDown();
            await(answer);
            return Scripted.OVERLOAD;
        }); SluicegateClient client = connect(service.address()); Site site = new Site(filter(client)
            .onLimited((request, response, verdict) -> limited.countDown()).build())) {
            try (Socket socket = new Socket("127.0.0.1", site.url("/").getPort())) {
                OutputStream output = socket.getOutputStream();
                output.write("GET / HTTP/1.1\r\nHost: x\r\nUser: ann\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
                await(asked);
            }
            answer.countDown();
            await(limited);
            assertEquals(0, site.handled.get());
        }
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException interrupted) {
            throw new AssertionError(interrupted);
        }
    }

    @Test
    void body_is_read_for_its_field_and_by_the_servlet() throws Exception {
        try (Server server = Processes.serve(LIMITS); SluicegateClient client = connect(server.grpc);
                Site site = new Site(filter(client)
                    .descriptors(r -> List.of(Descriptor.of("user", RequestValues.bodyField(r, "email"))))
                    .build())) {
            for (String body : List.of("{\"email\": \"ann@example.com\"}", "x".repeat(100 << 10))) {
                HttpRequest.Builder post = HttpRequest.newBuilder(site.url("/")).POST(BodyPublishers.ofString(body));
                assertEquals(body, Site.send(post).body());
            }
            assertEquals(4, remaining(client, of("user", "ann@example.com")));
            assertEquals(4, remaining(client, of("user", "")));
            // The body of a form is left to the container.
            HttpRequest.Builder form = HttpRequest.newBuilder(site.url("/")).POST(BodyPublishers.ofString("a=b"))
                .header("Content-Type", "application/x-www-form-urlencoded");
            assertEquals("a=b", Site.send(form).body());
            assertEquals(3, remaining(client, of("user", "")));
        }
    }
}
