package io.sluicegate.client;

/**
 * How many units to charge or to refund.
 *
 * @param count the number of hits, 0 or more
 * @param isRefund whether the hits are returned
 */
public record Hits(long count, boolean isRefund) {
    /**
     * Makes hits of a number that is not negative.
     *
     * @param count the number
     * @param isRefund whether the hits are returned
     */
    public Hits {
        if (count < 0) {
            throw new IllegalArgumentException("hits must not be negative: " + count);
        }
    }

    /**
     * Returns hits to charge. 0 hits are a {@link #peek}.
     *
     * @param count the number of hits
     * @return the hits
     */
    public static Hits charge(long count) {
        return new Hits(count, false);
    }

    /**
     * Returns no hits: the limits are read, and nothing is charged.
     *
     * @return the hits
     */
    public static Hits peek() {
        return charge(0);
    }

    /**
     * Returns hits to return, which were charged before. Services that implement Envoy's API of before 1.38 charge them
     * instead.
     *
     * @param count the number of hits
     * @return the hits
     */
    public static Hits refund(long count) {
        return new Hits(count, true);
    }
}
