package io.sluicegate.client;

import java.time.Duration;
import java.util.Objects;

/**
 * A limit that comes with the request and replaces the rule's. The service applies it only in a domain that it knows;
 * where it does not, the call fails with {@link CheckException.Kind#OVERRIDE_NOT_APPLIED}.
 *
 * @param requestsPerUnit the requests in a window, up to 2³² − 1
 * @param unit the unit of the window
 * @param unitMultiplier the units in a window, from 1 to 2³² − 1. Services that implement Envoy's API of before 1.40
 *     ignore it.
 */
public record LimitOverride(long requestsPerUnit, Unit unit, long unitMultiplier) {
    private static final long UINT32_MAX = 0xFFFF_FFFFL;

    /**
     * Makes an override of numbers that fit in 32 bits.
     *
     * @param requestsPerUnit the requests in a window
     * @param unit the unit of the window
     * @param unitMultiplier the units in a window
     */
    public LimitOverride {
        Objects.requireNonNull(unit, "unit");
        if (unit == Unit.UNKNOWN) {
            throw new IllegalArgumentException("an override needs a unit");
        }
        if (requestsPerUnit < 0 || requestsPerUnit > UINT32_MAX) {
            throw new IllegalArgumentException("requestsPerUnit must be from 0 to 2^32 - 1: " + requestsPerUnit);
        }
        if (unitMultiplier < 1 || unitMultiplier > UINT32_MAX) {
            throw new IllegalArgumentException("unitMultiplier must be from 1 to 2^32 - 1: " + unitMultiplier);
        }
    }

    /**
     * Returns a limit of requests in each window.
     *
     * @param requests the requests in a window
     * @param window the length of the window, which is rounded up to whole seconds
     * @return the override
     */
    public static LimitOverride of(long requests, Duration window) {
        long seconds = Math.max(1, Verdict.ceilSeconds(window));
        if (seconds % 86_400 == 0) {
            return new LimitOverride(requests, Unit.DAY, seconds / 86_400);
        }
        if (seconds % 3600 == 0) {
            return new LimitOverride(requests, Unit.HOUR, seconds / 3600);
        }
        if (seconds % 60 == 0) {
            return new LimitOverride(requests, Unit.MINUTE, seconds / 60);
        }
        return new LimitOverride(requests, Unit.SECOND, seconds);
    }
}
