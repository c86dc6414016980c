//! A chaos run: replicas with a real Redis Cluster under load, for a minute or longer, while primaries fail over, Redis
//! servers and replicas pause, slots move, scripts are flushed, replicas are killed and callers disconnect. A seed
//! selects the requests ([traffic]) and the faults ([schedule]). Every request and its outcome is recorded ([record]).
//! At the end the sums are compared with the limits and with the counters ([verdict]).
//!
//! `CHAOS_SEED` and `CHAOS_SECONDS` set the seed and the duration. A seed repeats the schedule of faults, but not the
//! order in which processes run, on which requests and answers depend.

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
