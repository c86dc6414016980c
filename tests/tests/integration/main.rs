//! The real server with real clients, Envoy and Redis.

// `cfg(test)` tells clippy that helpers beside the tests are test code too.
#[cfg(test)]
mod admin;
#[cfg(test)]
mod answers;
#[cfg(test)]
mod api;
#[cfg(test)]
mod apps;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod buf;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod envoy;
#[cfg(test)]
mod exactness;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod explain;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod flags;
#[cfg(test)]
mod framing;
#[cfg(test)]
mod guarded;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod json_headers;
#[cfg(test)]
mod late;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod load;
#[cfg(test)]
mod migration;
#[cfg(test)]
mod on_failure;
#[cfg(test)]
mod readme;
#[cfg(test)]
mod redis;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod response_bodies;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod settings_page;
#[cfg(test)]
mod signals;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod usage;
#[cfg(test)]
mod wire;
