//! Configuration and start of a Redis server.

use std::{
    fmt::Write as _,
    fs,
    net::TcpListener,
    ops::Range,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::process::Command;

use super::{Redis, State};
use crate::{Authority, Issued, Process};

/// Ports below those of outgoing connections, so that the port of a restarted server is still free. A cluster node also
/// uses its port + 10,000.
const PORTS: Range<u16> = 12_000..20_000;
const BUS: u16 = 10_000;

/// Settings of a Redis server.
#[derive(Clone, Debug)]
pub struct Setup {
    binary: PathBuf,
    sentinel: bool,
    config: String,
    certificates: Option<Certificates>,
    user: Option<(String, String)>,
}

#[derive(Clone, Debug)]
struct Certificates {
    authority: String,
    server: Issued,
}

impl Setup {
    /// Default settings: no limit of memory, no persistence.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sentinel: false,
            // By default, a primary waits five seconds for further replicas before a synchronization.
            config: "save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n".to_owned(),
            ..Self::sentinel()
        }
    }

    pub(super) fn sentinel() -> Self {
        Self {
            binary: "redis-server".into(),
            sentinel: true,
            config: String::new(),
            certificates: None,
            user: None,
        }
    }

    /// Uses another server program with the same protocol.
    #[must_use]
    pub fn binary(mut self, binary: PathBuf) -> Self {
        self.binary = binary;
        self
    }

    /// Adds lines to redis.conf.
    #[must_use]
    pub fn config(mut self, lines: &str) -> Self {
        writeln!(self.config, "{lines}").unwrap();
        self
    }

    /// Accepts only TLS. Clients need a certificate of the same authority, unless `tls-auth-clients no` is added.
    #[must_use]
    pub fn tls(mut self, authority: &Authority) -> Self {
        let server = authority.issue("127.0.0.1");
        self.certificates = Some(Certificates { authority: authority.pem(), server });
        self
    }

    /// Accepts only this user, who has all permissions.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        if name == "default" {
            return self.config(&format!("requirepass {password}"));
        }
        self.config(&format!("user default off\nuser {name} on >{password} ~* &* +@all"))
    }

    pub(super) const fn has_tls(&self) -> bool {
        self.certificates.is_some()
    }

    /// Starts the server on a free port.
    ///
    /// # Panics
    /// The server does not start.
    pub async fn start(self) -> Redis {
        let folder = tempfile::tempdir().unwrap();
        let mut output = String::new();
        // Another process may take the port before the start.
        for _ in 0..20 {
            let port = free_port();
            self.write(folder.path(), port);
            match self.launch(folder.path()).await {
                Ok(process) => {
                    return Redis { process, state: State::Running, port, setup: self, folder };
                }
                Err(printed) => output = printed,
            }
        }
        panic!("does not start\n{output}");
    }

    /// Starts a server with the folder's configuration; returns its output if that fails.
    pub(super) async fn launch(&self, folder: &Path) -> Result<Process, String> {
        let mut command = Command::new(&self.binary);
        command.arg(folder.join("redis.conf"));
        if self.sentinel {
            command.arg("--sentinel");
        }
        let mut process = Process::start(command);
        let ready = |line: &str| {
            let texts = ["Ready to accept connections", "Sentinel ID is"];
            texts.iter().any(|text| line.contains(text)).then_some(())
        };
        match process.line_unless_ended("the server to be ready", ready).await {
            Some(()) => Ok(process),
            None => Err(process.output()),
        }
    }

    fn write(&self, folder: &Path, port: u16) {
        let mut config = format!("bind 127.0.0.1\ndir \"{}\"\n", folder.display());
        match &self.certificates {
            None => writeln!(config, "port {port}").unwrap(),
            Some(Certificates { authority, server }) => {
                server.write(folder, "server");
                fs::write(folder.join("ca.pem"), authority).unwrap();
                writeln!(config, "port 0\ntls-port {port}").unwrap();
                config +=
                    "tls-cert-file server.pem\ntls-key-file server.key\ntls-ca-cert-file ca.pem\n";
                config += "tls-replication yes\ntls-cluster yes\n";
            }
        }
        fs::write(folder.join("redis.conf"), config + &self.config).unwrap();
    }

    /// redis-cli with the flags for the server with this port and folder.
    pub(super) fn client(&self, folder: &Path, port: u16) -> Command {
        let mut client = Command::new("redis-cli");
        client.current_dir(folder).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
        if self.has_tls() {
            client.args(["--tls", "--cacert", "ca.pem", "--cert", "server.pem"]);
            client.args(["--key", "server.key"]);
        }
        if let Some((name, password)) = &self.user {
            client.args(["--user", name, "--pass", password, "--no-auth-warning"]);
        }
        client
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

fn free_port() -> u16 {
    let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // Tests that start at the same time should try different ports first.
    let start = usize::try_from(now.subsec_micros() + std::process::id()).unwrap();
    let mut ports = PORTS.cycle().skip(start % PORTS.len()).take(PORTS.len());
    ports.find(|&port| free(port) && free(port + BUS)).unwrap()
}
