package io.sluicegate.client;

import java.util.Objects;

/**
 * A key and a value of a descriptor. Unpaired surrogates, which UTF-8 cannot carry, are sent as U+FFFD.
 *
 * @param key the key, such as {@code user}
 * @param value the value; may be empty
 */
public record Entry(String key, String value) {
    /**
     * Makes an entry of texts that are not null.
     *
     * @param key the key
     * @param value the value
     */
    public Entry {
        Objects.requireNonNull(key, "key");
        Objects.requireNonNull(value, "value");
    }
}
