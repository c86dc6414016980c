package io.sluicegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedDeque;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class BackoffTest {
    @ParameterizedTest
    @CsvSource({
        "0, 0, 0, 100", "0, 3, 0, 800", "0, 1000, 0, 30000", "0, -1, 0, 100", "-1000, 0, 0, 100",
        "1000, 0, 1000, 1100", "1000, 5, 1000, 4200", "3600000, 2, 3600000, 3600400",
    })
    void delay_is_never_shorter_than_asked(long retryAfter, int attempt, long least, long most) {
        Set<Duration> delays = new HashSet<>();
        for (int i = 0; i < 200; i++) {
            Duration delay = Backoff.delay(Duration.ofMillis(retryAfter), attempt);
            assertTrue(delay.toMillis() >= least && delay.compareTo(Duration.ofMillis(most)) <= 0, delay.toString());
            delays.add(delay);
        }
        assertTrue(delays.size() > 100, delays.size() + " different delays");
    }

    @Test
    void retry_after_is_a_number_or_a_date() {
        assertEquals(Optional.of(Duration.ofSeconds(7)), Backoff.retryAfter("7"));
        assertEquals(Optional.of(Duration.ZERO), Backoff.retryAfter("Wed, 21 Oct 2015 07:28:00 GMT"));
        ZonedDateTime later = ZonedDateTime.now(ZoneOffset.UTC).plusHours(1);
        Duration hour = Backoff.retryAfter(DateTimeFormatter.RFC_1123_DATE_TIME.format(later)).orElseThrow();
        assertTrue(hour.toMinutes() == 59 || hour.toMinutes() == 60, hour.toString());
        for (String invalid : new String[] {null, "", "soon", "-7", "1.5", "12345678901"}) {
            assertEquals(Optional.empty(), Backoff.retryAfter(invalid));
        }
    }

    /** The code of docs/backoff.md. */
    @Test
    void a_caller_that_backs_off_succeeds() throws Exception {
        Deque<Integer> statuses = new ConcurrentLinkedDeque<>(List.of(429, 429, 200));
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", exchange -> {
            exchange.getResponseHeaders().set("Retry-After", "0");
            exchange.sendResponseHeaders(statuses.remove(), -1);
            exchange.close();
        });
        server.start();
        try {
            HttpClient http = HttpClient.newHttpClient();
            URI url = URI.create("http://127.0.0.1:" + server.getAddress().getPort());
            HttpRequest request = HttpRequest.newBuilder(url).build();
            HttpResponse<String> response = null;
            for (int attempt = 0; attempt < 5; attempt++) {
                response = http.send(request, BodyHandlers.ofString());
                if (response.statusCode() != 429) {
                    break;
                }
                Thread.sleep(Backoff.delay(Backoff.retryAfter(response).orElse(Duration.ZERO), attempt).toMillis());
            }
            assertEquals(200, response.statusCode());
        } finally {
            server.stop(0);
        }
    }
}
