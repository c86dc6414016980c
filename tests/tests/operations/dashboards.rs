//! The Grafana dashboard: every query is one that Prometheus takes, of metrics that there are.
