package io.sluicegate.client;

/** The decision for a descriptor. */
public enum Code {
    /** None, or one of a later API. */
    UNKNOWN,
    /** Within the limit. */
    OK,
    /** Over the limit. */
    OVER_LIMIT
}
