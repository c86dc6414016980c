//! `sluicectl status`.

use std::{
    process::ExitCode,
    time::{Duration, SystemTime},
};

use clap::Args;
use serde_json::{Value, json};
use sluicegate_proto::{
    sluicegate::admin::v1::{GetStatusResponse, RedisServerStatus},
    text::{descriptor::printable_bytes, duration_from_proto},
};

use super::{AdminServerSettings, Failure, OutputFormat, output};

/// Settings of `sluicectl status`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct StatusSettings {
    /// Output format.
    #[arg(long, env = "SLUICECTL_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// The admin listener.
    #[command(flatten)]
    pub server: AdminServerSettings,
}

const AFTER_HELP: &str = "\
Exit codes:
  0  healthy
  1  unhealthy: the server drains, its store is degraded, or its limits files have mistakes
  2  invalid command line, or an unusable file in it
  3  the server is unreachable, too slow, or returned an error";

/// Prints the status of the server. The exit code is 1 if it is unhealthy.
pub(super) async fn run(settings: &StatusSettings) -> Result<ExitCode, Failure> {
    let client = settings.server.client()?;
    let status = client
        .status()
        .await
        .map_err(|source| Failure::Call { endpoint: client.endpoint().clone(), source })?;
    output::print(
        settings.output,
        &match settings.output {
            OutputFormat::Text => text(&status),
            OutputFormat::Json => json(&status).to_string(),
        },
    );
    Ok(ExitCode::from(u8::from(!is_healthy(&status))))
}

fn is_healthy(status: &GetStatusResponse) -> bool {
    status.serving
        && status.store.as_ref().is_none_or(|store| !store.degraded)
        && status.config.as_ref().is_none_or(|config| config.rejected.is_none())
}

fn text(status: &GetStatusResponse) -> String {
    let up = status.uptime.map(duration_from_proto).unwrap_or_default();
    let up = humantime::format_duration(Duration::from_secs(up.as_secs()));
    let serving = if status.serving { "serving" } else { "not serving" };
    let mut lines = vec![format!(
        "sluicegate {}, {serving}, up {up}",
        printable_bytes(status.version.as_bytes())
    )];
    if let Some(config) = &status.config {
        let s = |count| if count == 1 { "" } else { "s" };
        lines.push(format!(
            "limits    generation {}, {} rule{}, {} warning{}, loaded {}",
            config.generation,
            config.rules,
            s(config.rules),
            config.warnings,
            s(config.warnings),
            config.loaded_at.map_or_else(|| "at an unknown time".to_owned(), time),
        ));
        if let Some(rejected) = &config.rejected {
            let at = rejected.at.map_or_else(|| "at an unknown time".to_owned(), time);
            lines.push(format!("          files rejected {at}, these limits stay in force:"));
            let mistakes = rejected.mistakes.iter();
            lines.extend(
                mistakes.map(|it| format!("            {}", printable_bytes(it.as_bytes()))),
            );
            if rejected.left_out > 0 {
                lines.push(format!("            and {} more", rejected.left_out));
            }
        }
    }
    if let Some(store) = &status.store {
        let degraded = if store.degraded { "degraded" } else { "ok" };
        lines.push(format!("store     {}, {degraded}", printable_bytes(store.kind.as_bytes())));
        lines.extend(store.redis.iter().map(redis_text));
        lines.push(format!(
            "memory    {} of {} counters, {} refusals remembered",
            store.memory_counters, store.memory_counters_max, store.deny_cache_refusals
        ));
    }
    lines.push(format!("requests  {} of {} in progress", status.in_flight, status.in_flight_max));
    lines.push(format!("replicas  {}", status.live_replicas));
    lines.join("\n")
}

fn redis_text(server: &RedisServerStatus) -> String {
    let RedisServerStatus { connections, connections_wanted, .. } = server;
    let breaker = if server.breaker_open { "open" } else { "closed" };
    let complaint = match &*server.complaint {
        "" => String::new(),
        complaint => format!(": {}", printable_bytes(complaint.as_bytes())),
    };
    let address = printable_bytes(server.address.as_bytes());
    format!(
        "          {address}  breaker {breaker}, {connections} of {connections_wanted} connections{complaint}"
    )
}

fn time(at: impl TryInto<SystemTime>) -> String {
    let at = at.try_into().unwrap_or(SystemTime::UNIX_EPOCH);
    humantime::format_rfc3339_seconds(at).to_string()
}

/// Every key is always present; an unknown value is null.
fn json(status: &GetStatusResponse) -> Value {
    let config = status.config.as_ref().map(|config| {
        let rejected = config.rejected.as_ref().map(|rejected| {
            json!({
                "at": rejected.at.map(time),
                "mistakes": rejected.mistakes,
                "left_out": rejected.left_out,
            })
        });
        json!({
            "generation": config.generation,
            "loaded_at": config.loaded_at.map(time),
            "rules": config.rules,
            "warnings": config.warnings,
            "rejected": rejected,
        })
    });
    let store = status.store.as_ref().map(|store| {
        let redis = store.redis.iter().map(|server| {
            json!({
                "address": server.address,
                "breaker": if server.breaker_open { "open" } else { "closed" },
                "complaint": (!server.complaint.is_empty()).then_some(&server.complaint),
                "connections": server.connections,
                "connections_wanted": server.connections_wanted,
            })
        });
        json!({
            "kind": store.kind,
            "degraded": store.degraded,
            "redis": redis.collect::<Vec<_>>(),
            "memory_counters": store.memory_counters,
            "memory_counters_max": store.memory_counters_max,
            "deny_cache_refusals": store.deny_cache_refusals,
        })
    });
    json!({
        "version": status.version,
        "uptime_seconds": status.uptime.map(|up| duration_from_proto(up).as_secs()),
        "serving": status.serving,
        "config": config,
        "store": store,
        "in_flight": status.in_flight,
        "in_flight_max": status.in_flight_max,
        "live_replicas": status.live_replicas,
    })
}
