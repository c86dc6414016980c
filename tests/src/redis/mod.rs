//! The real Redis: one server, a cluster, or servers that sentinels watch.

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

/// A server that does not answer by then is taken for one that cannot.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A running Redis server, which keeps nothing on disk.
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

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its address for `--store`, without user and password.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.setup.has_tls() { "rediss" } else { "redis" };
        format!("{scheme}://{}", self.address())
    }

    /// Asks as redis-cli does; the elements of a list come as lines.
    ///
    /// # Panics
    /// The server answers with an error.
    pub async fn query(&self, command: &[&str]) -> String {
        let answer = self.try_query(command).await;
        answer.unwrap_or_else(|error| panic!("{command:?} to {}: {error}", self.port))
    }

    /// Asks as redis-cli does.
    ///
    /// # Errors
    /// The answer of the server or an error of redis-cli, or that there is none.
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
    /// The server cannot be asked.
    pub async fn info(&self, section: &str, field: &str) -> Result<Option<String>, String> {
        let info = self.try_query(&["INFO", section]).await?;
        let mut lines = info.lines().map(str::trim_end);
        let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value.map(str::to_owned))
    }

    /// How often a command was called since the start or CONFIG RESETSTAT; also from scripts.
    pub async fn calls(&self, command: &str) -> u64 {
        let statistics = self.info("commandstats", &format!("cmdstat_{command}")).await.unwrap();
        let Some(statistics) = statistics else { return 0 };
        let calls = statistics.strip_prefix("calls=").unwrap().split(',').next().unwrap();
        calls.parse().unwrap()
    }

    /// The keys that fit a pattern, in order.
    pub async fn keys(&self, pattern: &str) -> BTreeSet<String> {
        let keys = self.query(&["KEYS", pattern]).await;
        keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
    }

    /// Makes it stop in the middle of whatever it does, as a machine that is out of memory does.
    pub fn pause(&mut self) {
        self.process.signal(Signal::SIGSTOP);
        self.state = State::Paused;
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.process.signal(Signal::SIGCONT);
        self.state = State::Running;
    }

    /// Kills it, without a chance to say goodbye.
    pub async fn kill(&mut self) {
        self.process.signal(Signal::SIGKILL);
        self.process.ended().await;
        self.state = State::Ended;
    }

    /// Starts it again after [`Redis::kill`], in the same place and empty.
    ///
    /// # Panics
    /// It does not come up.
    pub async fn restart(&mut self) {
        assert_eq!(self.state, State::Ended, "is still there");
        let started = self.setup.launch(self.folder.path()).await;
        self.process = started.unwrap_or_else(|said| panic!("does not come up\n{said}"));
        self.state = State::Running;
    }

    /// Its log since the start.
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

    /// Waits until it has all that its primary had when it began to follow, if it follows one.
    async fn until_synced(&self) {
        until("the replica to be in step", || async {
            let link = self.info("replication", "master_link_status").await.ok()?;
            link.is_none_or(|link| link == "up").then_some(())
        })
        .await;
    }
}
