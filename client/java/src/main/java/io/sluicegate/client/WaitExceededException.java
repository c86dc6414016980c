package io.sluicegate.client;

/** The limit did not allow the check within the maximum wait. Nothing is charged. */
public final class WaitExceededException extends RuntimeException {
    private static final long serialVersionUID = 1;

    WaitExceededException() {
        super("maximum wait exceeded");
    }
}
