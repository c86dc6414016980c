package io.sluicegate.client;

/** What happens to a request if the service does not answer, or does not apply an override. */
public enum FailureMode {
    /** The request passes, as Envoy lets it by default. */
    OPEN,
    /** The request is refused with status 503. */
    CLOSED
}
