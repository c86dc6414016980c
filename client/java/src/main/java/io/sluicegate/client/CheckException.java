package io.sluicegate.client;

import io.grpc.Status;
import io.grpc.StatusRuntimeException;

/**
 * A call that has no verdict. No call is repeated, because one that failed may have been counted. A refusal is not a
 * failure: it is a {@link Verdict}.
 */
public final class CheckException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** Why a call failed. */
    public enum Kind {
        /** The service did not answer in time. */
        DEADLINE_EXCEEDED,
        /** The service cannot be reached, or the connection broke. */
        UNAVAILABLE,
        /** The service allowed the request without applying its override: it does not know the domain. */
        OVERRIDE_NOT_APPLIED,
        /** The service reports that it does not serve. Only {@link SluicegateClient#health} has this failure. */
        NOT_SERVING,
        /** The thread of the caller was interrupted. Its interrupt status is set. */
        INTERRUPTED,
        /** The service rejected the request: see {@link #code}. */
        OTHER
    }

    private final Kind kind;
    private final Status.Code code;

    private CheckException(Kind kind, Status.Code code, String message, Throwable cause) {
        super(message, cause);
        this.kind = kind;
        this.code = code;
    }

    static CheckException overrideNotApplied(String domain) {
        return new CheckException(Kind.OVERRIDE_NOT_APPLIED, Status.Code.OK,
            "the service did not apply the override; does it know the domain \"" + domain + "\"?", null);
    }

    static CheckException notServing(Object status) {
        return new CheckException(Kind.NOT_SERVING, Status.Code.OK, "service not serving: " + status, null);
    }

    static CheckException interrupted() {
        return new CheckException(Kind.INTERRUPTED, Status.Code.CANCELLED, "interrupted during the call", null);
    }

    static CheckException of(StatusRuntimeException failure) {
        Status status = failure.getStatus();
        Kind kind = switch (status.getCode()) {
            // A server that gives a call up reports either.
            case DEADLINE_EXCEEDED, CANCELLED -> Kind.DEADLINE_EXCEEDED;
            case UNAVAILABLE -> Kind.UNAVAILABLE;
            default -> Kind.OTHER;
        };
        return new CheckException(kind, status.getCode(), "rate limit call failed: " + failure.getMessage(), failure);
    }

    /**
     * Returns why the call failed.
     *
     * @return the kind of failure
     */
    public Kind kind() {
        return kind;
    }

    /**
     * Returns the code of gRPC.
     *
     * @return the code; {@code OK} if the service answered
     */
    public Status.Code code() {
        return code;
    }
}
