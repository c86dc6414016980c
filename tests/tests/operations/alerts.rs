//! Alert rules, by promtool and by a real Prometheus.
