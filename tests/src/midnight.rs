//! Limits a day are counted from midnight, UTC.

use std::time::{Duration, SystemTime};

const DAY: u64 = 86_400;

/// Waits for midnight if a test would have to begin just before it.
pub async fn away_from_midnight() {
    away_from_midnight_for(Duration::from_secs(120)).await;
}

/// Waits for midnight if less than `span` is left before it.
pub async fn away_from_midnight_for(span: Duration) {
    let left = until_midnight();
    if left < span.as_secs() {
        tokio::time::sleep(Duration::from_secs(left + 1)).await;
    }
}

/// Seconds until the next midnight.
///
/// # Panics
/// The clock shows a time before 1970.
#[must_use]
pub fn until_midnight() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    DAY - now.as_secs() % DAY
}
