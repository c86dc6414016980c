//! The Helm chart, by the real Helm, over a matrix of values.
