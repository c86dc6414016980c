//! Operation of the server: metrics, traces, logs, the commands of operators, manifests, dashboards, alerts and
//! security.

// `cfg(test)` tells clippy that helpers beside the tests are test code too.
#[cfg(test)]
mod alertmanager;
#[cfg(test)]
mod alerts;
#[cfg(test)]
mod bounds;
#[cfg(test)]
mod ci_examples;
#[cfg(test)]
mod compose;
#[cfg(test)]
mod counters;
#[cfg(test)]
mod dashboards;
#[cfg(test)]
mod dependencies;
#[cfg(test)]
mod gateways;
#[cfg(test)]
mod health;
#[cfg(test)]
mod helm;
#[cfg(test)]
mod image;
#[cfg(test)]
mod logs;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod runbook;
#[cfg(test)]
mod threats;
#[cfg(test)]
mod top;
#[cfg(test)]
mod traces;
