//! The pure part of Sluicegate: requests, rules, the matching of both, the settling of checks, and the
//! verdict.
//!
//! A request flows one way: [`rules::RuleSet`] matches its descriptors, [`Plan`] turns them into a
//! [`Batch`] of checks, a [`Store`] settles the batch ([`settle`]) against its counters, and
//! [`respond`] turns the decisions into a [`Verdict`].
//!
//! **Invariant**: nothing here does I/O, reads a clock or the environment, or knows a wire format.
//! Every function is total, and all arithmetic is on integers below 2^53, so that a language whose
//! only number is a double computes the same results.

pub mod algorithm;
pub mod explain;
pub mod fixes;
pub mod key;
pub mod limit;
pub mod metadata;
pub mod plan;
mod policy;
pub mod request;
mod respond;
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
pub use respond::{Code, Status, Verdict, respond};
pub use rule::{CurrentLimit, Rule};
pub use settle::{Counters, RefusalTally, settle, settle_with};
pub use store::{Answers, Batch, Charge, Check, Decision, Store, StoreError};
pub use time::Time;
