//! How a server is started and reached.

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

/// Ports below those that the system gives to outgoing connections, so that a server which comes back
/// finds its own still free. A cluster node takes the one 10,000 above too.
const PORTS: Range<u16> = 12_000..20_000;
const BUS: u16 = 10_000;

/// Settings of a server.
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
    /// A server without limits of its own that keeps nothing on disk.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sentinel: false,
            // By default replicas wait five seconds for others to join.
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

    /// Another binary that speaks the protocol.
    #[must_use]
    pub fn binary(mut self, binary: PathBuf) -> Self {
        self.binary = binary;
        self
    }

    /// Adds lines of redis.conf.
    #[must_use]
    pub fn config(mut self, lines: &str) -> Self {
        writeln!(self.config, "{lines}").unwrap();
        self
    }

    /// Speaks TLS and nothing else; callers need a certificate of the same authority, unless
    /// `tls-auth-clients no` is added.
    #[must_use]
    pub fn tls(mut self, authority: &Authority) -> Self {
        let server = authority.issue("127.0.0.1");
        self.certificates = Some(Certificates { authority: authority.pem(), server });
        self
    }

    /// Admits only this user, with all permissions.
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

    /// Starts it on a free port.
    ///
    /// # Panics
    /// It does not come up.
    pub async fn start(self) -> Redis {
        let folder = tempfile::tempdir().unwrap();
        let mut said = String::new();
        // Another process may take the port before the start.
        for _ in 0..20 {
            let port = free_port();
            self.write(folder.path(), port);
            match self.launch(folder.path()).await {
                Ok(process) => {
                    return Redis { process, state: State::Running, port, setup: self, folder };
                }
                Err(output) => said = output,
            }
        }
        panic!("does not come up\n{said}");
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
            let said = ["Ready to accept connections", "Sentinel ID is"];
            said.iter().any(|said| line.contains(said)).then_some(())
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

    /// redis-cli with the flags that reach the server of that port and folder.
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
    // Tests that start at once should not all begin at the same port.
    let start = usize::try_from(now.subsec_micros() + std::process::id()).unwrap();
    let mut ports = PORTS.cycle().skip(start % PORTS.len()).take(PORTS.len());
    ports.find(|&port| free(port) && free(port + BUS)).unwrap()
}
