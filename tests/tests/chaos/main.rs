//! A chaos run: replicas over a real cluster under load, for a minute or longer, while primaries fail over, Redis servers and
//! replicas pause, slots move, scripts are flushed, replicas are killed and callers leave. A seed chooses the requests
//! ([traffic]) and the faults ([schedule]). Every request and its outcome is recorded ([record]), and the sums are
//! compared at the end with the limits and with the counters ([verdict]).
//!
//! `CHAOS_SEED` and `CHAOS_SECONDS` choose the seed and the time. A seed repeats the schedule of faults, and not the order in
//! which processes run, on which requests and answers depend.

// `cfg(test)` tells clippy that helpers beside the tests are test code too.
#[cfg(test)]
mod faults;
#[cfg(test)]
mod record;
#[cfg(test)]
mod replicas;
#[cfg(test)]
mod run;
#[cfg(test)]
mod schedule;
#[cfg(test)]
mod traffic;
#[cfg(test)]
mod verdict;
