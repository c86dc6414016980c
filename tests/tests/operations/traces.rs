//! Traces, from Envoy through the server to a real collector.
