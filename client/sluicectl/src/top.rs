//! `sluicectl top`.

mod live;
mod rows;
mod screen;

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use sluicegate_proto::{sluicegate::admin::v1::TopKind, text::printable};

use super::{Failure, OutputFormat, admin_server::AdminServerListSettings, output, print_error};
use rows::{CounterRow, CounterRows, TopResults};
use sluicegate_client::describe_error;

/// Settings of `sluicectl top`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct TopSettings {
    /// Which counters to show.
    #[arg(long, value_name = "KIND", default_value = "denied")]
    pub kind: Kind,

    /// Maximum number of counters.
    #[arg(long, value_name = "COUNT", default_value = "20")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,

    /// Show only counters of this domain.
    #[arg(long, value_name = "DOMAIN", default_value = "", hide_default_value = true)]
    pub domain: String,

    /// Refresh interval of the live table.
    #[arg(long, env = "SLUICECTL_INTERVAL", value_name = "DURATION", default_value = "1s")]
    #[arg(value_parser = interval)]
    pub interval: Duration,

    /// Print one table and exit, also in a terminal.
    #[arg(long)]
    pub once: bool,

    /// Output format. JSON is printed once.
    #[arg(long, env = "SLUICECTL_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// The admin listeners.
    #[command(flatten)]
    pub servers: AdminServerListSettings,
}

/// Lists of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Counters that refuse most.
    Denied,
    /// Counters that allow hits near their limits.
    Near,
}

impl Kind {
    /// Name on the command line and in JSON.
    const fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Near => "near",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Denied => Self::Near,
            Self::Near => Self::Denied,
        }
    }

    const fn to_wire(self) -> TopKind {
        match self {
            Self::Denied => TopKind::Denied,
            Self::Near => TopKind::Near,
        }
    }
}

const AFTER_HELP: &str = "\
In the live table:
  d n  tab       denied, near their limits, toggle
  < >  left right  select the sort column
  r              reverse the order
  p  space       pause
  j k  up down   scroll
  q  esc         quit

Exit codes:
  0  success
  2  invalid command line, or an unusable file in it
  3  a server is unreachable, too slow, or returned an error; the results of the others are printed";

/// Minimum refresh interval.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(span) if span < INTERVAL_MIN => {
            Err(format!("must be at least {}", humantime::format_duration(INTERVAL_MIN)))
        }
        Ok(span) => Ok(span),
        Err(error) => Err(error.to_string()),
    }
}

/// Shows the counters: in a terminal as a live table, otherwise once.
pub(super) async fn run(settings: &TopSettings) -> Result<ExitCode, Failure> {
    let clients = settings.servers.clients()?;
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if is_terminal && !settings.once && settings.output == OutputFormat::Text {
        live::run(settings, clients).await.map_err(Failure::Terminal)?;
        return Ok(ExitCode::SUCCESS);
    }
    let TopResults { rows, mut failures } = rows::fetch(&clients, settings, settings.kind).await;
    // If no server replied, only the failures are reported.
    if rows.servers > 0 {
        output::print(
            settings.output,
            &match settings.output {
                OutputFormat::Text => text(settings.kind, &rows),
                OutputFormat::Json => json(settings.kind, &rows, &failures).to_string(),
            },
        );
    }
    let Some(last) = failures.pop() else { return Ok(ExitCode::SUCCESS) };
    failures.iter().for_each(|failure| print_error(failure));
    Err(last)
}

fn text(kind: Kind, rows: &CounterRows) -> String {
    let mut lines = vec![rows.title(kind)];
    lines.extend(rows.notes());
    if !rows.rows.is_empty() {
        let mut table = output::Table::new(rows::HEADINGS);
        for row in &rows.rows {
            table.row(row.cells());
        }
        lines.push(table.text());
    }
    lines.join("\n")
}

fn json(kind: Kind, rows: &CounterRows, failures: &[Failure]) -> Value {
    let counters = rows.rows.iter().map(|row: &CounterRow| {
        json!({
            "domain": row.domain,
            "rule": row.rule,
            "key": row.key,
            "rate": row.rate,
            "count": row.count,
            "error": row.error,
            "total": row.total,
            "last_seen_seconds": row.last_seen.as_secs_f64(),
            "used_permille": row.used_permille,
        })
    });
    json!({
        "kind": kind.name(),
        "window_seconds": rows.window.as_secs_f64(),
        "hashed": rows.hashed,
        "servers": rows.servers,
        "failures": failures.iter().map(|failure| describe_error(failure)).collect::<Vec<_>>(),
        "missed": rows.missed,
        "hashes_differ": rows.hashes_differ,
        "counters": counters.collect::<Vec<_>>(),
    })
}

/// Text of a server with control characters escaped.
fn escape(text: &str) -> String {
    printable(text).into_owned()
}
