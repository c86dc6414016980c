package io.sluicegate.client;

import java.util.List;
import java.util.Objects;

/**
 * Request to the service: may these descriptors pass? It passes if each of them is within its limit. Immutable.
 *
 * <pre>{@code Check.of("public_api", Descriptor.of("tenant", "acme", "user", "ann"))}</pre>
 */
public final class Check {
    private static final Hits ONE = Hits.charge(1);

    private final String domain;
    private final List<Descriptor> descriptors;
    private final Hits hits;

    private Check(String domain, List<Descriptor> descriptors, Hits hits) {
        this.domain = domain;
        this.descriptors = descriptors;
        this.hits = hits;
    }

    /**
     * Returns a check of one hit.
     *
     * @param domain selects the limits file
     * @param descriptors the descriptors, at least one
     * @return the check
     */
    public static Check of(String domain, Descriptor... descriptors) {
        return of(domain, List.of(descriptors));
    }

    /**
     * Returns a check of one hit.
     *
     * @param domain selects the limits file
     * @param descriptors the descriptors, at least one
     * @return the check
     */
    public static Check of(String domain, List<Descriptor> descriptors) {
        if (descriptors.isEmpty()) {
            throw new IllegalArgumentException("a check needs a descriptor");
        }
        return new Check(Objects.requireNonNull(domain, "domain"), List.copyOf(descriptors), ONE);
    }

    /**
     * Returns this check with other hits, for the descriptors that have none of their own.
     *
     * @param hits the hits
     * @return the check
     */
    public Check withHits(Hits hits) {
        return new Check(domain, descriptors, Objects.requireNonNull(hits));
    }

    /**
     * Returns this check with hits to charge.
     *
     * @param hits the number of hits
     * @return the check
     */
    public Check withHits(long hits) {
        return withHits(Hits.charge(hits));
    }

    /**
     * Returns this check with 0 hits for every descriptor: it reads the limits, and charges nothing.
     *
     * @return the check
     */
    public Check asPeek() {
        return withHitsOfAll(Hits.peek());
    }

    /**
     * Returns a check that returns this number of hits to every descriptor.
     *
     * @param hits the number of hits
     * @return the check
     */
    public Check asRefund(long hits) {
        return withHitsOfAll(Hits.refund(hits));
    }

    /**
     * Returns the check that returns what this one charged.
     *
     * @return the check
     */
    public Check asRefund() {
        return new Check(domain, descriptors.stream().map(d -> d.withHits(undo(d.hits().orElse(hits)))).toList(), hits);
    }

    private static Hits undo(Hits hits) {
        return hits.isRefund() ? Hits.peek() : Hits.refund(hits.count());
    }

    private Check withHitsOfAll(Hits hits) {
        return new Check(domain, descriptors.stream().map(d -> d.withHits(hits)).toList(), hits);
    }

    /**
     * Returns the domain.
     *
     * @return the domain
     */
    public String domain() {
        return domain;
    }

    /**
     * Returns the descriptors.
     *
     * @return the descriptors, at least one
     */
    public List<Descriptor> descriptors() {
        return descriptors;
    }

    /**
     * Returns the hits of the descriptors that have none of their own.
     *
     * @return the hits
     */
    public Hits hits() {
        return hits;
    }

    @Override
    public String toString() {
        return "Check[domain=%s, descriptors=%s, hits=%s]".formatted(domain, descriptors, hits);
    }
}
