package io.sluicegate.client;

import com.google.protobuf.ByteString;
import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import io.sluicegate.client.v1.RateLimitResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;

/** The answer to a {@link Check}. Immutable. */
public final class Verdict {
    /** Thirty years: more would not fit in 64 bits of nanoseconds with what is added to it. */
    private static final long LONGEST_SECONDS = 1_000_000_000;

    private final boolean allowed;
    private final List<Status> statuses;
    private final List<Header> responseHeaders;
    private final List<Header> requestHeaders;
    private final ByteString rawBody;
    private final Duration metadataDelay;

    private Verdict(RateLimitResponse message) {
        allowed = message.getOverallCode() != RateLimitResponse.Code.OVER_LIMIT;
        statuses = message.getStatusesList().stream().map(Verdict::status).toList();
        responseHeaders = headers(message.getResponseHeadersToAddList());
        requestHeaders = headers(message.getRequestHeadersToAddList());
        rawBody = message.getRawBody();
        metadataDelay = metadataDelay(message.getDynamicMetadata());
    }

    /** Returns the verdict of an answer. Throws if the service has counted nothing for an override of the check. */
    static Verdict of(Check check, RateLimitResponse message) {
        Verdict verdict = new Verdict(message);
        for (int i = 0; verdict.allowed && i < check.descriptors().size(); i++) {
            boolean isOverridden = check.descriptors().get(i).limitOverride().isPresent();
            if (isOverridden && (i >= verdict.statuses.size() || verdict.statuses.get(i).ignoresOverride())) {
                throw CheckException.overrideNotApplied(check.domain());
            }
        }
        return verdict;
    }

    /**
     * Returns whether the request may pass. A code that the client does not know counts as allowed, as in Envoy.
     *
     * @return whether the request may pass
     */
    public boolean isAllowed() {
        return allowed;
    }

    /**
     * Returns one status for each descriptor, in the order of the check.
     *
     * @return the statuses; a request that was shed may have none
     */
    public List<Status> statuses() {
        return statuses;
    }

    /**
     * Returns headers for the response to the caller.
     *
     * @return the headers
     */
    public List<Header> responseHeaders() {
        return responseHeaders;
    }

    /**
     * Returns headers to add to the request, if it is allowed.
     *
     * @return the headers
     */
    public List<Header> requestHeaders() {
        return requestHeaders;
    }

    /**
     * Returns the body of the response, if the request is refused.
     *
     * @return the body; may be empty
     */
    public byte[] rawBody() {
        return rawBody.toByteArray();
    }

    /**
     * Returns the time after which the same request can pass: the value of the header {@code retry-after-ms} if that is
     * a whole number of milliseconds, otherwise that of the header {@code retry-after} if that is a whole number of
     * seconds, otherwise the longest reset of the limits that refuse.
     *
     * @return the time; empty if the service reports none
     */
    public Optional<Duration> retryAfter() {
        Optional<Duration> exact = retryAfterMs();
        if (exact.isPresent()) {
            return exact;
        }
        OptionalLong seconds = retryAfterHeader();
        return seconds.isPresent() ? Optional.of(Duration.ofSeconds(seconds.getAsLong())) : reset();
    }

    /** Returns the value of the header {@code Retry-After} for the caller. */
    OptionalLong retryAfterSeconds() {
        OptionalLong seconds = retryAfterHeader();
        if (seconds.isPresent()) {
            return seconds;
        }
        return retryAfter().stream().mapToLong(delay -> Math.max(1, ceilSeconds(delay))).findFirst();
    }

    /**
     * Returns how long to wait before the next check of the same hits: {@link #retryAfter}, or the exact time of
     * the metadata or the reset, if {@link #retryAfter} is that time rounded up to seconds.
     */
    Optional<Duration> delay() {
        Optional<Duration> milliseconds = retryAfterMs();
        if (milliseconds.isPresent()) {
            return milliseconds;
        }
        Duration reset = reset().orElse(Duration.ZERO);
        return retryAfter().map(reported -> {
            for (Duration exact : List.of(metadataDelay, reset)) {
                if (!exact.isZero() && ceilSeconds(exact) == ceilSeconds(reported)) {
                    return exact;
                }
            }
            return reported;
        });
    }

    private OptionalLong retryAfterHeader() {
        return header("retry-after").map(Verdict::wholeSeconds).orElse(OptionalLong.empty());
    }

    private Optional<Duration> retryAfterMs() {
        return header("retry-after-ms")
            .map(String::strip)
            .filter(value -> value.matches("[0-9]{1,12}"))
            .map(value -> Duration.ofMillis(Long.parseLong(value)));
    }

    private Optional<String> header(String name) {
        return responseHeaders.stream().filter(it -> it.name().equalsIgnoreCase(name)).map(Header::value).findFirst();
    }

    /** Returns the longest reset of the limits that refuse. */
    private Optional<Duration> reset() {
        return statuses.stream()
            .filter(status -> status.code() == Code.OVER_LIMIT && !status.resetAfter().isZero())
            .map(Status::resetAfter)
            .max(Duration::compareTo);
    }

    /** Returns the number that a text is, if it has at most 9 digits and nothing else. */
    static OptionalLong wholeSeconds(String text) {
        String digits = text.strip();
        return digits.matches("[0-9]{1,9}") ? OptionalLong.of(Long.parseLong(digits)) : OptionalLong.empty();
    }

    static long ceilSeconds(Duration duration) {
        return duration.getSeconds() + (duration.getNano() > 0 ? 1 : 0);
    }

    /**
     * Returns the longest wait that the metadata has for a descriptor over its limit, or zero. The server sends it with
     * {@code --dynamic-metadata}.
     */
    private static Duration metadataDelay(Struct metadata) {
        double seconds = 0;
        for (Struct descriptor : structs(metadata, "descriptors")) {
            if (field(descriptor, "code").getStringValue().equals("OVER_LIMIT")) {
                for (Struct limit : structs(descriptor, "limits")) {
                    seconds = Math.max(seconds, field(limit, "retryAfter").getNumberValue());
                }
            }
        }
        // NaN and what is too long for a duration count as none.
        return seconds > 0 && seconds < LONGEST_SECONDS ? Duration.ofNanos((long) (seconds * 1e9)) : Duration.ZERO;
    }

    private static List<Struct> structs(Struct parent, String name) {
        return field(parent, name).getListValue().getValuesList().stream().map(Value::getStructValue).toList();
    }

    private static Value field(Struct parent, String name) {
        return parent.getFieldsOrDefault(name, Value.getDefaultInstance());
    }

    private static Status status(RateLimitResponse.DescriptorStatus message) {
        Code code = switch (message.getCode()) {
            case OK -> Code.OK;
            case OVER_LIMIT -> Code.OVER_LIMIT;
            default -> Code.UNKNOWN;
        };
        long remaining = Integer.toUnsignedLong(message.getLimitRemaining());
        return new Status(code, limit(message), remaining, duration(message.getDurationUntilReset()));
    }

    private static Optional<Limit> limit(RateLimitResponse.DescriptorStatus message) {
        if (!message.hasCurrentLimit()) {
            return Optional.empty();
        }
        RateLimitResponse.RateLimit limit = message.getCurrentLimit();
        return Optional.of(new Limit(
            limit.getName(),
            Integer.toUnsignedLong(limit.getRequestsPerUnit()),
            Unit.of(limit.getUnitValue()),
            Math.max(1, Integer.toUnsignedLong(limit.getUnitMultiplier().getValue()))));
    }

    private static Duration duration(com.google.protobuf.Duration message) {
        // A negative time counts as none.
        if (message.getSeconds() < 0 || message.getNanos() < 0) {
            return Duration.ZERO;
        }
        return Duration.ofSeconds(Math.min(message.getSeconds(), LONGEST_SECONDS), message.getNanos());
    }

    private static List<Header> headers(List<RateLimitResponse.HeaderValue> messages) {
        return messages.stream().map(message -> new Header(message.getKey(), value(message))).toList();
    }

    private static String value(RateLimitResponse.HeaderValue message) {
        // Servlets have headers as Latin-1.
        return message.getValue().isEmpty()
            ? message.getRawValue().toString(StandardCharsets.ISO_8859_1) : message.getValue();
    }

    @Override
    public String toString() {
        return "Verdict[allowed=%s, statuses=%s, responseHeaders=%s, requestHeaders=%s, rawBody=%d bytes]"
            .formatted(allowed, statuses, responseHeaders, requestHeaders, rawBody.size());
    }
}
