package io.sluicegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Context;
import io.grpc.health.v1.HealthCheckResponse.ServingStatus;
import io.grpc.protobuf.services.HealthStatusManager;
import io.sluicegate.client.CheckException.Kind;
import io.sluicegate.client.Processes.Server;
import io.sluicegate.client.Processes.Shedding;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ClientTest {
    static final String LIMITS = """
        domain: shop
        descriptors:
          - key: user
            rate_limit: {name: per_user, unit: day, requests_per_unit: 5}
          - key: tier
            value: enterprise
            rate_limit: {unlimited: true}
        """;
    private static final LimitOverride FIVE_A_MINUTE = LimitOverride.of(5, Duration.ofMinutes(1));

    /** Returns a client with the timeout of a slow machine. */
    static SluicegateClient connect(String target) {
        return SluicegateClient.builder(target).timeout(Duration.ofSeconds(30)).build();
    }

    static Check of(String key, String value) {
        return Check.of("shop", Descriptor.of(key, value));
    }

    static long remaining(SluicegateClient client, Check check) {
        return client.check(check.asPeek()).statuses().get(0).remaining();
    }

    static void expect(Kind kind, Runnable call) {
        assertEquals(kind, assertThrows(CheckException.class, call::run).kind());
    }

    @Test
    void checks_charge_peek_and_refund() throws Exception {
        try (Server server = Processes.serve(LIMITS); SluicegateClient client = connect(server.grpc)) {
            Check ann = of("user", "ann");
            Status first = client.check(ann).statuses().get(0);
            assertEquals(4, first.remaining());
            assertEquals(new Limit("per_user", 5, Unit.DAY, 1), first.limit().orElseThrow());
            assertTrue(client.check(ann.withHits(4)).isAllowed());
            Verdict refusal = client.check(ann);
            assertFalse(refusal.isAllowed());
            assertTrue(refusal.retryAfter().orElseThrow().compareTo(Duration.ofDays(1)) <= 0);
            assertEquals(0, remaining(client, ann));
            client.check(ann.asRefund(2));
            assertEquals(2, remaining(client, ann));
            client.check(ann.withHits(2).asRefund());
            assertEquals(4, remaining(client, ann));
            assertTrue(client.check(of("tier", "enterprise")).statuses().get(0).isUnlimited());
        }
    }

    @Test
    void hits_of_a_descriptor_replace_those_of_the_check() throws Exception {
        try (Server server = Processes.serve(LIMITS); SluicegateClient client = connect(server.grpc)) {
            Check both = Check.of("shop",
                Descriptor.of("user", "ann"), Descriptor.of("user", "eve").withHits(Hits.charge(3)));
            client.check(both);
            assertEquals(4, remaining(client, of("user", "ann")));
            assertEquals(2, remaining(client, of("user", "eve")));
            client.check(both.asRefund());
            assertEquals(5, remaining(client, of("user", "ann")));
            assertEquals(5, remaining(client, of("user", "eve")));
        }
    }

    @Test
    void overrides_limit_windows_of_any_length() throws Exception {
        Map<Duration, LimitOverride> windows = Map.of(
            Duration.ofMinutes(15), new LimitOverride(5, Unit.MINUTE, 15),
            Duration.ofSeconds(90), new LimitOverride(5, Unit.SECOND, 90),
            Duration.ofMillis(1500), new LimitOverride(5, Unit.SECOND, 2),
            Duration.ofHours(24), new LimitOverride(5, Unit.DAY, 1));
        try (Server server = Processes.serve("domain: empty"); SluicegateClient client = connect(server.grpc)) {
            windows.forEach((window, expected) -> {
                LimitOverride override = LimitOverride.of(5, window);
                assertEquals(expected, override);
                Check login = Check.of("empty", Descriptor.of("login", window.toString()).withOverride(override));
                int allowed = 0;
                for (int i = 0; i < 7; i++) {
                    allowed += client.check(login).isAllowed() ? 1 : 0;
                }
                // An aligned window may end in between.
                assertTrue(allowed >= 5, window + ": " + allowed);
                assertEquals(expected.unitMultiplier(),
                    client.check(login).statuses().get(0).limit().orElseThrow().unitMultiplier());
            });
        }
    }

    @Test
    void override_in_an_unknown_domain_is_an_error() throws Exception {
        try (Server server = Processes.serve(LIMITS); SluicegateClient client = connect(server.grpc)) {
            Check unknown = Check.of("unknown", Descriptor.of("login", "ann").withOverride(FIVE_A_MINUTE));
            expect(Kind.OVERRIDE_NOT_APPLIED, () -> client.check(unknown));
            CompletionException failure =
                assertThrows(CompletionException.class, () -> client.checkAsync(unknown).join());
            assertEquals(Kind.OVERRIDE_NOT_APPLIED, ((CheckException) failure.getCause()).kind());
        }
    }

    /** A value that cannot be sent must not let its caller pass. */
    @Test
    void values_with_lone_surrogates_are_limited() throws Exception {
        try (Server server = Processes.serve(LIMITS); SluicegateClient client = connect(server.grpc)) {
            client.check(of("user", "\ud800 😀").withHits(5));
            assertFalse(client.check(of("user", "\ud800 😀")).isAllowed());
            assertEquals(0, remaining(client, of("user", "\ufffd 😀")));
        }
    }

    @Test
    void shed_request_is_refused() throws Exception {
        try (Shedding shedding = Shedding.start(LIMITS); SluicegateClient client = connect(shedding.server().grpc)) {
            for (Descriptor descriptor : List.of(
                Descriptor.of("user", "ann"), Descriptor.of("user", "eve").withOverride(FIVE_A_MINUTE))) {
                Verdict verdict = client.check(Check.of("shop", descriptor));
                assertFalse(verdict.isAllowed());
                assertTrue(verdict.retryAfter().isEmpty());
            }
        }
    }

    @Test
    void health_of_a_server_and_of_none() throws Exception {
        try (Server server = Processes.serve(LIMITS); SluicegateClient client = connect(server.grpc)) {
            client.health();
        }
        try (SluicegateClient client = connect("127.0.0.1:1")) {
            expect(Kind.UNAVAILABLE, client::health);
        }
        HealthStatusManager drained = new HealthStatusManager();
        drained.setStatus(HealthStatusManager.SERVICE_NAME_ALL_SERVICES, ServingStatus.NOT_SERVING);
        try (Scripted service = Scripted.start(drained.getHealthService());
                SluicegateClient client = connect(service.address())) {
            expect(Kind.NOT_SERVING, client::health);
        }
    }

    @Test
    void failures_have_kinds() throws Exception {
        CountDownLatch silence = new CountDownLatch(1);
        Check ann = of("user", "ann");
        try (Scripted silent = Scripted.start(request -> wait(silence));
                SluicegateClient client = connect(silent.address())) {
            expect(Kind.DEADLINE_EXCEEDED, () -> client.check(ann, Duration.ofMillis(20)));
            Thread.currentThread().interrupt();
            expect(Kind.INTERRUPTED, () -> client.check(ann));
            assertTrue(Thread.interrupted());
            silence.countDown();
        }
        for (io.grpc.Status status : List.of(io.grpc.Status.UNAVAILABLE, io.grpc.Status.PERMISSION_DENIED)) {
            try (Scripted failing = Scripted.start(request -> {
                throw status.asRuntimeException();
            }); SluicegateClient client = connect(failing.address())) {
                CheckException failure = assertThrows(CheckException.class, () -> client.check(ann));
                assertEquals(status.getCode(), failure.code());
                assertEquals(status == io.grpc.Status.UNAVAILABLE ? Kind.UNAVAILABLE : Kind.OTHER, failure.kind());
            }
        }
    }

    private static io.sluicegate.client.v1.RateLimitResponse wait(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        return Scripted.ALLOWED;
    }

    /** A remote caller that cancels its gRPC call must not pass by the failure mode. */
    @Test
    void call_does_not_end_with_the_context_of_the_caller() throws Exception {
        try (Server server = Processes.serve(LIMITS); SluicegateClient client = connect(server.grpc);
                Context.CancellableContext caller = Context.current().withCancellation()) {
            caller.cancel(null);
            assertTrue(caller.call(() -> client.check(of("user", "ann"))).isAllowed());
            assertTrue(caller.call(() -> client.checkAsync(of("user", "ann"))).join().isAllowed());
        }
    }

    @Test
    void client_connects_again_to_a_server_that_restarts() throws Exception {
        String address;
        SluicegateClient client;
        try (Server server = Processes.serve(LIMITS)) {
            address = server.grpc;
            client = connect(address);
            client.check(of("user", "ann"));
        }
        try (client) {
            expect(Kind.UNAVAILABLE, () -> client.check(of("user", "ann")));
            Thread.sleep(3000);
            try (Server again = Processes.serve(LIMITS, "--grpc-listen", address)) {
                Processes.until("a connection", () -> {
                    try {
                        client.health();
                        return true;
                    } catch (CheckException failure) {
                        return false;
                    }
                });
            }
        }
    }

    @Test
    void unix_socket() throws Exception {
        // The path of a socket is short.
        Path folder = Files.createTempDirectory(Path.of("/tmp"), "sg");
        String socket = "unix:" + folder.resolve("s");
        try (Server server = Processes.serve(LIMITS, "--grpc-listen", socket);
                SluicegateClient client = connect(socket)) {
            assertEquals(5, remaining(client, of("user", "ann")));
        } finally {
            Files.deleteIfExists(folder.resolve("s"));
            Files.delete(folder);
        }
    }

    @Test
    void arguments_are_validated() {
        assertThrows(IllegalArgumentException.class, () -> SluicegateClient.builder("http://localhost:8081"));
        assertThrows(IllegalArgumentException.class,
            () -> SluicegateClient.builder("localhost:8081").timeout(Duration.ZERO));
        assertThrows(IllegalArgumentException.class, () -> Check.of("shop"));
        assertThrows(IllegalArgumentException.class, () -> Descriptor.of("key"));
        assertThrows(IllegalArgumentException.class, () -> Descriptor.of());
        assertThrows(IllegalArgumentException.class, () -> Hits.charge(-1));
        assertThrows(IllegalArgumentException.class, () -> new LimitOverride(1L << 32, Unit.DAY, 1));
        assertThrows(IllegalArgumentException.class, () -> new LimitOverride(1, Unit.DAY, 0));
        assertThrows(IllegalArgumentException.class, () -> new LimitOverride(1, Unit.UNKNOWN, 1));
    }

    @Test
    void tls_authenticates_both_sides(@TempDir Path folder) throws Exception {
        Authority authority = new Authority(folder);
        Path[] server = authority.issue("server");
        Path[] own = authority.issue("client");
        try (Server running = Processes.serve(LIMITS, "--grpc-tls-cert", server[0].toString(),
                "--grpc-tls-key", server[1].toString(), "--grpc-tls-client-ca", authority.file.toString())) {
            Duration slow = Duration.ofSeconds(30);
            try (SluicegateClient client = SluicegateClient.builder(running.grpc)
                    .tls(authority.file, own[0], own[1]).timeout(slow).build()) {
                assertEquals(5, remaining(client, of("user", "ann")));
            }
            try (SluicegateClient client =
                    SluicegateClient.builder(running.grpc).tls(authority.file).timeout(slow).build()) {
                assertThrows(CheckException.class, () -> client.check(of("user", "ann")));
            }
            try (SluicegateClient client = SluicegateClient.builder(running.grpc).tls().timeout(slow).build()) {
                expect(Kind.UNAVAILABLE, () -> client.check(of("user", "ann")));
            }
        }
        Path absent = folder.resolve("absent");
        assertThrows(IOException.class, () -> SluicegateClient.builder("localhost:8081").tls(absent));
    }

    /** A certificate authority of a test. */
    private static final class Authority {
        private final Path store;
        final Path file;

        Authority(Path folder) throws Exception {
            store = folder.resolve("keys.p12");
            file = folder.resolve("ca.pem");
            keytool("-genkeypair", "-alias", "ca", "-keyalg", "RSA", "-dname", "CN=test CA", "-ext", "bc:c");
            pem(file, "CERTIFICATE", load().getCertificate("ca").getEncoded());
        }

        /** Returns the files of a certificate and its key. */
        Path[] issue(String name) throws Exception {
            keytool("-genkeypair", "-alias", name, "-keyalg", "RSA", "-dname", "CN=" + name, "-signer", "ca",
                "-ext", "san=ip:127.0.0.1");
            Path certificate = file.resolveSibling(name + ".pem");
            Path key = file.resolveSibling(name + ".key");
            KeyStore keys = load();
            pem(certificate, "CERTIFICATE", keys.getCertificate(name).getEncoded());
            pem(key, "PRIVATE KEY", keys.getKey(name, "secret".toCharArray()).getEncoded());
            return new Path[] {certificate, key};
        }

        private void keytool(String... arguments) throws Exception {
            List<String> command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "keytool")
                .toString(), "-keystore", store.toString(), "-storetype", "PKCS12", "-storepass", "secret"));
            command.addAll(1, List.of(arguments));
            Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
            String output = new String(process.getInputStream().readAllBytes());
            assertEquals(0, process.waitFor(), output);
        }

        private KeyStore load() throws Exception {
            return KeyStore.getInstance(store.toFile(), "secret".toCharArray());
        }

        private static void pem(Path file, String type, byte[] content) throws IOException {
            String text = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(content);
            Files.writeString(file, "-----BEGIN %1$s-----\n%2$s\n-----END %1$s-----\n".formatted(type, text));
        }
    }
}
