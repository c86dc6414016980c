//! Sources of settings, and reports of mistakes in them.

use std::{fs, path::Path};

use sluicegate_tests::{Finished, Sluicegate, binary, finish};
use tempfile::TempDir;
use tokio::process::Command;

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 10}
";

/// A folder with limits and a settings file that names them.
fn folder(settings: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("limits.yaml"), LIMITS).unwrap();
    let limits = folder.path().join("limits.yaml").display().to_string();
    let file = folder.path().join("settings.yaml");
    fs::write(&file, settings.replace("{limits}", &limits)).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (folder, file)
}

/// Starts a server that must fail to start.
async fn refused(arguments: &[&str], environment: &[(&str, &str)]) -> Finished {
    let mut command = Command::new(binary("sluicegate"));
    command.arg("serve").args(arguments).env_remove("SLUICEGATE_TOOLS");
    command.envs(environment.iter().copied());
    finish(command).await
}

fn lines(finished: &Finished) -> Vec<&str> {
    finished.stderr.lines().collect()
}

// === Invalid settings ===

#[tokio::test]
async fn all_mistakes_of_a_start_are_reported_at_once() {
    let (folder, _) = folder("");
    let bad = folder.path().join("bad.yaml");
    fs::write(&bad, "domain: a\ndescriptors: 5\n").unwrap();
    let arguments = [
        ["--limits", bad.to_str().unwrap()],
        ["--log-level", "loud"],
        ["--store", "redis://:one@127.0.0.1:1"],
        ["--redis-password", "two"],
        ["--redis-tls-ca", "/nowhere/redis.pem"],
        ["--limit-header", "x-limit"],
        ["--grpc-tls-cert", "/nowhere/server.pem"],
        ["--grpc-tls-key", "/nowhere/server.key"],
        ["--admin-listen", "0.0.0.0:0"],
        ["--otlp-endpoint", "http://127.0.0.1:1"],
        ["--otlp-tls-ca", "/nowhere/otlp.pem"],
        ["--key-hash-salt-file", "/nowhere/salt"],
    ];
    let answer = refused(arguments.as_flattened(), &[]).await;
    let expected = [
        "--log-level: \"loud\" is not a level",
        "bad.yaml:2: descriptors: a number is not valid here",
        "only one may have a password",
        "--store does not ask for TLS",
        "--limit-header goes with --response-headers x-ratelimit-draft-03 or x-ratelimit-unix only",
        "TLS of the gRPC listener: cannot read /nowhere/server.pem",
        "--admin-listen 0.0.0.0:0 is open to the network",
        "--otlp-tls-ca: --otlp-endpoint does not ask for TLS",
        "--key-hash-salt-file: cannot read /nowhere/salt",
    ];
    let lines = lines(&answer);
    assert_eq!((answer.code, lines.len()), (1, expected.len()), "{answer:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with("sluicegate: ") && line.contains(expected), "{line}: {expected}");
    }
}

#[tokio::test]
async fn all_addresses_in_use_are_reported_at_once() {
    let holder = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let (_folder, file) = folder("limits: '{limits}'\n");
    let flags = ["--grpc-listen", "--http-listen", "--admin-listen"];
    let mut arguments = vec!["--config", &*file];
    arguments.extend(flags.iter().flat_map(|flag| [*flag, &*taken]));
    let answer = refused(&arguments, &[]).await;
    let errors = lines(&answer).into_iter().filter(|line| line.starts_with("sluicegate: "));
    let errors: Vec<_> = errors.collect();
    assert_eq!((answer.code, errors.len()), (1, flags.len()), "{answer:?}");
    for (line, flag) in errors.into_iter().zip(flags) {
        assert!(line.starts_with(&format!("sluicegate: {flag}: the ")), "{line}");
    }
}

#[tokio::test]
async fn all_bad_values_of_flags_and_variables_are_reported_at_once() {
    let arguments = ["--limits", "a.yaml", "--max-in-flight", "none", "--grpc-listen", ":80"];
    let environment = [("SLUICEGATE_DRAIN_DELAY", "soon"), ("SLUICEGATE_SHADOW_MODE", "perhaps")];
    let answer = refused(&arguments, &environment).await;
    assert_eq!((answer.code, lines(&answer).len()), (2, 4), "{answer:#?}");
    for flag in ["--max-in-flight", "--grpc-listen", "--drain-delay", "--shadow-mode"] {
        let of_flag = |line: &&str| line.starts_with("error: ") && line.contains(flag);
        assert_eq!(lines(&answer).into_iter().filter(of_flag).count(), 1, "{flag}: {answer:#?}");
    }
}

// === --config ===

#[tokio::test]
async fn a_settings_file_has_the_names_of_the_flags() {
    let text = "
# Texts, numbers, durations, booleans and lists.
limits: ['{limits}', '{limits}.d']
merge-domains: true
max-in-flight: 7
grpc-listen: '127.0.0.1:0'
http-listen: 127.0.0.1:0
admin-listen: off
drain-delay: 0s
log-format: json
";
    let (folder, file) = folder(text);
    fs::create_dir(folder.path().join("limits.yaml.d")).unwrap();
    let more = LIMITS.replace("user", "tenant");
    fs::write(folder.path().join("limits.yaml.d/more.yaml"), more).unwrap();
    let mut command = Command::new(binary("sluicegate"));
    command.args(["serve", "--config", &file]);
    let server = Sluicegate::started(folder, command).await;
    assert_eq!(server.admin, "off");
    assert_eq!(server.metric("sluicegate_requests_in_flight_max").await, 7.0);
    let (_, rules) = server.get("/rlconfig").await;
    assert!(rules.contains("user: [") && rules.contains("tenant: ["), "{rules}");
    assert!(server.stop().await.success());
}

/// The maximum of requests in flight of a server that is started with these flags and variables.
async fn max_in_flight(flags: &[&str], environment: &[(&str, &str)]) -> f64 {
    let (folder, file) = folder("limits: '{limits}'\nmax-in-flight: 1\n");
    let flags = [&["--config", &*file], flags].concat();
    let server = Sluicegate::started(folder, Sluicegate::command(&flags, environment)).await;
    let max = server.metric("sluicegate_requests_in_flight_max").await;
    assert!(server.stop().await.success());
    max
}

#[tokio::test]
async fn flags_win_over_variables_and_variables_over_the_settings_file() {
    let (flag, variable) = (["--max-in-flight", "3"], [("SLUICEGATE_MAX_IN_FLIGHT", "2")]);
    assert_eq!(max_in_flight(&[], &[]).await, 1.0);
    assert_eq!(max_in_flight(&[], &variable).await, 2.0);
    assert_eq!(max_in_flight(&flag, &[]).await, 3.0);
    assert_eq!(max_in_flight(&flag, &variable).await, 3.0);
}

#[tokio::test]
async fn a_list_of_flags_replaces_the_list_in_the_file() {
    let (folder, file) = folder("limits: ['/nowhere/a.yaml', '/nowhere/b.yaml']\n");
    let limits = folder.path().join("limits.yaml").display().to_string();
    let flags = ["--config", &file, "--limits", &limits];
    let server = Sluicegate::started(folder, Sluicegate::command(&flags, &[])).await;
    assert!(server.stop().await.success());
}

#[tokio::test]
async fn every_mistake_of_a_settings_file_is_reported_with_its_line() {
    let text = "limits: '{limits}'
redis-conections: 2
store: {kind: redis}
key-prefix: true
max-in-flight: [1, 2]
log-level:
shadow-mode: false
config: other.yaml
help: true
[1]: 2
";
    let (_folder, file) = folder(text);
    let answer = refused(&["--config", &file], &[]).await;
    let expected = [
        "2: no setting is called \"redis-conections\"; did you mean redis-connections?",
        "3: store: a map is not valid here",
        "4: key-prefix: true and false is not valid here; use quotes for a text",
        "5: max-in-flight: a list is not valid here",
        "6: log-level: the value is missing",
        "8: no setting is called \"config\"; names are those of the flags, without dashes in front",
        "9: no setting is called \"help\"; names are those of the flags, without dashes in front",
        "10: a list or a map cannot be the name of a setting",
    ];
    let found = lines(&answer);
    let expected = expected.map(|text| format!("error: {file}:{text}"));
    assert_eq!((answer.code, found), (2, expected.iter().map(String::as_str).collect()));
}

#[tokio::test]
async fn every_bad_value_of_a_settings_file_is_reported_with_its_line() {
    let text = "limits: '{limits}'
max-in-flight: none
shadow-mode: perhaps
grpc-max-header-list-bytes: 5
grpc-tls-client-ca: ca.pem
";
    let (_folder, file) = folder(text);
    let answer = refused(&["--config", &file, "--drain-delay", "soon"], &[]).await;
    let expected = [
        (Some(2), "invalid value 'none' for '--max-in-flight"),
        (Some(3), "invalid value 'perhaps' for '--shadow-mode"),
        (Some(4), "invalid value '5' for '--grpc-max-header-list-bytes"),
        (None, "invalid value 'soon' for '--drain-delay"),
        (None, "--grpc-tls-cert <FILE>"),
    ];
    assert_eq!((answer.code, lines(&answer).len()), (2, expected.len()), "{answer:#?}");
    for (line, text) in expected {
        let place = line.map_or_else(String::new, |line| format!("{file}:{line}: "));
        let begin = format!("error: {place}");
        let is_it = |it: &&str| it.starts_with(&begin) && it.contains(text);
        assert_eq!(lines(&answer).into_iter().filter(is_it).count(), 1, "{text}: {answer:#?}");
    }
}

/// Also if a password that is not escaped looks like another part of the URL.
#[tokio::test]
async fn rejected_store_is_reported_without_its_password() {
    for (store, mistake) in [
        ("redis://user:secret@a,b", "redis:// takes one host"),
        ("redis://user:secret", "a port is not a number"),
        ("redis://user:12/secret", "the database is not a number"),
        ("redis://user:se/secret@a", "write / as %2F"),
        ("secret", "use memory, or an address"),
    ] {
        let (_folder, file) = folder(&format!("limits: '{{limits}}'\nstore: '{store}'\n"));
        for answer in [
            refused(&["--limits", "a.yaml", "--store", store], &[]).await,
            refused(&["--limits", "a.yaml"], &[("SLUICEGATE_STORE", store)]).await,
            refused(&["--config", &file], &[]).await,
        ] {
            assert_eq!((answer.code, lines(&answer).len()), (2, 1), "{answer:?}");
            assert!(answer.stderr.contains("'…' for '--store <STORE>'"), "{answer:?}");
            assert!(answer.stderr.contains(mistake), "{answer:?}");
            assert!(!answer.stderr.contains("secret"), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn a_file_without_settings_is_reported() {
    for (text, expected) in [
        ("- a\n", ":1: the file is not a map of settings"),
        ("limits: a\nlimits: b\n", ":2: the name is already in line 1"),
        ("limits: [a\n", "not YAML"),
    ] {
        let (_folder, file) = folder(text);
        let answer = refused(&["--config", &file, "--limits", "a.yaml"], &[]).await;
        assert_eq!((answer.code, lines(&answer).len()), (2, 1), "{answer:?}");
        assert!(answer.stderr.contains(expected) && answer.stderr.contains(&file), "{answer:?}");
    }
    let folder = Path::new("/nowhere/settings.yaml").display().to_string();
    let answer = refused(&["--limits", "a.yaml"], &[("SLUICEGATE_CONFIG", &folder)]).await;
    assert_eq!((answer.code, lines(&answer).len()), (2, 1), "{answer:?}");
    assert!(answer.stderr.contains("--config: cannot read /nowhere/settings.yaml: No such file"));
}

// === Variables ===

#[tokio::test]
async fn unknown_variables_cause_a_warning_with_the_nearest_name() {
    let environment = [
        ("SLUICEGATE_REDIS_CONECTIONS", "2"),
        ("SLUICEGATE_PORT", "tcp://10.0.0.1:8081"),
        ("SLUICEGATE_PORT_8081_TCP_ADDR", "10.0.0.1"),
        ("SLUICEGATE_SERVICE_HOST", "10.0.0.1"),
        ("SLUICEGATE_SERVICE_PORT_GRPC", "8081"),
    ];
    let server = Sluicegate::start_in(LIMITS, &[], &environment).await;
    let log = server.process.output();
    let warned: Vec<_> = log.lines().filter(|line| line.contains("no setting has")).collect();
    assert!(
        warned.len() == 1 && warned[0].contains("did you mean SLUICEGATE_REDIS_CONNECTIONS?"),
        "{warned:?}"
    );
    assert!(server.stop().await.success());
}
