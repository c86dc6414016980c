//! `sluicectl reset`.

use std::{
    ffi::OsString,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use serde_json::json;
use sluicegate_proto::sluicegate::admin::v1::{ResetCounterResult, ResetTenantResponse};

use super::{
    AdminServerSettings, Failure, OutputFormat,
    descriptor::{descriptor_parser, printable_bytes},
    output,
};
use sluicegate_client::{AdminClient, Check, CheckError, Descriptor};

/// Settings of `sluicectl reset`.
#[derive(Args, Clone, Debug)]
pub struct ResetSettings {
    /// What to reset.
    #[command(subcommand)]
    pub what: ResetWhat,
}

/// What to reset.
#[derive(Clone, Debug, Subcommand)]
pub enum ResetWhat {
    /// Reset the counters of one descriptor, or one counter by its key.
    ///
    /// The counters are unused afterwards. Calls Sluicegate's admin listener, which writes an audit log line.
    Counter(ResetCounterSettings),

    /// Reset every counter of one tenant in one domain.
    ///
    /// The counters are found and reset step by step. Counters of other tenants and of other domains are not
    /// affected. Calls Sluicegate's admin listener, which writes audit log lines.
    Tenant(ResetTenantSettings),
}

/// Settings of `sluicectl reset counter`.
#[derive(Args, Clone, Debug)]
#[command(after_help = COUNTER_HELP)]
pub struct ResetCounterSettings {
    /// Domain of the descriptor.
    #[arg(long, value_name = "DOMAIN", required_unless_present = "key")]
    pub domain: Option<String>,

    /// Reset the counters of this descriptor. Repeatable.
    #[arg(long = "descriptor", value_name = "KEY=VALUE,...", required_unless_present = "key")]
    #[arg(value_parser = descriptor_parser(), conflicts_with = "key")]
    pub descriptors: Vec<Descriptor>,

    /// Reset only the counter of the limit with this name.
    #[arg(long, value_name = "NAME", requires = "descriptors")]
    pub limit: Option<String>,

    /// Reset the counter with this key, as shown by explain and peek.
    #[arg(long, value_name = "KEY", conflicts_with = "domain")]
    pub key: Option<String>,

    /// Show what would be reset, without a reset.
    #[arg(long)]
    pub dry_run: bool,

    /// Output format.
    #[arg(long, env = "SLUICECTL_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// The admin listener.
    #[command(flatten)]
    pub server: AdminServerSettings,
}

const COUNTER_HELP: &str = "\
Try it:
  sluicectl reset counter --domain api --descriptor tenant=acme,user=bob --dry-run
  sluicectl reset counter --key 's1:fw:60:{acme}:api:tenant:user=bob'

Exit codes:
  0  reset, or would be reset
  1  nothing to reset: no counter in use, or no such domain or limit
  2  invalid command line, or an unusable file in it
  3  the server or its store is unreachable, too slow, or returned an error";

/// Settings of `sluicectl reset tenant`.
#[derive(Args, Clone, Debug)]
#[command(after_help = TENANT_HELP)]
pub struct ResetTenantSettings {
    /// Domain of the counters.
    #[arg(long, value_name = "DOMAIN")]
    pub domain: String,

    /// Value of the entry that the domain names with `tenant`.
    #[arg(long, value_name = "VALUE")]
    pub tenant: OsString,

    /// Show how many counters would be reset, without a reset.
    #[arg(long)]
    pub dry_run: bool,

    /// Do not ask for confirmation. Outside of a terminal there is no confirmation.
    #[arg(long)]
    pub yes: bool,

    /// Output format.
    #[arg(long, env = "SLUICECTL_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// The admin listener.
    #[command(flatten)]
    pub server: AdminServerSettings,
}

const TENANT_HELP: &str = "\
Try it:
  sluicectl reset tenant --domain api --tenant acme --dry-run

Exit codes:
  0  reset, or would be reset
  1  nothing to reset: no counter in use, or no such domain; or not confirmed
  2  invalid command line, or an unusable file in it
  3  the server or its store is unreachable, too slow, or returned an error";

/// Resets counters. The exit code is 1 if no counter was in use.
pub(super) async fn run(settings: &ResetSettings) -> Result<ExitCode, Failure> {
    match &settings.what {
        ResetWhat::Counter(settings) => counter(settings).await,
        ResetWhat::Tenant(settings) => tenant(settings).await,
    }
}

async fn counter(settings: &ResetCounterSettings) -> Result<ExitCode, Failure> {
    let client = settings.server.client()?;
    let dry_run = settings.dry_run;
    let mut results = Vec::new();
    let reset = reset_each(settings, &client, &mut results).await;
    let endpoint = client.endpoint();
    let outcome = match reset.map_err(|source| Failure::from_lookup(endpoint, source)) {
        Err(failure) if results.is_empty() => return Err(failure),
        outcome => outcome,
    };
    let used = results.iter().filter(|result| result.was_used).count();
    output::print(
        settings.output,
        &match settings.output {
            OutputFormat::Text if results.is_empty() => "no limit applies".to_owned(),
            OutputFormat::Text => {
                let lines = results.iter().map(|result| {
                    let what = match (result.was_used, dry_run) {
                        (true, false) => "reset      ",
                        (true, true) => "would reset",
                        (false, _) => "not in use ",
                    };
                    format!("{what}  {}", result.counter_key)
                });
                lines.collect::<Vec<_>>().join("\n")
            }
            OutputFormat::Json => {
                let counters = results.iter().map(
                |result| json!({ "counter_key": result.counter_key, "was_used": result.was_used }),
            );
                json!({ "dry_run": dry_run, "counters": counters.collect::<Vec<_>>() }).to_string()
            }
        },
    );
    outcome.map(|()| ExitCode::from(u8::from(used == 0)))
}

/// Resets the counter of `--key`, or those of each descriptor, until a call fails. `results` has the completed resets.
async fn reset_each(
    settings: &ResetCounterSettings,
    client: &AdminClient,
    results: &mut Vec<ResetCounterResult>,
) -> Result<(), CheckError> {
    let dry_run = settings.dry_run;
    if let Some(key) = &settings.key {
        results.extend(client.reset_counter_by_key(key, dry_run).await?.results);
        return Ok(());
    }
    let domain = settings.domain.as_deref().unwrap_or_default();
    let limit = settings.limit.as_deref().unwrap_or_default();
    for descriptor in &settings.descriptors {
        let check = Check::new(domain).descriptors([descriptor.clone()]);
        results.extend(client.reset_descriptor(check, limit, dry_run).await?.results);
    }
    Ok(())
}

async fn tenant(settings: &ResetTenantSettings) -> Result<ExitCode, Failure> {
    let client = settings.server.client()?;
    if !settings.dry_run && !settings.yes && !confirmed(settings, &client) {
        return Ok(ExitCode::FAILURE);
    }
    let failed = |source| Failure::from_lookup(client.endpoint(), source);
    let (tenant, dry_run) = (settings.tenant.as_encoded_bytes(), settings.dry_run);
    let mut stream =
        client.reset_tenant(&settings.domain, tenant, dry_run).await.map_err(failed)?;
    let mut last = ResetTenantResponse::default();
    while let Some(progress) = stream.next().await.map_err(failed)? {
        last = progress;
        if !last.complete && io::stderr().is_terminal() {
            let _unseen = write!(io::stderr(), "\r{} counters so far", last.counters);
        }
    }
    if io::stderr().is_terminal() {
        let _unseen = write!(io::stderr(), "\r\x1b[K");
    }
    let ResetTenantResponse { counters, complete, more } = last;
    output::print(settings.output, &match settings.output {
        OutputFormat::Text => {
            let at_least = if more { "at least " } else { "" };
            let what = if dry_run { "would be reset" } else { "reset" };
            let s = if counters == 1 { "" } else { "s" };
            format!("{at_least}{counters} counter{s} {what}")
        }
        OutputFormat::Json => {
            json!({ "dry_run": dry_run, "counters": counters, "complete": complete, "more": more })
                .to_string()
        }
    });
    Ok(ExitCode::from(u8::from(counters == 0)))
}

/// Asks for confirmation in a terminal. Without a terminal the reset is confirmed.
fn confirmed(settings: &ResetTenantSettings, client: &AdminClient) -> bool {
    if !io::stdin().is_terminal() {
        return true;
    }
    let _unseen = write!(
        io::stderr(),
        "reset every counter of tenant {} in domain {} at {}? [y/N] ",
        printable_bytes(settings.tenant.as_encoded_bytes()),
        printable_bytes(settings.domain.as_bytes()),
        client.endpoint(),
    );
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}
