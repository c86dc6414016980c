//! The flag or variable under test, with a folder and the commands that get it.

use std::{fs, sync::Arc};

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{Authority, Finished, Sluicegate, binary, finish, hits, until};
use tempfile::TempDir;
use tokio::process::Command;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

/// A flag with a value, which commands get as a flag or as an environment variable.
#[derive(Clone)]
pub(super) struct Given {
    /// The flag's name, such as `--limits`.
    pub(super) name: &'static str,
    pub(super) variable: Option<String>,
    pub(super) value: String,
    /// `--name=value`.
    pub(super) joined: String,
    pub(super) folder: Arc<TempDir>,
}

/// Flags that need no value.
pub(super) const SWITCHES: [&str; 5] = [
    "--shadow-mode",
    "--quota-mode",
    "--merge-domains",
    "--dynamic-metadata",
    "--health-requires-store",
];

impl Given {
    /// The same flag with another value.
    pub(super) fn with(&self, value: &str) -> Self {
        let joined = format!("{}={value}", self.name);
        Self { value: value.to_owned(), joined, ..self.clone() }
    }

    /// The same folder with another flag, which changes nothing: for a command that must not get the flag under test.
    pub(super) fn without_flag(&self) -> Self {
        Self { name: "--output", variable: None, value: "text".to_owned(), ..self.clone() }
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    pub(super) fn flags(&self) -> Vec<&str> {
        match self.variable {
            Some(_) => vec![],
            None if SWITCHES.contains(&self.name) => vec![&self.joined],
            None if self.name.starts_with("--") => vec![self.name, &self.value],
            None => vec![&self.value],
        }
    }

    pub(super) fn environment(&self) -> Vec<(&str, &str)> {
        self.variable.iter().map(|name| (name.as_str(), self.value.as_str())).collect()
    }

    /// The command `serve`, with LIMITS unless the flag under test sets the limits. That flag replaces the same one in
    /// `flags`.
    pub(super) fn serve_command(&self, flags: &[(&str, &str)]) -> Command {
        let limits = self.path("limits.yaml");
        let mut all = self.flags();
        let flags = flags.iter().filter(|(flag, _)| *flag != self.name);
        all.extend(flags.flat_map(|(flag, value)| [*flag, *value]));
        if self.name != "--limits" && !all.contains(&"--limits") {
            all.extend(["--limits", &limits]);
        }
        Sluicegate::command(&all, &self.environment())
    }

    pub(super) async fn serve(&self, flags: &[(&str, &str)]) -> Sluicegate {
        let lives_as_long = tempfile::tempdir().unwrap();
        Sluicegate::started(lives_as_long, self.serve_command(flags)).await
    }

    pub(super) async fn run(
        &self,
        program: &str,
        command: &str,
        flags: &[(&str, &str)],
    ) -> Finished {
        let mut all = Command::new(binary(program));
        all.args(command.split(' ')).args(self.flags()).envs(self.environment());
        for (flag, value) in flags {
            if *flag != self.name {
                all.args([flag, value]);
            }
        }
        finish(all).await
    }

    pub(super) async fn sluicectl(&self, flags: &[(&str, &str)]) -> Finished {
        self.run_request("check", flags).await
    }

    pub(super) async fn explain(&self, flags: &[(&str, &str)]) -> Finished {
        self.run_request("explain", flags).await
    }

    pub(super) async fn run_request(&self, command: &str, flags: &[(&str, &str)]) -> Finished {
        let request = [("--domain", "api"), ("--descriptor", "user=bob"), ("--timeout", "30s")];
        let flags: Vec<_> = request
            .into_iter()
            .filter(|(name, _)| flags.iter().all(|(flag, _)| flag != name))
            .chain(flags.iter().copied())
            .collect();
        self.run("sluicectl", command, &flags).await
    }

    /// Runs `sluicectl check` over TLS with the certificate of `caller`, without the flag under test.
    pub(super) async fn call(&self, server: &Sluicegate, caller: Option<&str>) -> Finished {
        self.call_over_tls(&["check", "--server", &format!("https://{}", server.grpc)], caller)
            .await
    }

    /// The same with `sluicectl explain` and the admin listener.
    pub(super) async fn call_admin(&self, server: &Sluicegate, caller: Option<&str>) -> Finished {
        let address = format!("https://{}", server.admin);
        self.call_over_tls(&["explain", "--admin-server", &address], caller).await
    }

    pub(super) async fn call_over_tls(&self, arguments: &[&str], caller: Option<&str>) -> Finished {
        let mut command = Command::new(binary("sluicectl"));
        command.args(arguments);
        command.args(["--domain", "api", "--descriptor", "user=bob", "--timeout", "30s"]);
        command.args(["--tls-ca", &self.path("ca.pem")]);
        if let Some(caller) = caller {
            command.args(["--tls-cert", &self.path(&format!("{caller}.pem"))]);
            command.args(["--tls-key", &self.path(&format!("{caller}.key"))]);
        }
        finish(command).await
    }

    /// Writes certificates of one authority: for a server, and for callers.
    pub(super) fn certify(&self, server: &str, callers: &[(&str, &str)]) {
        let authority = Authority::new("all");
        self.write("ca.pem", &authority.pem());
        authority.issue(server).write(self.folder.path(), "server");
        for (file, name) in callers {
            authority.issue(name).write(self.folder.path(), file);
        }
    }
}

pub(super) async fn code(server: &Sluicegate, value: &str, count: u64) -> Code {
    server.should_rate_limit(hits("user", value, count)).await.unwrap().overall_code()
}

pub(super) async fn left(server: &Sluicegate, value: &str) -> u32 {
    let answer = server.should_rate_limit(hits("user", value, 0)).await.unwrap();
    answer.statuses[0].limit_remaining
}

pub(super) async fn until_in_flight(server: &Sluicegate, calls: f64) {
    until("requests in flight", || async {
        (server.metric("sluicegate_requests_in_flight").await == calls).then_some(())
    })
    .await;
}

pub(super) async fn until_waiting(server: &Sluicegate, calls: f64) {
    until("calls that wait for their messages", || async {
        (server.metric("sluicegate_grpc_waiting_calls").await == calls).then_some(())
    })
    .await;
}

pub(super) async fn over_bound(server: &Sluicegate, bound: &str) -> f64 {
    server.metric(&format!("sluicegate_requests_over_bound_total{{bound=\"{bound}\"}}")).await
}

pub(super) async fn bound_met(server: &Sluicegate, bound: &str) -> f64 {
    server.metric(&format!("sluicegate_grpc_bounds_met_total{{grpc_bound=\"{bound}\"}}")).await
}

pub(super) async fn health(server: &Sluicegate) -> ServingStatus {
    let mut client = HealthClient::new(server.channel().await);
    client.check(HealthCheckRequest::default()).await.unwrap().into_inner().status()
}

pub(super) fn one_line(finished: &Finished, code: i32, names: &[&str]) {
    let text = &finished.stderr;
    assert_eq!((finished.code, text.lines().count()), (code, 1), "{text}");
    for name in names {
        assert!(text.contains(name), "{name}: {text}");
    }
}

/// The flag's name, also if the command gets the variable.
pub(super) fn long(given: &Given) -> String {
    let Some(variable) = &given.variable else { return given.name.to_owned() };
    let (_program, name) = variable.split_once('_').unwrap();
    let name = name.to_lowercase().replace('_', "-");
    format!("--{name}")
}
