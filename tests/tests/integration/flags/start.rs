//! Error messages of a failed start.

use std::fs;

use sluicegate_tests::{Authority, Finished, Sluicegate, binary, finish};
use tokio::{net::TcpListener, process::Command};

use super::{LIMITS, given::one_line};

/// Starts a server that must fail to start.
pub(super) async fn refused(flags: &[&str]) -> Finished {
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.yaml");
    fs::write(&limits, LIMITS).unwrap();
    let mut all = flags.to_vec();
    if !flags.contains(&"--limits") {
        all.extend(["--limits", limits.to_str().unwrap()]);
    }
    finish(Sluicegate::command(&all, &[])).await
}

#[tokio::test]
async fn failed_starts_print_one_line() {
    let holder = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let listeners = ["--grpc-listen", "gRPC", "--http-listen", "HTTP", "--admin-listen", "admin"];
    for [flag, listener] in listeners.as_chunks().0 {
        let why = format!("{flag}: the {listener} listener cannot listen on {taken}: Address");
        one_line(&refused(&[flag, &taken]).await, 1, &[&why, "already in use"]);
    }
    one_line(&refused(&["--limits", "nowhere.yaml"]).await, 1, &["nowhere.yaml: No such file"]);
    let socket = "unix:/nowhere/s.sock";
    one_line(&refused(&["--grpc-listen", socket]).await, 1, &[socket, "No such file"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let socket = format!("unix:{}", file.path().display());
    one_line(&refused(&["--grpc-listen", &socket]).await, 1, &[&socket, "other than a socket"]);

    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("a");
    for name in ["one", "two"] {
        authority.issue("127.0.0.1").write(folder.path(), name);
    }
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let tls = async |cert: &str, key: &str| {
        refused(&["--grpc-tls-cert", &path(cert), "--grpc-tls-key", &path(key)]).await
    };
    let (one, two) = (path("one.pem"), path("two.key"));
    one_line(&tls("one.pem", "two.key").await, 1, &["does not match", &one, &two]);
    one_line(&tls("none.pem", "one.key").await, 1, &["cannot read", &path("none.pem")]);
    one_line(&tls("one.key", "one.key").await, 1, &["no certificate in", &path("one.key")]);
    one_line(&tls("one.pem", "one.pem").await, 1, &["no private key in", &path("one.pem")]);
}

#[tokio::test]
async fn invalid_log_levels_are_reported() {
    for word in ["loud", "h2=", "info=", "=info", "info,sluicegate::audit[{caller}]=off"] {
        one_line(
            &refused(&["--log-level", word]).await,
            1,
            &["--log-level", word, "is not a level"],
        );
    }
}

#[tokio::test]
async fn every_mistake_in_the_limits_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.yaml");
    fs::write(&file, LIMITS.replace("day", "fortnight") + "  - kee: tenant\n").unwrap();
    let path = file.to_str().unwrap();
    let served = refused(&["--limits", path]).await;
    let mut validate = Command::new(binary("sluicegate"));
    validate.args(["validate", path]);
    let validated = finish(validate).await;
    for (code, printed) in [(served.code, &served.stderr), (validated.code, &validated.stdout)] {
        assert_eq!((code, printed.lines().count()), (1, 2), "{printed}");
        assert!(
            printed.contains(&format!("{path}:5: ")) && printed.contains(&format!("{path}:6: ")),
            "{printed}"
        );
    }
}
