package io.sluicegate.client;

/**
 * The limit that applied to a descriptor.
 *
 * @param name the name of the limit; may be empty
 * @param requestsPerUnit the requests in a window
 * @param unit the unit of the window
 * @param unitMultiplier the units in a window
 */
public record Limit(String name, long requestsPerUnit, Unit unit, long unitMultiplier) {
}
