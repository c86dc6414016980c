package io.sluicegate.client;

import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.function.Consumer;

/**
 * Starts the jobs of workers at the rate that a limit allows, such as that of a provider's API. Jobs of one priority
 * start first in, first out; while jobs of several priorities wait, they start in proportion to their weights. A pacer
 * is safe for concurrent use; a process needs one for each limit.
 *
 * <pre>{@code
 * Pacer pacer = Pacer.builder(client, Check.of("jobs", Descriptor.of("provider", "mail"))).weights(3, 1).build();
 * pacer.run(0, () -> send(mail));
 * }</pre>
 */
public final class Pacer implements AutoCloseable {
    private static final Duration UNBOUNDED = Duration.ofSeconds(Long.MAX_VALUE);

    private final Schedules schedules;
    private final Check check;
    private final int priorities;
    private final Schedule schedule;
    private final Consumer<CheckException> onError;

    private Pacer(Builder builder) {
        schedules = builder.client.schedules();
        check = builder.check;
        priorities = builder.weights.length;
        schedule = new Schedule(builder.weights);
        onError = builder.onError;
    }

    /**
     * Returns a builder of a pacer.
     *
     * @param client asks the service
     * @param check what each job costs
     * @return the builder
     */
    public static Builder builder(SluicegateClient client, Check check) {
        return new Builder(client, check);
    }

    /**
     * Waits until a job of the first priority may start, and runs it. See {@link #run(int, Callable)}.
     *
     * @param job the job
     * @param <T> what the job returns
     * @return what the job returns
     * @throws Exception that of the job, or one of {@link #run(int, Callable)}
     */
    public <T> T run(Callable<T> job) throws Exception {
        return run(0, job);
    }

    /**
     * Waits until a job of this priority may start, and runs it in this thread. A pacer limits how often jobs start,
     * not how many run at once. An interrupt cancels a job that waits, which then charges nothing.
     *
     * @param priority an index into the weights
     * @param job the job
     * @param <T> what the job returns
     * @return what the job returns
     * @throws InterruptedException if the thread is interrupted before the job starts
     * @throws CheckException if the service rejects the check
     * @throws IllegalStateException if the pacer or the client is closed before the job starts
     * @throws Exception that of the job
     */
    public <T> T run(int priority, Callable<T> job) throws Exception {
        if (priority < 0 || priority >= priorities) {
            throw new IllegalArgumentException("no priority " + priority);
        }
        schedules.acquire(schedule, priority, check, UNBOUNDED, onError);
        return job.call();
    }

    /** Cancels the jobs that wait with an {@link IllegalStateException}. Jobs that run are not affected. */
    @Override
    public void close() {
        schedules.close(schedule);
    }

    /** Builder of a {@link Pacer}. */
    public static final class Builder {
        private final SluicegateClient client;
        private final Check check;
        private int[] weights = {1};
        private Consumer<CheckException> onError = failure -> { };

        private Builder(SluicegateClient client, Check check) {
            this.client = client;
            this.check = check;
        }

        /**
         * Sets the weight of each priority. With 3 and 1, three jobs of priority 0 start for one of priority 1.
         *
         * @param weights positive numbers, at least one; default: one priority
         * @return this builder
         */
        public Builder weights(int... weights) {
            if (weights.length == 0) {
                throw new IllegalArgumentException("a pacer needs a priority");
            }
            this.weights = weights.clone();
            return this;
        }

        /**
         * Sets what is called for each check that the service did not answer. The pacer waits and asks again, because
         * no job starts without a verdict.
         *
         * @param onError is called with the failure; default: nothing
         * @return this builder
         */
        public Builder onError(Consumer<CheckException> onError) {
            this.onError = onError;
            return this;
        }

        /**
         * Returns the pacer.
         *
         * @return the pacer
         */
        public Pacer build() {
            return new Pacer(this);
        }
    }
}
