package io.sluicegate.client;

import io.sluicegate.client.Schedule.Turn;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;

/** The schedules of a client. One of {@link SluicegateClient#acquire} exists as long as it has waiters. */
final class Schedules {
    private static final long LONGEST_NANOS = Long.MAX_VALUE / 4;
    private static final Duration LONGEST = Duration.ofNanos(LONGEST_NANOS);

    /** Checks of the same domain and entries share a schedule. */
    private record Key(String domain, List<List<Entry>> entries) {
        static Key of(Check check) {
            return new Key(check.domain(), check.descriptors().stream().map(Descriptor::entries).toList());
        }
    }

    private final SluicegateClient client;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition empty = lock.newCondition();
    private final Map<Key, Schedule> byKey = new HashMap<>();
    /** All waiters, including those that have given up and are not settled. */
    private final Set<Turn> turns = new HashSet<>();
    private boolean closed;

    Schedules(SluicegateClient client) {
        this.client = client;
    }

    Verdict acquire(Check check, Duration maxWait) throws InterruptedException {
        Key key = Key.of(check);
        lock.lockInterruptibly();
        try {
            Schedule schedule = byKey.computeIfAbsent(key, absent -> new Schedule(1));
            try {
                return acquire(schedule, 0, check, maxWait, null);
            } finally {
                forgetIfIdle(key);
            }
        } finally {
            lock.unlock();
        }
    }

    /**
     * Waits for the turn of a waiter, and asks until the check is allowed.
     *
     * @param onFailure is called if the service does not answer; the waiter then keeps its turn. Null: such a failure
     *     ends the wait.
     */
    Verdict acquire(Schedule schedule, int priority, Check check, Duration maxWait, Consumer<CheckException> onFailure)
            throws InterruptedException {
        long deadline = System.nanoTime() + (maxWait.compareTo(LONGEST) < 0 ? maxWait.toNanos() : LONGEST_NANOS);
        lock.lockInterruptibly();
        try {
            requireOpen(schedule);
            Turn turn = schedule.enter(priority, lock.newCondition());
            turns.add(turn);
            CompletableFuture<Verdict> call = null;
            boolean isAllowed = false;
            try {
                while (!turn.isFirst()) {
                    if (!await(turn, deadline)) {
                        throw new WaitExceededException();
                    }
                }
                while (true) {
                    if (schedule.next() - deadline > 0) {
                        throw new WaitExceededException();
                    }
                    while (await(turn, schedule.next())) {
                        // Something else changed.
                    }
                    call = ask(turn, check);
                    while (!call.isDone()) {
                        await(turn, System.nanoTime() + LONGEST_NANOS);
                    }
                    CompletableFuture<Verdict> answered = call;
                    call = null;
                    try {
                        Verdict verdict = answered.join();
                        isAllowed = verdict.isAllowed();
                        if (isAllowed) {
                            schedule.allowed();
                            return verdict;
                        }
                        schedule.refused(verdict);
                    } catch (CompletionException failure) {
                        failed(schedule, failure, onFailure);
                    }
                }
            } finally {
                if (call == null) {
                    leave(turn, isAllowed);
                } else {
                    refundInBackground(turn, check, call);
                }
            }
        } finally {
            lock.unlock();
        }
    }

    private CompletableFuture<Verdict> ask(Turn turn, Check check) {
        CompletableFuture<Verdict> call = client.checkAsync(check);
        call.whenComplete((verdict, failure) -> locked(turn.changed::signal));
        return call;
    }

    private void failed(Schedule schedule, CompletionException failure, Consumer<CheckException> onFailure) {
        if (!(failure.getCause() instanceof CheckException exception)) {
            throw failure;
        }
        boolean mayRecover = exception.kind() == CheckException.Kind.UNAVAILABLE
            || exception.kind() == CheckException.Kind.DEADLINE_EXCEEDED;
        if (onFailure == null || !mayRecover) {
            throw exception;
        }
        schedule.failed();
        lock.unlock();
        try {
            onFailure.accept(exception);
        } finally {
            lock.lock();
        }
    }

    /** Keeps the turn of a waiter that gave up until nothing of its call is charged any more. */
    private void refundInBackground(Turn turn, Check check, CompletableFuture<Verdict> call) {
        call.handle((verdict, failure) -> failure == null && verdict.isAllowed())
            .thenCompose(isCharged -> isCharged
                // If that fails, the hits stay charged.
                ? client.checkAsync(check.asRefund()).handle((verdict, failure) -> null)
                : CompletableFuture.completedFuture(null))
            .whenComplete((settled, failure) -> locked(() -> {
                leave(turn, false);
                forgetIfIdle(Key.of(check));
            }));
    }

    /** Waits for a change, and returns whether there may be one; false after the deadline. */
    private boolean await(Turn turn, long deadline) throws InterruptedException {
        requireOpen(turn.schedule);
        long left = deadline - System.nanoTime();
        if (left <= 0) {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            return false;
        }
        turn.changed.awaitNanos(left);
        requireOpen(turn.schedule);
        return true;
    }

    private void requireOpen(Schedule schedule) {
        if (closed) {
            throw new IllegalStateException("client closed");
        }
        if (schedule.isClosed()) {
            throw new IllegalStateException("pacer closed");
        }
    }

    private void leave(Turn turn, boolean isAllowed) {
        turn.leave(isAllowed);
        turns.remove(turn);
        if (turns.isEmpty()) {
            empty.signalAll();
        }
    }

    private void forgetIfIdle(Key key) {
        byKey.computeIfPresent(key, (present, schedule) -> schedule.hasWaiters() ? schedule : null);
    }

    private void locked(Runnable action) {
        lock.lock();
        try {
            action.run();
        } finally {
            lock.unlock();
        }
    }

    /** Returns the number of waiters, for tests. */
    int waiters() {
        lock.lock();
        try {
            return turns.size();
        } finally {
            lock.unlock();
        }
    }

    /** Wakes the waiters of a pacer, which fail. */
    void close(Schedule schedule) {
        locked(schedule::close);
    }

    /** Ends all waits, and returns whether all waiters are settled; false if this thread was interrupted. */
    boolean close() {
        lock.lock();
        try {
            closed = true;
            turns.forEach(turn -> turn.changed.signal());
            while (!turns.isEmpty()) {
                empty.await();
            }
            return true;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return false;
        } finally {
            lock.unlock();
        }
    }
}
