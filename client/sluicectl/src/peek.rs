//! `sluicectl peek`.

use std::{ffi::OsString, process::ExitCode};

use clap::Args;
use serde_json::{Value, json};
use sluicegate_proto::{
    sluicegate::admin::v1::{
        CounterState, LimitExplanation, PeekCountersResponse, TenantCounter,
        limit_explanation::State,
    },
    text::{
        duration_from_proto,
        explanation::{self, rule_name},
    },
};

use super::{
    AdminServerSettings, Failure, OutputFormat,
    descriptor::{descriptor_parser, entries, printable_bytes},
    output,
};
use sluicegate_client::{AdminClient, Check, Descriptor};

/// Settings of `sluicectl peek`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct PeekSettings {
    /// Domain of the counters.
    #[arg(long, value_name = "DOMAIN")]
    pub domain: String,

    /// Show the counters of this descriptor. Repeatable.
    #[arg(long = "descriptor", value_name = "KEY=VALUE,...", required_unless_present = "tenant")]
    #[arg(value_parser = descriptor_parser(), conflicts_with = "tenant")]
    pub descriptors: Vec<Descriptor>,

    /// Show every counter of this tenant: the value of the entry that the domain names with `tenant`.
    #[arg(long, value_name = "VALUE")]
    pub tenant: Option<OsString>,

    /// Maximum number of counters of the tenant.
    #[arg(long, value_name = "COUNT", default_value = "1000", conflicts_with = "descriptors")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,

    /// Output format.
    #[arg(long, env = "SLUICECTL_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// The admin listener.
    #[command(flatten)]
    pub server: AdminServerSettings,
}

const AFTER_HELP: &str = "\
Try it:
  sluicectl peek --domain api --descriptor tenant=acme,user=bob
  sluicectl peek --domain api --tenant acme

Exit codes:
  0  success
  1  no counters: no limit applies, the tenant has none, or the domain does not exist
  2  invalid command line, or an unusable file in it
  3  the server or its store is unreachable, too slow, or returned an error";

/// Prints the counters, without a charge.
pub(super) async fn run(settings: &PeekSettings) -> Result<ExitCode, Failure> {
    let client = settings.server.client()?;
    match &settings.tenant {
        Some(tenant) => list_tenant(settings, &client, tenant.as_encoded_bytes()).await,
        None => peek_descriptors(settings, &client).await,
    }
}

async fn peek_descriptors(
    settings: &PeekSettings,
    client: &AdminClient,
) -> Result<ExitCode, Failure> {
    let descriptors = settings.descriptors.iter().cloned();
    let peeked = client
        .peek(Check::new(&settings.domain).descriptors(descriptors))
        .await
        .map_err(|source| Failure::Call { endpoint: client.endpoint().clone(), source })?;
    output::print(
        settings.output,
        &match settings.output {
            OutputFormat::Text => text(&peeked),
            OutputFormat::Json => json(&peeked).to_string(),
        },
    );
    let counters = peeked.descriptors.iter().flat_map(|it| &it.counters);
    let limits: Vec<_> = counters.map(|counter| counter.limit.as_ref()).collect();
    Ok(exit_code(&limits))
}

/// 3 if a counter was not read, 1 if there are no counters, otherwise 0.
fn exit_code(limits: &[Option<&LimitExplanation>]) -> ExitCode {
    let unanswered = |limit: &&LimitExplanation| matches!(limit.state, Some(State::Unanswered(_)));
    ExitCode::from(match limits.iter().flatten().any(unanswered) {
        true => 3,
        false => u8::from(limits.is_empty()),
    })
}

fn text(peeked: &PeekCountersResponse) -> String {
    let mut lines = Vec::new();
    for descriptor in &peeked.descriptors {
        lines.push(entries(&descriptor.entries));
        match &descriptor.rule {
            Some(rule) => lines.push(format!("    rule {}", rule_name(rule))),
            None if descriptor.counters.is_empty() => lines.push("    no limit applies".to_owned()),
            None => {}
        }
        for counter in &descriptor.counters {
            if let Some(limit) = &counter.limit {
                explanation::render_limit(&mut lines, limit);
            }
            lines.push(format!("      hash     {}", counter.key_hash));
        }
    }
    lines.join("\n")
}

/// Every key is always present; an unknown value is null.
fn json(peeked: &PeekCountersResponse) -> Value {
    let descriptors = peeked.descriptors.iter().map(|descriptor| {
        let counters = descriptor.counters.iter().map(|counter| {
            let mut json = counter.limit.as_ref().map_or(Value::Null, output::limit);
            output::insert(&mut json, "key_hash", json!(counter.key_hash));
            json
        });
        json!({
            "descriptor": output::entries(&descriptor.entries),
            "rule": descriptor.rule.as_ref().map(output::rule),
            "counters": counters.collect::<Vec<_>>(),
        })
    });
    json!({ "descriptors": descriptors.collect::<Vec<_>>() })
}

async fn list_tenant(
    settings: &PeekSettings,
    client: &AdminClient,
    tenant: &[u8],
) -> Result<ExitCode, Failure> {
    let failed = |source| Failure::from_lookup(client.endpoint(), source);
    let mut pages = client
        .list_tenant_counters(&settings.domain, tenant, settings.limit)
        .await
        .map_err(failed)?;
    let (mut counters, mut more) = (Vec::new(), false);
    while let Some(page) = pages.next().await.map_err(failed)? {
        counters.extend(page.counters);
        more |= page.more;
    }
    counters.sort_by(|a, b| a.counter_key.cmp(&b.counter_key));
    output::print(
        settings.output,
        &match settings.output {
            OutputFormat::Text if counters.is_empty() => "no counters in use".to_owned(),
            OutputFormat::Text => tenant_text(&counters, more),
            OutputFormat::Json => json!({
                "counters": counters.iter().map(tenant_json).collect::<Vec<_>>(),
                "more": more,
            })
            .to_string(),
        },
    );
    let limits: Vec<_> = counters.iter().map(|counter| counter.limit.as_ref()).collect();
    Ok(exit_code(&limits))
}

fn tenant_text(counters: &[TenantCounter], more: bool) -> String {
    let mut table = output::Table::new(["COUNTER", "USED", "RESETS IN", "RULE", "HASH"]);
    for counter in counters {
        let (used, resets) = match counter.limit.as_ref().map(|limit| (limit, &limit.state)) {
            Some((limit, Some(State::Counter(CounterState { used, reset_after, .. })))) => {
                let resets = reset_after.map(|span| output::format_span(duration_from_proto(span)));
                (format!("{used} of {}", limit.capacity), resets.unwrap_or_default())
            }
            Some((_, Some(State::Unanswered(why)))) => {
                (printable_bytes(why.as_bytes()), String::new())
            }
            Some((_, None)) | None => ("?".to_owned(), String::new()),
        };
        let rule = counter.rule.as_ref().map_or_else(
            || "(unknown rule)".to_owned(),
            |rule| printable_bytes(rule.path.as_bytes()),
        );
        table.row([counter.counter_key.clone(), used, resets, rule, counter.key_hash.clone()]);
    }
    let more = if more { "\nand more; see --limit" } else { "" };
    format!("{}{more}", table.text())
}

fn tenant_json(counter: &TenantCounter) -> Value {
    json!({
        "counter_key": counter.counter_key,
        "key_hash": counter.key_hash,
        "hash_slot": counter.hash_slot,
        "rule": counter.rule.as_ref().map(output::rule),
        "limit": counter.limit.as_ref().map(output::limit),
    })
}
