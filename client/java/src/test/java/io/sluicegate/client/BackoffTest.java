package io.sluicegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.HashSet;
import java.util.Optional;
import java.util.Set;
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
}
