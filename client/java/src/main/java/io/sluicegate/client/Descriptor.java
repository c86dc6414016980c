package io.sluicegate.client;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Optional;

/** List of entries that a rule matches, the outermost level first. Immutable. */
public final class Descriptor {
    private final List<Entry> entries;
    private final Hits hits;
    private final LimitOverride limitOverride;

    private Descriptor(List<Entry> entries, Hits hits, LimitOverride limitOverride) {
        this.entries = entries;
        this.hits = hits;
        this.limitOverride = limitOverride;
    }

    /**
     * Returns a descriptor of keys and values in turn: {@code Descriptor.of("tenant", "acme", "user", "ann")}.
     *
     * @param keysAndValues the keys and values, an even number
     * @return the descriptor
     */
    public static Descriptor of(String... keysAndValues) {
        if (keysAndValues.length % 2 != 0) {
            throw new IllegalArgumentException("a key has no value: " + keysAndValues[keysAndValues.length - 1]);
        }
        List<Entry> entries = new ArrayList<>();
        for (int i = 0; i < keysAndValues.length; i += 2) {
            entries.add(new Entry(keysAndValues[i], keysAndValues[i + 1]));
        }
        return of(entries);
    }

    /**
     * Returns a descriptor of entries.
     *
     * @param entries the entries, at least one
     * @return the descriptor
     */
    public static Descriptor of(List<Entry> entries) {
        if (entries.isEmpty()) {
            throw new IllegalArgumentException("a descriptor needs an entry");
        }
        return new Descriptor(List.copyOf(entries), null, null);
    }

    /**
     * Returns this descriptor with hits of its own, in place of those of the check.
     *
     * @param hits the hits
     * @return the descriptor
     */
    public Descriptor withHits(Hits hits) {
        return new Descriptor(entries, Objects.requireNonNull(hits), limitOverride);
    }

    /**
     * Returns this descriptor with a limit that replaces the rule's.
     *
     * @param limit the limit
     * @return the descriptor
     */
    public Descriptor withOverride(LimitOverride limit) {
        return new Descriptor(entries, hits, Objects.requireNonNull(limit));
    }

    /**
     * Returns the entries.
     *
     * @return the entries, at least one
     */
    public List<Entry> entries() {
        return entries;
    }

    /**
     * Returns the hits of this descriptor.
     *
     * @return the hits; empty if those of the check apply
     */
    public Optional<Hits> hits() {
        return Optional.ofNullable(hits);
    }

    /**
     * Returns the limit that replaces the rule's.
     *
     * @return the limit; empty if the rule's applies
     */
    public Optional<LimitOverride> limitOverride() {
        return Optional.ofNullable(limitOverride);
    }

    @Override
    public String toString() {
        return "Descriptor[entries=%s, hits=%s, limitOverride=%s]".formatted(entries, hits, limitOverride);
    }
}
