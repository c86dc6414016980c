//! The Helm chart, by the real Helm, over a matrix of values.

mod chart;
mod metadata;
mod objects;
mod refusals;
mod running;
mod schemas;
