//! The pure part of Sluicegate: requests, rules, matching, algorithms, and verdicts.
//!
//! A request flows one way: [`rules::RuleSet`] matches its descriptors, [`Plan`] makes a [`Group`](store::Group) of
//! checks for them, a [`Store`] settles the group against its counters (see [`settle`]), and [`respond`] turns the
//! decisions into a [`Verdict`].
//!
//! **Invariants**: nothing in this crate does I/O, reads a clock or the environment, or depends on a wire format. No
//! function panics, except at a failed `debug_assert!` in debug builds. Algorithms compute with integers below 2^53, so
//! that Lua, whose only number is a double, computes the same results.

pub mod algorithm;
pub mod defect_fixes;
pub mod explain;
pub mod key;
pub mod limit;
pub mod metadata;
pub mod plan;
mod policy;
pub mod request;
mod respond;
pub mod response_body;
pub mod rule;
pub mod rules;
mod settle;
pub mod store;
mod time;

pub use key::CounterKey;
pub use limit::{Algorithm, Limit, Window};
pub use plan::Plan;
pub use policy::{Counting, OnFailure};
pub use request::{InvalidRequest, Request, RequestError, TooLarge};
pub use respond::{Code, DescriptorStatus, Verdict, respond};
pub use response_body::ResponseBody;
pub use rule::{CurrentLimit, Rule};
pub use settle::{CounterAccess, RefusalTally, settle};
pub use store::{Answers, Batch, Charge, Check, Decision, Store, StoreError};
pub use time::Time;
