package io.sluicegate.client;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.locks.Condition;

/**
 * The waiters for one limit: one has the turn, and asks until it is allowed; the others wait behind it. Waiters of one
 * priority are first in, first out; priorities share the turns by their weights. Guarded by the lock of its
 * {@link Schedules}.
 */
final class Schedule {
    /** A place in the order. */
    static final class Turn {
        final Schedule schedule;
        final Condition changed;
        private final Priority priority;

        private Turn(Schedule schedule, Priority priority, Condition changed) {
            this.schedule = schedule;
            this.priority = priority;
            this.changed = changed;
        }

        boolean isFirst() {
            return schedule.first == this;
        }

        /** Removes a waiter that was allowed, or gives up. */
        void leave(boolean isAllowed) {
            if (isAllowed) {
                priority.position += priority.stride;
            }
            if (isFirst()) {
                schedule.first = null;
                schedule.advance();
            } else {
                priority.waiters.remove(this);
            }
        }
    }

    /** A queue of stride scheduling: the one with the smallest position is next, and advances by its stride. */
    private static final class Priority {
        final double stride;
        final Deque<Turn> waiters = new ArrayDeque<>();
        double position;

        Priority(int weight) {
            stride = 1.0 / weight;
        }
    }

    private final List<Priority> priorities = new ArrayList<>();
    private Turn first;
    /** Position of the last turn that began. */
    private double served;
    /** Earliest time of the next check. */
    private long next = System.nanoTime();
    /** Refusals in a row that reported no time, or failures in a row. */
    private int attempts;
    private boolean closed;

    Schedule(int... weights) {
        for (int weight : weights) {
            if (weight <= 0) {
                throw new IllegalArgumentException("weights must be positive: " + weight);
            }
            priorities.add(new Priority(weight));
        }
    }

    Turn enter(int index, Condition changed) {
        Priority priority = priorities.get(index);
        if (priority.waiters.isEmpty()) {
            // A priority without waiters saves nothing up.
            priority.position = Math.max(priority.position, served);
        }
        Turn turn = new Turn(this, priority, changed);
        priority.waiters.add(turn);
        if (first == null) {
            advance();
        }
        return turn;
    }

    boolean hasWaiters() {
        return first != null;
    }

    long next() {
        return next;
    }

    void refused(Verdict verdict) {
        verdict.delay().ifPresentOrElse(delay -> {
            attempts = 0;
            next = System.nanoTime() + Backoff.withJitter(delay).toNanos();
        }, this::failed);
    }

    void failed() {
        next = System.nanoTime() + Backoff.delay(Duration.ZERO, attempts).toNanos();
        attempts++;
    }

    void allowed() {
        attempts = 0;
    }

    boolean isClosed() {
        return closed;
    }

    void close() {
        closed = true;
        for (Priority priority : priorities) {
            priority.waiters.forEach(turn -> turn.changed.signal());
        }
        if (first != null) {
            first.changed.signal();
        }
    }

    private void advance() {
        Priority best = null;
        for (Priority priority : priorities) {
            if (!priority.waiters.isEmpty() && (best == null || priority.position < best.position)) {
                best = priority;
            }
        }
        if (best != null) {
            served = best.position;
            first = best.waiters.remove();
            first.changed.signal();
        }
    }
}
