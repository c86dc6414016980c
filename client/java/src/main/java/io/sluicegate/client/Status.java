package io.sluicegate.client;

import java.time.Duration;
import java.util.Optional;

/**
 * The decision for one descriptor.
 *
 * @param code whether the descriptor is over its limit
 * @param limit the limit that applied, if one did
 * @param remaining the hits that can still pass
 * @param resetAfter the time until the window ends, or, if the limit refuses, until the same hits can pass; zero if the
 *     service reports none
 */
public record Status(Code code, Optional<Limit> limit, long remaining, Duration resetAfter) {
    /**
     * Returns whether the rule of the descriptor is unlimited.
     *
     * @return whether it is
     */
    public boolean isUnlimited() {
        return limit.isEmpty() && remaining == 0xFFFF_FFFFL;
    }

    /** Returns whether the service ignored an override of the descriptor. */
    boolean ignoresOverride() {
        return code != Code.OVER_LIMIT && limit.isEmpty();
    }
}
