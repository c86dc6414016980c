//! The servers to measure: all run at the same time, and one at a time gets a load.

use std::{env, fmt, fs, path::PathBuf, time::Duration};

use sluicegate_tests::{Cluster, Process, Redis, Sluicegate, binary, until};
use tokio::{io::AsyncReadExt, net::TcpStream, process::Command};

use crate::{load, metrics::Metrics};

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Decodes the request and answers a constant.
    Empty,
    /// Sluicegate with counters in memory.
    Memory,
    /// Sluicegate with counters in one Redis.
    Redis,
    /// Sluicegate with counters in a cluster of three primaries.
    Cluster,
}

impl Variant {
    /// All kinds. The first is the baseline of the others.
    pub(crate) const ALL: [Self; 4] = [Self::Empty, Self::Memory, Self::Redis, Self::Cluster];

    /// Whether the server uses Redis.
    pub(crate) const fn has_redis(self) -> bool {
        matches!(self, Self::Redis | Self::Cluster)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Empty => "empty",
            Self::Memory => "memory",
            Self::Redis => "one Redis",
            Self::Cluster => "cluster",
        })
    }
}

/// The stores of the servers.
pub(crate) struct Stores {
    /// One Redis server.
    pub(crate) redis: Redis,
    cluster: Cluster,
}

impl Stores {
    /// Starts the stores.
    pub(crate) async fn start() -> Self {
        let (redis, cluster) = tokio::join!(Redis::start(), Cluster::of_primaries());
        Self { redis, cluster }
    }

    /// CPU time that the variant's Redis servers have used so far; zero without Redis.
    pub(crate) fn cpu(&self, variant: Variant) -> Duration {
        match variant {
            Variant::Empty | Variant::Memory => Duration::ZERO,
            Variant::Redis => self.redis.cpu(),
            Variant::Cluster => self.cluster.nodes.iter().map(Redis::cpu).sum(),
        }
    }
}

/// The program that runs as a server.
#[derive(Clone, Debug)]
pub(crate) enum Program {
    /// A binary of the server, and the empty server of this program.
    Plain(PathBuf),
    /// Both, with the counting allocator.
    Counted,
}

/// A running server.
pub(crate) struct Server {
    /// The kind.
    pub(crate) variant: Variant,
    running: Running,
    /// Address that reports its number of allocations.
    counting: Option<String>,
}

enum Running {
    Empty { process: Process, address: String },
    Sluicegate(Sluicegate),
}

impl Server {
    /// Starts the server and waits until it can decide.
    pub(crate) async fn start(variant: Variant, program: &Program, stores: &Stores) -> Self {
        let mut running = match variant {
            Variant::Empty => Running::empty(program).await,
            Variant::Memory => Running::sluicegate("memory", program).await,
            Variant::Redis => Running::sluicegate(&stores.redis.url(), program).await,
            Variant::Cluster => Running::sluicegate(&stores.cluster.url(), program).await,
        };
        let counting = match program {
            Program::Plain(_) => None,
            Program::Counted => {
                let address = |line: &str| Some(line.strip_prefix("counting at ")?.to_owned());
                Some(running.process_mut().line("the counts", address).await)
            }
        };
        Self { variant, running, counting }
    }

    /// The gRPC address of the server.
    pub(crate) fn address(&self) -> &str {
        match &self.running {
            Running::Empty { address, .. } => address,
            Running::Sluicegate(sluicegate) => &sluicegate.grpc,
        }
    }

    /// CPU time that the server has used so far.
    pub(crate) fn cpu(&self) -> Duration {
        match &self.running {
            Running::Empty { process, .. } => process.cpu(),
            Running::Sluicegate(sluicegate) => sluicegate.process.cpu(),
        }
    }

    /// The current metrics; `None` for the empty server.
    pub(crate) async fn metrics(&self) -> Option<Metrics> {
        match &self.running {
            Running::Empty { .. } => None,
            Running::Sluicegate(sluicegate) => {
                Some(Metrics::new(&sluicegate.get("/metrics").await.1))
            }
        }
    }

    /// Number of allocations so far.
    ///
    /// # Panics
    /// The server does not have the counting allocator.
    pub(crate) async fn allocations(&self) -> u64 {
        let address = self.counting.as_deref().unwrap();
        let mut count = String::new();
        let mut counts = TcpStream::connect(address).await.unwrap();
        counts.read_to_string(&mut count).await.unwrap();
        count.trim().parse().unwrap()
    }
}

impl Running {
    async fn empty(program: &Program) -> Self {
        let mut command = Command::new(match program {
            Program::Plain(_) => env::current_exe().unwrap(),
            Program::Counted => counted(),
        });
        command.arg("empty-server");
        let mut process = Process::start(command);
        let address = |line: &str| Some(line.strip_prefix("serving at ")?.to_owned());
        let address = process.line("the empty server to serve", address).await;
        Self::Empty { process, address }
    }

    async fn sluicegate(store: &str, program: &Program) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (domain, limits) in load::limits() {
            fs::write(folder.path().join(format!("{domain}.yaml")), limits).unwrap();
        }
        let limits = folder.path().to_str().unwrap().to_owned();
        // A request that waits behind 199 others must be decided by the store, and not by a failure policy at its
        // deadline.
        let mut flags = vec!["--limits", &limits, "--store", store, "--decision-timeout", "10s"];
        let binary = match program {
            Program::Plain(binary) => binary.clone(),
            Program::Counted => {
                // Both programs share a Redis, but no counters.
                flags.extend(["--key-prefix", "counted:"]);
                counted()
            }
        };
        let command = Sluicegate::command_of(&binary, &flags, &[]);
        let sluicegate = Sluicegate::started(folder, command).await;
        until("the store to be well", || async {
            (sluicegate.metric("sluicegate_store_degraded").await == 0.0).then_some(())
        })
        .await;
        Self::Sluicegate(sluicegate)
    }

    const fn process_mut(&mut self) -> &mut Process {
        match self {
            Self::Empty { process, .. } => process,
            Self::Sluicegate(sluicegate) => &mut sluicegate.process,
        }
    }
}

/// The program with the counting allocator.
pub(crate) fn counted() -> PathBuf {
    binary("sluicegate-bench-counted")
}
