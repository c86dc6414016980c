//! The Helm chart, rendered by the real Helm with a matrix of values.

mod chart;
mod metadata;
mod objects;
mod refusals;
mod running;
mod schemas;
