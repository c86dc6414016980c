//! Services with scripted answers, for the tests of the clients.

#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on fails"
)]

pub mod admin;
pub mod service;
