//! The text of `/healthcheck?verbose`.

use std::fmt::Write as _;

use sluicegate_store::Stack;

/// One line for the server, one for the store, and one for each Redis server.
pub(super) fn describe(serving: bool, store: &Stack) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a `String` cannot fail.
        let _infallible = writeln!(text, "{name}: {value}");
    };
    line("health", if serving { "serving" } else { "not serving" });
    line("store", if store.is_degraded() { "degraded" } else { "ok" });
    if let Some(redis) = store.as_redis() {
        let nodes = redis.status();
        if nodes.is_empty() {
            line("redis", "no server found yet");
        }
        for node in nodes {
            let state = node.error.as_deref().unwrap_or("ok");
            line(&format!("redis {}", node.address), state);
        }
        line("live replicas", &store.live_replicas().to_string());
    }
    text
}
