//! `sluicectl rules`.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use sluicegate_proto::{
    sluicegate::admin::v1::{ListedLimit, ListedRule},
    text::{duration_from_proto, explanation::enum_name},
};

use super::{AdminServerSettings, Failure, OutputFormat, descriptor::printable_bytes, output};

/// Settings of `sluicectl rules`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct RulesSettings {
    /// Show only the rules of this domain.
    #[arg(long, value_name = "DOMAIN", default_value = "", hide_default_value = true)]
    pub domain: String,

    /// Show only the rules whose path has this prefix.
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub path: String,

    /// Output format.
    #[arg(long, env = "SLUICECTL_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// The admin listener.
    #[command(flatten)]
    pub server: AdminServerSettings,
}

const AFTER_HELP: &str = "\
Try it:
  sluicectl rules --domain api

Exit codes:
  0  rules found
  1  no rules found
  2  invalid command line, or an unusable file in it
  3  the server is unreachable, too slow, or returned an error";

/// Prints the rules, in the order of their files.
pub(super) async fn run(settings: &RulesSettings) -> Result<ExitCode, Failure> {
    let client = settings.server.client()?;
    let failed = |source| Failure::Call { endpoint: client.endpoint().clone(), source };
    let mut pages = client.rules(&settings.domain, &settings.path).await.map_err(failed)?;
    let mut rules = Vec::new();
    while let Some(page) = pages.next().await.map_err(failed)? {
        rules.extend(page.rules);
    }
    output::print(
        settings.output,
        &match settings.output {
            OutputFormat::Text if rules.is_empty() => "no such rules".to_owned(),
            OutputFormat::Text => text(&rules),
            OutputFormat::Json => {
                json!({ "rules": rules.iter().map(json).collect::<Vec<_>>() }).to_string()
            }
        },
    );
    Ok(ExitCode::from(u8::from(rules.is_empty())))
}

fn text(rules: &[ListedRule]) -> String {
    let mut table = output::Table::new(["DOMAIN", "RULE", "LIMIT", "POLICY", "PLACE"]);
    for rule in rules {
        let (path, location) = rule.rule.as_ref().map_or_else(Default::default, |rule| {
            (
                printable_bytes(rule.path.as_bytes()),
                format!("{}:{}", printable_bytes(rule.file.as_bytes()), rule.line),
            )
        });
        let policy = if rule.unlimited { String::new() } else { policy(rule) };
        let mut limits: Vec<String> = rule.limits.iter().map(limit_text).collect();
        if rule.unlimited {
            limits.push("unlimited".to_owned());
        }
        for (at, limit) in limits.into_iter().enumerate() {
            let once = |text: &str| if at == 0 { text.to_owned() } else { String::new() };
            let domain = printable_bytes(rule.domain.as_bytes());
            table.row([once(&domain), once(&path), limit, once(&policy), once(&location)]);
        }
    }
    table.text()
}

fn limit_text(limit: &ListedLimit) -> String {
    let (requests, unit) =
        (limit.requests_per_unit, enum_name(limit.unit().as_str_name(), "UNIT_"));
    let mut text = match limit.unit_multiplier {
        1 => format!("{requests} per {unit}"),
        units => format!("{requests} per {units} {unit}s"),
    };
    if !limit.name.is_empty() {
        text += &format!(" ({})", printable_bytes(limit.name.as_bytes()));
    }
    text += &format!(", {}", algorithm(limit));
    if limit.capacity != requests {
        text += &format!(", burst {}", limit.capacity);
    }
    text
}

fn policy(rule: &ListedRule) -> String {
    let mut text = format!("{}, on_failure {}", counting(rule), on_failure(rule));
    for (set, mode) in [(rule.shadow_mode, "shadow_mode"), (rule.quota_mode, "quota_mode")] {
        if set {
            text += &format!(", {mode}");
        }
    }
    if !rule.response_body.is_empty() {
        text += &format!(", response_body {}", printable_bytes(rule.response_body.as_bytes()));
    }
    text
}

fn algorithm(limit: &ListedLimit) -> String {
    enum_name(limit.algorithm().as_str_name(), "ALGORITHM_")
}

fn counting(rule: &ListedRule) -> String {
    enum_name(rule.counting().as_str_name(), "COUNTING_")
}

fn on_failure(rule: &ListedRule) -> String {
    enum_name(rule.on_failure().as_str_name(), "ON_FAILURE_")
}

/// Every key is always present; an unknown value is null.
fn json(rule: &ListedRule) -> Value {
    let limits = rule.limits.iter().map(|limit| {
        json!({
            "name": limit.name,
            "requests_per_unit": limit.requests_per_unit,
            "unit": enum_name(limit.unit().as_str_name(), "UNIT_"),
            "unit_multiplier": limit.unit_multiplier,
            "window_seconds": limit.window.map(|window| output::seconds(duration_from_proto(window))),
            "capacity": limit.capacity,
            "algorithm": algorithm(limit),
            "replaces": limit.replaces,
        })
    });
    json!({
        "domain": rule.domain,
        "tenant": (!rule.tenant.is_empty()).then_some(&rule.tenant),
        "rule": rule.rule.as_ref().map(output::rule),
        "unlimited": rule.unlimited,
        "limits": limits.collect::<Vec<_>>(),
        "counting": counting(rule),
        "on_failure": on_failure(rule),
        "shadow_mode": rule.shadow_mode,
        "quota_mode": rule.quota_mode,
        "response_body": (!rule.response_body.is_empty()).then_some(&rule.response_body),
    })
}
