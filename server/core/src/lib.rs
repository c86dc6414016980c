//! The pure part of Sluicegate: what a request asks, which rules it meets, how a batch of checks is
//! settled, and what is answered.
//!
//! A request flows one way: [`rules::RuleSet`] matches its descriptors, [`Plan`] turns them into a
//! [`Batch`] of checks, a [`Store`] settles the batch ([`settle`]) against its counters, and
//! [`respond`] turns the decisions into a [`Verdict`].
//!
//! **Invariant**: nothing here does I/O, reads a clock or the environment, or knows a wire format.
//! Every function is total, and all arithmetic is on integers below 2^53, so that the same steps in
//! a language whose only number is a double give the same results.

pub mod algorithm;
pub mod explain;
pub mod key;
pub mod limit;
pub mod mends;
pub mod metadata;
pub mod plan;
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
pub use request::{InvalidRequest, Request, RequestError, TooLarge};
pub use respond::{Code, CurrentLimit, Status, Verdict, respond};
pub use rule::{Counting, OnFailure, Rule};
pub use settle::{Counters, Tally, settle, settle_with};
pub use store::{Answers, Batch, Check, Decision, Store, StoreError, Take};
pub use time::Time;
