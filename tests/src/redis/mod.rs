//! Starts real Redis: one server, a cluster, or servers with sentinels.

mod cluster;
mod sentinels;
mod setup;

use std::{collections::BTreeSet, time::Duration};

pub use cluster::{Cluster, Migration};
use nix::sys::signal::Signal;
pub use sentinels::Sentinels;
pub use setup::Setup;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{Process, finish, until};

/// Timeout of a reply.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A running Redis server without persistence.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    state: State,
    port: u16,
    setup: Setup,
    folder: TempDir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    Ended,
}

impl Redis {
    /// Starts a server with default settings.
    pub async fn start() -> Self {
        Setup::new().start().await
    }

    /// The address of the server.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The URL for `--store`, without user and password.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.setup.has_tls() { "rediss" } else { "redis" };
        format!("{scheme}://{}", self.address())
    }

    /// Sends a command by redis-cli. The elements of a list are lines.
    ///
    /// # Panics
    /// The server answers with an error.
    pub async fn query(&self, command: &[&str]) -> String {
        let answer = self.try_query(command).await;
        answer.unwrap_or_else(|error| panic!("{command:?} to {}: {error}", self.port))
    }

    /// Sends a command by redis-cli.
    ///
    /// # Errors
    /// The server replies with an error or not at all, or redis-cli fails.
    pub async fn try_query(&self, command: &[&str]) -> Result<String, String> {
        let mut client = self.client();
        client.arg("-e").args(command);
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, finish(client)).await;
        let answer = answer.map_err(|_| "no answer".to_owned())?;
        if answer.code == 0 {
            return Ok(answer.stdout.trim_end_matches('\n').to_owned());
        }
        Err(format!("{}{}", answer.stdout, answer.stderr))
    }

    /// CPU time that the server has used so far.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        self.process.cpu()
    }

    /// redis-cli with the flags that reach this server.
    fn client(&self) -> Command {
        self.setup.client(self.folder.path(), self.port)
    }

    /// A field of INFO.
    ///
    /// # Errors
    /// The server does not reply.
    pub async fn info(&self, section: &str, field: &str) -> Result<Option<String>, String> {
        let info = self.try_query(&["INFO", section]).await?;
        let mut lines = info.lines().map(str::trim_end);
        let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value.map(str::to_owned))
    }

    /// Number of calls of a command since the start or CONFIG RESETSTAT, including calls by scripts.
    pub async fn calls(&self, command: &str) -> u64 {
        let statistics = self.info("commandstats", &format!("cmdstat_{command}")).await.unwrap();
        let Some(statistics) = statistics else { return 0 };
        let calls = statistics.strip_prefix("calls=").unwrap().split(',').next().unwrap();
        calls.parse().unwrap()
    }

    /// The keys that match a pattern, in order.
    pub async fn keys(&self, pattern: &str) -> BTreeSet<String> {
        let keys = self.query(&["KEYS", pattern]).await;
        keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
    }

    /// Stops the process by SIGSTOP, at any point of its work, like a machine that hangs.
    pub fn pause(&mut self) {
        self.process.signal(Signal::SIGSTOP);
        self.state = State::Paused;
    }

    /// Lets a paused process continue.
    pub fn resume(&mut self) {
        self.process.signal(Signal::SIGCONT);
        self.state = State::Running;
    }

    /// Kills the process by SIGKILL.
    pub async fn kill(&mut self) {
        self.process.signal(Signal::SIGKILL);
        self.process.ended().await;
        self.state = State::Ended;
    }

    /// Restarts the server after [`Redis::kill`], on the same port and without keys.
    ///
    /// # Panics
    /// The server does not start.
    pub async fn restart(&mut self) {
        assert_eq!(self.state, State::Ended, "is still running");
        let started = self.setup.launch(self.folder.path()).await;
        self.process = started.unwrap_or_else(|output| panic!("does not start\n{output}"));
        self.state = State::Running;
    }

    /// The server's log since the start.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.output()
    }

    fn is_running(&self) -> bool {
        self.state == State::Running
    }

    async fn is_replica(&self) -> bool {
        self.info("replication", "role").await.is_ok_and(|role| role.as_deref() == Some("slave"))
    }

    /// Waits until the server, if it is a replica, has completed the initial synchronization with its primary.
    async fn until_synced(&self) {
        until("the replica to be in step", || async {
            let link = self.info("replication", "master_link_status").await.ok()?;
            link.is_none_or(|link| link == "up").then_some(())
        })
        .await;
    }
}
