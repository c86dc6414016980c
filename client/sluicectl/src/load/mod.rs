//! `sluicectl load`.

mod drive;
mod history;
mod report;
mod template;
mod verify;

use std::{num::NonZeroU64, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use sluicegate_core::{
    RequestError,
    algorithm::HITS_MAX,
    rules::{CompileOptions, Findings, LocatedMistake, RuleSet},
};
use sluicegate_limits::{
    FileContents,
    arguments::{CompileArguments, ModeArguments},
};
use sluicegate_proto::text::descriptor;
use thiserror::Error;

pub use self::template::{InvalidTemplate, Template};
use self::{
    drive::{Load, Until, drive},
    template::{ConflictingPlaceholders, RequestGenerator, template_parser},
    verify::Verifier,
};
use super::{Failure, OutputFormat, output, server::ConnectionSettings, shared_flags::SharedFlags};
use sluicegate_client::{Client, ConnectError, Endpoint};

/// Maximum of `--callers`. Each caller is a task with a call in progress.
const CALLERS_MAX: i64 = 10_000;

/// Maximum of `--rate`.
const RATE_MAX: f64 = 1e6;

/// Maximum of `--zipf`.
const ZIPF_MAX: f64 = 10.0;

/// Maximum number of draws that are matched against the limits files before the run.
const SAMPLES_MAX: usize = 10_000;

/// Maximum of `--tolerance`. With more, most limits could not be verified.
const TOLERANCE_MAX: Duration = Duration::from_secs(3600);

/// Settings of `sluicectl load`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct LoadSettings {
    /// Domain of the requests. Not needed if the files of --limits describe one domain only.
    #[arg(long, value_name = "DOMAIN", required_unless_present = "limits")]
    pub domain: Option<String>,

    /// Descriptor of each request, as in `sluicectl check`. Repeat the flag for requests with several descriptors.
    ///
    /// In a value, {N} is replaced by a random number from 1 to N, for each request. Placeholders of the same key have
    /// the same number in a request, so `tenant={10}` and `tenant={10},user={500}` are about one tenant.
    #[arg(long = "descriptor", value_name = "KEY=VALUE,...", required = true)]
    #[arg(value_parser = template_parser())]
    pub descriptors: Vec<Template>,

    /// Hits of each request. 0 peeks and charges nothing.
    #[arg(long, value_name = "HITS", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=HITS_MAX))]
    pub hits: u64,

    /// Send this many requests.
    #[arg(long, value_name = "COUNT", conflicts_with = "duration", help_heading = "Traffic")]
    pub count: Option<NonZeroU64>,

    /// Send requests for this long. Reports requests that were due but not sent.
    #[arg(long, value_name = "DURATION", default_value = "10s", help_heading = "Traffic")]
    #[arg(value_parser = positive_duration)]
    pub duration: Duration,

    /// Requests per second, of all callers together; latency then counts from when a request was due. Without it each
    /// caller sends as soon as it has an answer.
    #[arg(long, value_name = "NUMBER", help_heading = "Traffic", value_parser = rate)]
    pub rate: Option<f64>,

    /// Maximum number of requests in progress. With 1, each is sent after the answer to the one before.
    #[arg(long, value_name = "COUNT", default_value = "1", help_heading = "Traffic")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=CALLERS_MAX))]
    pub callers: u16,

    /// Skew of the numbers of placeholders: n is drawn with a weight of 1 / n^EXPONENT (Zipf). 0: uniform.
    #[arg(long, value_name = "EXPONENT", default_value = "0", help_heading = "Traffic")]
    #[arg(value_parser = zipf)]
    pub zipf: f64,

    /// Seed of the random numbers.
    #[arg(long, value_name = "NUMBER", default_value = "1", help_heading = "Traffic")]
    pub seed: u64,

    /// Limits files of the server, or folders of them. Descriptors that match no rule are an error then.
    #[arg(long, value_name = "PATH", num_args = 1.., value_delimiter = ',', help_heading = "Limits")]
    pub limits: Vec<PathBuf>,

    /// Settings of the server about reading the files.
    #[command(flatten, next_help_heading = "Limits")]
    pub compiling: SharedFlags<CompileArguments>,

    /// Settings of the server for all rules.
    #[command(flatten, next_help_heading = "Limits")]
    pub modes: SharedFlags<ModeArguments>,

    /// Compare the answers with what an exact limiter would have admitted in the same time. Other callers must not use
    /// the counters during the run.
    #[arg(long, requires = "limits", help_heading = "Verification")]
    pub verify: bool,

    /// Maximum drift of the servers' clocks from this machine's clock during the run.
    #[arg(long, value_name = "DURATION", default_value = "10ms", help_heading = "Verification")]
    #[arg(value_parser = tolerance)]
    pub tolerance: Duration,

    /// Format of the report.
    #[arg(long, env = "SLUICECTL_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// gRPC listeners of the servers: http://HOST:PORT, https://HOST:PORT or unix:PATH. Several are called in turn, as
    /// replicas of one service.
    #[arg(
        long,
        env = "SLUICECTL_SERVER",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:8081",
        help_heading = "Server"
    )]
    pub server: Vec<Endpoint>,

    /// The connections.
    #[command(flatten, next_help_heading = "Server")]
    pub connection: ConnectionSettings,
}

const AFTER_HELP: &str = "\
Try it:
  sluicectl load --domain login --descriptor email=eve@example.com --count 101
  sluicectl load --limits limits/ --descriptor 'tenant={10},user={500}' --zipf 1 --rate 1000 --callers 50 --verify

Exit codes:
  0  done; with --verify: no hit was admitted past a limit
  1  done; with --verify: hits were admitted past a limit
  2  invalid command line, or an unusable file in it
  3  a server could not be reached, or no request was answered";

/// Why a load failed.
#[derive(Debug, Error)]
pub(super) enum LoadFailure {
    #[error("--limits: {first}{}", more_mistakes(*more))]
    Limits { first: String, more: usize },
    #[error("--domain is needed, because the limits files describe {0} domains")]
    WhichDomain(usize),
    #[error("--domain {0}: the limits files describe no such domain")]
    NoDomain(String),
    #[error("--descriptor {0}: no rule of the limits files matches it")]
    NoRule(String),
    #[error(transparent)]
    ConflictingPlaceholders(#[from] ConflictingPlaceholders),
    #[error("--descriptor: {0}")]
    Request(#[from] RequestError),
    #[error(transparent)]
    Latency(#[from] hdrhistogram::CreationError),
    #[error(transparent)]
    Unreachable(ConnectError),
    #[error("no request was answered: {0}")]
    Unanswered(String),
}

impl LoadFailure {
    /// 2 for errors of the command line, 3 for errors of the servers.
    pub(super) const fn exit_code(&self) -> u8 {
        match self {
            Self::Limits { .. }
            | Self::WhichDomain(_)
            | Self::NoDomain(_)
            | Self::NoRule(_)
            | Self::ConflictingPlaceholders(_)
            | Self::Request(_) => 2,
            Self::Latency(_) | Self::Unreachable(_) | Self::Unanswered(_) => 3,
        }
    }
}

fn more_mistakes(more: usize) -> String {
    match more {
        0 => String::new(),
        more => format!("; and {more} more, see `sluicegate validate`"),
    }
}

/// Sends the requests and prints the report.
pub(super) async fn run(settings: &LoadSettings) -> Result<ExitCode, Failure> {
    let requests = RequestGenerator::new(&settings.descriptors, settings.zipf, settings.seed)
        .map_err(LoadFailure::from)?;
    let rules = settings.rules()?;
    let domain = settings.domain(rules.as_ref())?;
    if let Some(rules) = &rules {
        require_rules(rules, &domain, &requests)?;
    }
    let load = Load {
        domain: domain.clone(),
        requests,
        hits: settings.hits,
        rate: settings.rate,
        callers: settings.callers.into(),
        until: settings
            .count
            .map_or(Until::Elapsed(settings.duration), |count| Until::Count(count.get())),
        keeps_history: settings.verify,
    };
    let result = drive(settings.clients().await?, load).await.map_err(LoadFailure::from)?;
    let verified = rules.as_ref().filter(|_| settings.verify).map(|rules| {
        Verifier {
            rules,
            domain: &domain,
            requests: &result.requests,
            hits: settings.hits,
            tolerance: i64::try_from(settings.tolerance.as_micros()).unwrap_or(i64::MAX),
        }
        .verify(&result.history)
    });
    output::print(
        settings.output,
        &match settings.output {
            OutputFormat::Text => report::text(settings, &domain, &result, verified.as_ref()),
            OutputFormat::Json => {
                report::json(settings, &domain, &result, verified.as_ref()).to_string()
            }
        },
    );
    let counts = &result.counts;
    if let Some((error, _)) = counts.errors.iter().next()
        && counts.sent() == counts.failed()
    {
        return Err(LoadFailure::Unanswered(error.clone()).into());
    }
    let over = verified.is_some_and(|verified| verified.over() > 0);
    Ok(if over { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl LoadSettings {
    /// The rules of `--limits`, if it is set.
    fn rules(&self) -> Result<Option<RuleSet>, LoadFailure> {
        if self.limits.is_empty() {
            return Ok(None);
        }
        let rejected = |mistakes: Findings<LocatedMistake>| LoadFailure::Limits {
            first: mistakes.lines().next().unwrap_or_default(),
            more: mistakes.total().saturating_sub(1),
        };
        let contents = FileContents::read(&self.limits, self.compiling.0.read_bounds.bounds());
        let options = CompileOptions { modes: self.modes.0.modes(), ..self.compiling.0.options() };
        contents.compile(&options).map(Some).map_err(rejected)
    }

    fn domain(&self, rules: Option<&RuleSet>) -> Result<String, LoadFailure> {
        match (&self.domain, rules) {
            (Some(domain), Some(rules)) if rules.domain(domain).is_none() => {
                Err(LoadFailure::NoDomain(descriptor::printable_bytes(domain.as_bytes())))
            }
            (Some(domain), _) => Ok(domain.clone()),
            (None, rules) => {
                let mut domains = rules.into_iter().flat_map(RuleSet::domains);
                let first = domains.next().map(|domain| domain.name.to_string());
                let more = domains.count();
                let count = usize::from(first.is_some()) + more;
                first.filter(|_| more == 0).ok_or(LoadFailure::WhichDomain(count))
            }
        }
    }

    /// A connected client of each server.
    async fn clients(&self) -> Result<Arc<[Client]>, Failure> {
        let mut clients = Vec::with_capacity(self.server.len());
        for server in &self.server {
            let client = self.connection.builder(server).connect().await;
            clients.push(client.map_err(|error| match error {
                unreachable @ ConnectError::Unreachable { .. } => {
                    Failure::Load(LoadFailure::Unreachable(unreachable))
                }
                other => Failure::Connect(other),
            })?);
        }
        Ok(clients.into())
    }
}

/// Checks that each descriptor matches a rule for at least one of the sampled draws.
fn require_rules(
    rules: &RuleSet,
    domain: &str,
    requests: &RequestGenerator,
) -> Result<(), LoadFailure> {
    let mut first_descriptors = None;
    let mut matched: Vec<bool> = Vec::new();
    for draw in requests.samples(SAMPLES_MAX) {
        let descriptors = requests.descriptors(&draw);
        let matches = verify::match_rules(rules, domain, &descriptors)?;
        matched.resize(matches.len(), false);
        matched.iter_mut().zip(matches).for_each(|(any, matches)| *any |= matches);
        if matched.iter().all(|it| *it) {
            return Ok(());
        }
        first_descriptors.get_or_insert(descriptors);
    }
    let missing =
        first_descriptors.into_iter().flatten().zip(matched).find(|(_, matched)| !matched);
    missing.map_or(Ok(()), |(entries, _)| {
        let entries = entries.iter().map(|(key, value)| (&**key, &**value));
        Err(LoadFailure::NoRule(descriptor::render(entries)))
    })
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, |it| it > 0.0 && it <= RATE_MAX, &format!("above 0, and {RATE_MAX} at most"))
}

fn zipf(text: &str) -> Result<f64, String> {
    number(text, |it| (0.0..=ZIPF_MAX).contains(&it), &format!("from 0 to {ZIPF_MAX}"))
}

fn number(text: &str, is_valid: impl Fn(f64) -> bool, bounds: &str) -> Result<f64, String> {
    let number = text.parse().map_err(|_| "not a number".to_owned())?;
    if is_valid(number) { Ok(number) } else { Err(format!("must be {bounds}")) }
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if duration.is_zero() { Err("must be above 0s".to_owned()) } else { Ok(duration) }
}

fn tolerance(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if duration <= TOLERANCE_MAX {
        return Ok(duration);
    }
    Err(format!("must be {} at most", humantime::format_duration(TOLERANCE_MAX)))
}
