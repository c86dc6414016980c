package io.sluicegate.client;

/** A unit of time of Envoy's rate limit API. */
public enum Unit {
    /** One second. */
    SECOND(1),
    /** 60 seconds. */
    MINUTE(2),
    /** 60 minutes. */
    HOUR(3),
    /** 24 hours. */
    DAY(4),
    /** 7 days. Envoy's overrides have no week, but Sluicegate accepts one. */
    WEEK(7),
    /** A month of the service: Sluicegate has 30 days. */
    MONTH(5),
    /** A year of the service: Sluicegate has 365 days. */
    YEAR(6),
    /** None, or one of a later API. Not for overrides. */
    UNKNOWN(0);

    private final int number;

    Unit(int number) {
        this.number = number;
    }

    /** Returns the number in Envoy's messages, which overrides and limits share. */
    int number() {
        return number;
    }

    static Unit of(int number) {
        for (Unit unit : values()) {
            if (unit.number == number) {
                return unit;
            }
        }
        return UNKNOWN;
    }
}
