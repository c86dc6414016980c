package io.sluicegate.example;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.springframework.boot.SpringApplication;
import org.springframework.context.ConfigurableApplicationContext;

class ApplicationTest {
    private static final HttpClient HTTP = HttpClient.newHttpClient();
    private static Process server;
    private static ConfigurableApplicationContext application;

    /** Starts the server, and the application behind one proxy. */
    @BeforeAll
    static void start() throws IOException {
        String binary = System.getenv("SLUICEGATE_BINARY");
        ProcessBuilder command = new ProcessBuilder(
            binary == null ? "../../../target/debug/sluicegate" : binary, "serve", "--limits", "limits.yaml",
            "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--admin-listen", "off",
            "--drain-delay", "0s").redirectErrorStream(true);
        // The caller's settings must not leak into the server.
        command.environment().keySet().removeIf(name -> name.startsWith("SLUICEGATE_"));
        server = command.start();
        application = SpringApplication.run(Application.class, "--server.port=0", "--logging.level.root=warn",
            "--spring.main.banner-mode=off", "--sluicegate.timeout=30s",
            "--sluicegate.trusted-proxies=1", "--sluicegate.target=" + address(server.inputReader()));
    }

    private static String address(BufferedReader output) throws IOException {
        StringBuilder printed = new StringBuilder();
        for (String line = output.readLine(); line != null; line = output.readLine()) {
            printed.append(line).append('\n');
            Matcher serving = Pattern.compile("serving grpc=(\\S+)").matcher(line);
            if (serving.find()) {
                return serving.group(1);
            }
        }
        throw new AssertionError("the server did not start:\n" + printed);
    }

    @AfterAll
    static void stop() throws InterruptedException {
        if (application != null) {
            application.close();
        }
        server.destroy();
        if (!server.waitFor(30, TimeUnit.SECONDS)) {
            server.destroyForcibly().waitFor();
        }
    }

    private static HttpRequest.Builder request(String path, String address) {
        String port = application.getEnvironment().getProperty("local.server.port");
        return HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path)).header("X-Forwarded-For", address);
    }

    private static int send(HttpRequest.Builder request) throws Exception {
        HttpResponse<Void> response = HTTP.send(request.build(), BodyHandlers.discarding());
        if (response.statusCode() == 429) {
            assertTrue(response.headers().firstValue("Retry-After").isPresent());
        }
        return response.statusCode();
    }

    @Test
    void one_address_has_100_requests_a_minute() throws Exception {
        for (int i = 1; i <= 100; i++) {
            assertEquals(200, send(request("/", "203.0.113.1")), "request " + i);
        }
        assertEquals(429, send(request("/", "203.0.113.1")));
        assertEquals(200, send(request("/", "203.0.113.2")));
    }

    private static int login(String email, String address) throws Exception {
        String body = "{\"email\": \"%s\", \"password\": \"guess\"}".formatted(email);
        return send(request("/login", address)
            .header("Content-Type", "application/json").POST(BodyPublishers.ofString(body)));
    }

    @Test
    void one_account_has_5_logins_in_15_minutes() throws Exception {
        int address = 10;
        for (String email : List.of(
                "ann@example.com", "Ann@example.com", " ann@example.com", "ann@example.com", "ANN@EXAMPLE.COM")) {
            assertEquals(403, login(email, "203.0.113." + address++));
        }
        assertEquals(429, login("ann@example.com", "203.0.113.16"));
        assertEquals(403, login("eve@example.com", "203.0.113.17"));
    }

    private static int call(String apiKey, String address) throws Exception {
        return send(request("/api", address).header("X-Api-Key", apiKey));
    }

    @ParameterizedTest
    @CsvSource({"key-of-ann, 10, 429, 203.0.113.31", "key-of-bob, 60, 429, 203.0.113.32",
        "key-of-acme, 90, 200, 203.0.113.33"})
    void tiers_limit_calls_by_api_key(String apiKey, int calls, int then, String address) throws Exception {
        for (int i = 1; i <= calls; i++) {
            assertEquals(200, call(apiKey, address), "call " + i);
        }
        assertEquals(then, call(apiKey, address));
    }

    @Test
    void calls_without_a_valid_api_key_get_401() throws Exception {
        assertEquals(401, send(request("/api", "203.0.113.20")));
        assertEquals(401, call("forged", "203.0.113.20"));
    }
}
