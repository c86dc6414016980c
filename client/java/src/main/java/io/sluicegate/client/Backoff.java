package io.sluicegate.client;

import java.net.http.HttpResponse;
import java.time.Duration;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeParseException;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.ThreadLocalRandom;

/** Times to wait for callers of rate limited services. */
public final class Backoff {
    private static final Duration BASE = Duration.ofMillis(100);
    private static final Duration MAX = Duration.ofSeconds(30);
    /** The minimum jitter, which spreads callers with the same retry time. */
    private static final Duration JITTER_MIN = Duration.ofMillis(1);

    private Backoff() {
    }

    /**
     * Returns how long the caller of a rate limited service waits before it tries again: {@code retryAfter} and a
     * random time of up to 100 ms · 2^{@code attempt}, at most 30 s, so that callers that were asked the same do not
     * return together.
     *
     * @param retryAfter the time that the service asked to wait; zero if it did not
     * @param attempt the number of attempts before this one
     * @return the time to wait
     */
    public static Duration delay(Duration retryAfter, int attempt) {
        // 2^9 · 100 ms is longer than the maximum.
        Duration longest = attempt < 9 ? BASE.multipliedBy(1L << Math.max(0, attempt)) : MAX;
        return (retryAfter.isNegative() ? Duration.ZERO : retryAfter).plus(random(longest));
    }

    /**
     * Returns the time that a response asks to wait by its header {@code Retry-After}.
     *
     * @param response the response
     * @return the time; empty without a valid header
     */
    public static Optional<Duration> retryAfter(HttpResponse<?> response) {
        return response.headers().firstValue("Retry-After").flatMap(Backoff::retryAfter);
    }

    /**
     * Returns the time of a header {@code Retry-After}, in seconds or as a date.
     *
     * @param value the value of the header; may be null
     * @return the time; empty without a valid value
     */
    public static Optional<Duration> retryAfter(String value) {
        if (value == null) {
            return Optional.empty();
        }
        OptionalLong seconds = Verdict.wholeSeconds(value);
        if (seconds.isPresent()) {
            return Optional.of(Duration.ofSeconds(seconds.getAsLong()));
        }
        try {
            ZonedDateTime date = ZonedDateTime.parse(value.strip(), DateTimeFormatter.RFC_1123_DATE_TIME);
            Duration until = Duration.between(ZonedDateTime.now(date.getZone()), date);
            return Optional.of(until.isNegative() ? Duration.ZERO : until);
        } catch (DateTimeParseException notADate) {
            return Optional.empty();
        }
    }

    /** Returns a delay up to a tenth longer, and at least {@link #JITTER_MIN}. */
    static Duration withJitter(Duration delay) {
        Duration jitter = random(delay.dividedBy(10));
        return delay.plus(jitter.compareTo(JITTER_MIN) < 0 ? JITTER_MIN : jitter);
    }

    /** Returns a time from zero up to {@code longest}. */
    private static Duration random(Duration longest) {
        return Duration.ofNanos(ThreadLocalRandom.current().nextLong(longest.toNanos() + 1));
    }
}
