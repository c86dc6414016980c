//! The examples for Envoy and Istio.
