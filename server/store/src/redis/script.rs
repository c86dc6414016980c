//! The Lua scripts that settle checks inside Redis: one for each algorithm, and one with all of them.
//!
//! Each is the concatenation of the Lua files that it needs, so that a call with fixed windows does not
//! define five algorithms.

use std::sync::LazyLock;

use sha1::{Digest as _, Sha1};
use sluicegate_core::{Algorithm, Check};

/// A script, and the digest by which `EVALSHA` calls it.
#[derive(Debug, PartialEq, Eq)]
pub struct Script {
    /// The whole text.
    pub text: String,
    /// SHA-1 digest of the text, in hex.
    pub sha1: String,
}

static BY_ALGORITHM: LazyLock<[Script; Algorithm::ALL.len()]> =
    LazyLock::new(|| Algorithm::ALL.map(|algorithm| Script::with_algorithms(&[algorithm])));

static WITH_ALL: LazyLock<Script> = LazyLock::new(|| Script::with_algorithms(&Algorithm::ALL));

/// The files that settle checks with any algorithms, in order.
const SETTLE: [&str; 7] = [
    include_str!("../../../../lua/settle/constants.lua"),
    include_str!("../../../../lua/settle/log_list.lua"),
    include_str!("../../../../lua/settle/limits.lua"),
    include_str!("../../../../lua/settle/counters.lua"),
    include_str!("../../../../lua/settle/checks.lua"),
    include_str!("../../../../lua/settle/chains.lua"),
    include_str!("../../../../lua/settle.lua"),
];

impl Script {
    /// The smallest script that can settle these checks.
    #[must_use]
    pub fn for_checks<'a>(checks: impl IntoIterator<Item = &'a Check>) -> &'static Self {
        let mut algorithms = checks.into_iter().map(|check| check.limit.algorithm());
        let first = algorithms.next().unwrap_or_default();
        if algorithms.any(|algorithm| algorithm != first) {
            return &WITH_ALL;
        }
        let position = Algorithm::ALL.iter().position(|&algorithm| algorithm == first);
        position.and_then(|position| BY_ALGORITHM.get(position)).unwrap_or(&WITH_ALL)
    }

    /// Every script that a call may need.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        BY_ALGORITHM.iter().chain([&*WITH_ALL])
    }

    fn with_algorithms(algorithms: &[Algorithm]) -> Self {
        // All algorithms are declared, because Redis raises an error if a script reads an undefined global.
        let names = Algorithm::ALL.map(Algorithm::name).join(", ");
        let mut text = format!("local {names}\n");
        text += include_str!("../../../../lua/stored.lua");
        if algorithms.iter().any(|&algorithm| uses_mul_div(algorithm)) {
            text += include_str!("../../../../lua/mul_div.lua");
        }
        text.extend(algorithms.iter().map(|&algorithm| file(algorithm)));
        text += &format!("local algorithms = {{ {names} }}\n");
        text.extend(SETTLE);
        let sha1 = format!("{:x}", Sha1::digest(&text));
        Self { text, sha1 }
    }
}

const fn file(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow => include_str!("../../../../lua/fixed_window.lua"),
        Algorithm::SlidingWindowLog => include_str!("../../../../lua/sliding_window_log.lua"),
        Algorithm::SlidingWindowCounter => {
            include_str!("../../../../lua/sliding_window_counter.lua")
        }
        Algorithm::TokenBucket => include_str!("../../../../lua/token_bucket.lua"),
        Algorithm::Gcra => include_str!("../../../../lua/gcra.lua"),
    }
}

/// Whether the algorithm's file uses the functions of `mul_div.lua`.
const fn uses_mul_div(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::SlidingWindowCounter | Algorithm::TokenBucket)
}
