//! Tests of every flag, on the command line and as an environment variable. A file for each group of `--help`.

mod admin_commands;
mod answers;
mod bounds;
mod check;
mod diff;
mod explain;
mod given;
mod grpc;
mod health;
mod http_and_admin;
mod load;
mod log_level;
mod settings_and_limits;
mod start;
mod store;
mod telemetry;
mod usage;
mod validate;

use std::{fs, future::Future, pin::Pin, sync::Arc, time::Duration};

use clap::{Arg, Command as Clap, CommandFactory};
use tokio::{sync::Semaphore, task::JoinSet};

use self::{
    admin_commands::{
        admin_ca, admin_client_cert, admin_output, admin_server, admin_server_name, admin_timeout,
        admin_token,
    },
    given::Given,
};

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 10}
";

type Check = Box<dyn Fn(Given) -> Pin<Box<dyn Future<Output = ()> + Send>>>;

struct Row {
    /// Command and flag, such as `serve --limits`.
    flag: &'static str,
    /// The value to test. `{folder}` is the folder of the test.
    value: &'static str,
    /// Why the flag has no environment variable.
    no_variable: Option<&'static str>,
    check: Check,
}

fn row<F: Future<Output = ()> + Send + 'static>(
    flag: &'static str,
    value: &'static str,
    check: impl Fn(Given) -> F + 'static,
) -> Row {
    Row { flag, value, no_variable: None, check: Box::new(move |given| Box::pin(check(given))) }
}

impl Row {
    fn without_variable(self, reason: &'static str) -> Self {
        Self { no_variable: Some(reason), ..self }
    }

    fn name(&self) -> &'static str {
        self.flag.rsplit_once(' ').unwrap().1
    }

    fn command(&self) -> &'static str {
        self.flag.split_once(' ').unwrap().0
    }

    fn variable(&self) -> Option<String> {
        let name = self.name().trim_start_matches('-').replace('-', "_").to_uppercase();
        let of_the_server = ["serve", "validate", "diff"].contains(&self.command());
        let prefix = if of_the_server { "SLUICEGATE" } else { "SLUICECTL" };
        self.no_variable.is_none().then(|| format!("{prefix}_{name}"))
    }
}

fn rows() -> Vec<Row> {
    let groups = [
        settings_and_limits::rows(),
        store::rows(),
        answers::rows(),
        telemetry::rows(),
        grpc::rows(),
        http_and_admin::rows(),
        usage::rows(),
        bounds::rows(),
        validate::rows(),
        diff::rows(),
        explain::rows(),
        log_level::rows(),
        health::rows(),
        check::rows(),
        load::rows(),
        admin_commands::rows(),
    ];
    let mut rows: Vec<_> = groups.into_iter().flatten().collect();
    for (command, _) in ADMIN_COMMANDS {
        let mut add = |flag: &str, value, check: AdminCheck| {
            let flag = Box::leak(format!("{command} {flag}").into_boxed_str());
            rows.push(row(flag, value, move |given| check(command, given)));
        };
        add("--output", "json", |command, given| Box::pin(admin_output(command, given)));
        add("--admin-server", "unix:{folder}/s.sock", |command, given| {
            Box::pin(admin_server(command, given))
        });
        add("--token-file", "{folder}/token", |command, given| {
            Box::pin(admin_token(command, given))
        });
        add("--timeout", "123ms", |command, given| Box::pin(admin_timeout(command, given)));
        add("--tls-ca", "{folder}/ca.pem", |command, given| Box::pin(admin_ca(command, given)));
        for flag in ["--tls-cert", "--tls-key"] {
            let value =
                if flag == "--tls-cert" { "{folder}/caller.pem" } else { "{folder}/caller.key" };
            add(flag, value, |command, given| Box::pin(admin_client_cert(command, given)));
        }
        add("--tls-server-name", "limits.example", |command, given| {
            Box::pin(admin_server_name(command, given))
        });
    }
    rows
}

type AdminCheck = fn(&'static str, Given) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Commands that call the admin listener, with their required arguments.
const ADMIN_COMMANDS: [(&str, &[(&str, &str)]); 7] = [
    ("rules", &[]),
    ("peek", &[("--domain", "api"), ("--descriptor", "user=bob")]),
    ("reset counter", &[("--domain", "api"), ("--descriptor", "user=bob")]),
    ("reset tenant", &[("--domain", "api"), ("--tenant", "bob")]),
    ("status", &[]),
    ("top", &[]),
    ("log-level", &[]),
];

/// Limits with users as tenants.
const TENANTS: &str = "
domain: api
tenant: user
descriptors:
  - key: user
    rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 10, name: some}
";

/// The counter's key of one tenant.
const BOB: &str = "s1:tb:86400:{bob}:api:user";

/// Every argument of every subcommand, with its command.
fn arguments() -> Vec<(String, Arg)> {
    fn walk(command: &Clap, path: &str, found: &mut Vec<(String, Arg)>) {
        assert!(path.is_empty() || command.get_about().is_some(), "{path} has no help");
        for argument in command.get_arguments() {
            let name = match argument.get_long() {
                Some(long) => format!("--{long}"),
                None => argument.get_value_names().unwrap()[0].to_string(),
            };
            found.push((format!("{path} {name}").trim_start().to_owned(), argument.clone()));
        }
        for inner in command.get_subcommands() {
            walk(inner, format!("{path} {}", inner.get_name()).trim_start(), found);
        }
    }
    let mut found = Vec::new();
    walk(&sluicegate::settings::Cli::command(), "", &mut found);
    walk(&sluicectl::Cli::command(), "", &mut found);
    found
}

#[test]
fn every_flag_has_a_row_a_variable_and_help() {
    let (rows, arguments) = (rows(), arguments());
    for row in &rows {
        let known = arguments.iter().filter(|(flag, _)| flag == row.flag).count();
        assert_eq!(known, 1, "{} is not a flag", row.flag);
    }
    for (flag, argument) in &arguments {
        let found: Vec<_> = rows.iter().filter(|row| row.flag == flag).collect();
        let [row] = found[..] else { panic!("{flag} has {} rows", found.len()) };
        let variable = argument.get_env().map(|name| name.to_str().unwrap().to_owned());
        assert_eq!(variable, row.variable(), "{flag}");
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        assert!(!help.trim().is_empty(), "{flag} has no help");
    }
}

/// Runs each row's check, once with the flag and once with the variable.
async fn assert_flags_take_effect(command: &str) {
    // A higher concurrency would be slower.
    let places = Arc::new(Semaphore::new(4));
    let mut checks = JoinSet::new();
    for row in rows().iter().filter(|row| row.flag.starts_with(command)) {
        for variable in [Some(None), row.variable().map(Some)].into_iter().flatten() {
            let how = variable.clone().unwrap_or_else(|| row.flag.to_owned());
            let folder = Arc::new(tempfile::tempdir().unwrap());
            fs::write(folder.path().join("limits.yaml"), LIMITS).unwrap();
            let value = row.value.replace("{folder}", folder.path().to_str().unwrap());
            let (name, joined) = (row.name(), format!("{}={value}", row.name()));
            let check = (row.check)(Given { name, variable, value, joined, folder });
            let places = Arc::clone(&places);
            checks.spawn(async move {
                let _place = places.acquire_owned().await.unwrap();
                let check = tokio::spawn(check);
                let done = tokio::time::timeout(Duration::from_secs(120), check).await;
                match done {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(format!("{how}: {error}")),
                    Err(_) => Some(format!("{how}: hangs")),
                }
            });
        }
    }
    let failed: Vec<_> = checks.join_all().await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test]
async fn flags_of_serve_take_effect() {
    assert_flags_take_effect("serve ").await;
}

#[tokio::test]
async fn flags_of_validate_take_effect() {
    assert_flags_take_effect("validate ").await;
}

#[tokio::test]
async fn flags_of_diff_take_effect() {
    assert_flags_take_effect("diff ").await;
}

#[tokio::test]
async fn flags_of_check_take_effect() {
    assert_flags_take_effect("check ").await;
}

#[tokio::test]
async fn flags_of_load_take_effect() {
    assert_flags_take_effect("load ").await;
}

#[tokio::test]
async fn flags_of_the_other_admin_commands_take_effect() {
    for command in ["rules ", "peek ", "reset ", "status ", "top ", "log-level "] {
        assert_flags_take_effect(command).await;
    }
}

#[tokio::test]
async fn flags_of_health_take_effect() {
    assert_flags_take_effect("health ").await;
}

#[tokio::test]
async fn flags_of_explain_take_effect() {
    assert_flags_take_effect("explain ").await;
}
