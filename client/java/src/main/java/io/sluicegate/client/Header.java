package io.sluicegate.client;

/**
 * An HTTP header.
 *
 * @param name the name, as the service sent it
 * @param value the value
 */
public record Header(String name, String value) {
}
