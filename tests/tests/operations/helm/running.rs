//! The real server, started with the command line, environment and files of the rendered chart.

use std::{fs, path::Path, process::Command as Blocking};

use serde_json::Value;
use sluicegate_tests::{
    Authority, Finished, Redis, Sluicegate, binary, finish, hit, tools::succeed, until,
};
use tempfile::TempDir;
use tokio::process::Command;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::chart::{Rendered, texts};

/// Where the chart mounts everything.
const MOUNTED: &str = "/etc/sluicegate";

/// The content of Secrets and `ConfigMap`s that the chart does not create.
struct Others {
    authority: Authority,
    redis_url: String,
}

impl Others {
    fn new() -> Self {
        Self {
            authority: Authority::new("others"),
            redis_url: "redis-sentinel://:secret@127.0.0.1:1/primary".to_owned(),
        }
    }

    /// The content of a file of that name.
    fn secret(&self, folder: &Path, file: &str) {
        // One certificate for both sides: the test's pod has the same names as Envoy.
        let issued = self.authority.issue("localhost");
        let envoy = self.authority.issue("envoy.mesh");
        let is_test = folder.ends_with("test-tls");
        let issued = if is_test { envoy } else { issued };
        match file {
            "tls.crt" => {
                fs::write(folder.join("tls.crt"), issued.certificate).unwrap();
                fs::write(folder.join("tls.key"), issued.key).unwrap();
            }
            "tls.key" => assert!(folder.join("tls.crt").exists()),
            "ca.crt" => fs::write(folder.join(file), self.authority.pem()).unwrap(),
            "salt" => fs::write(folder.join(file), "a salt of sixteen bytes and more").unwrap(),
            "password" => fs::write(folder.join(file), "secret\n").unwrap(),
            "token" => fs::write(folder.join(file), "a-token-of-some-length\n").unwrap(),
            "tenants.json" => fs::write(folder.join(file), "{\"tenants\": []}").unwrap(),
            other => panic!("{other}"),
        }
    }
}

/// The value of a key in a Secret of the chart.
fn decoded(secret: &Value, key: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("base64");
    fs::write(&file, secret["data"][key].as_str().unwrap()).unwrap();
    succeed(Blocking::new("base64").arg("--decode").arg(file))
}

/// Writes the volumes of a pod to the paths of their mounts, below `root`.
fn mount(rendered: &Rendered, pod: &Value, root: &Path, others: &Others) {
    let volumes = pod["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    let mounts = pod["containers"][0]["volumeMounts"].as_array().map_or(&[][..], Vec::as_slice);
    for mount in mounts {
        let Some(folder) = mount["mountPath"].as_str().unwrap().strip_prefix(MOUNTED) else {
            continue;
        };
        let folder = root.join(folder.trim_start_matches('/'));
        fs::create_dir_all(&folder).unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        if let Some(name) = volume["configMap"].get("name") {
            match rendered.named("ConfigMap", name) {
                Some(made) => {
                    for (file, content) in made["data"].as_object().unwrap() {
                        fs::write(folder.join(file), content.as_str().unwrap()).unwrap();
                    }
                }
                None => fs::write(folder.join("team.yaml"), "domain: team\n").unwrap(),
            }
            continue;
        }
        let secret = &volume["secret"];
        let made = rendered.named("Secret", &secret["secretName"]);
        let Some(items) = secret["items"].as_array() else {
            for file in ["tls.crt", "tls.key", "ca.crt"] {
                others.secret(&folder, file);
            }
            continue;
        };
        for item in items {
            let path = item["path"].as_str().unwrap();
            match made {
                Some(made) => {
                    let content = decoded(made, item["key"].as_str().unwrap());
                    fs::write(folder.join(path), content).unwrap();
                }
                None => others.secret(&folder, path),
            }
        }
    }
}

/// The command of the chart's container, with its mounts below `root`, on free ports of the loopback.
fn command(rendered: &Rendered, root: &Path, others: &Others) -> Command {
    let container = rendered.container();
    let path = Path::new(texts(&container["command"])[0]);
    let mut command = Command::new(binary(path.file_name().unwrap().to_str().unwrap()));
    command.env_clear();
    for variable in container["env"].as_array().into_iter().flatten() {
        let value = match (&variable["value"], &variable["valueFrom"]) {
            (Value::String(value), _) => value.clone(),
            (_, from) if from["secretKeyRef"] != Value::Null => others.redis_url.clone(),
            (_, from) => from["fieldRef"]["fieldPath"].as_str().unwrap().to_owned(),
        };
        command.env(variable["name"].as_str().unwrap(), value);
    }
    for argument in rendered.arguments() {
        let argument = argument.replace(MOUNTED, root.to_str().unwrap());
        match argument.split_once("-listen=") {
            Some((_, "off")) | None => command.arg(&argument),
            Some((listener, address)) => {
                let host = if address.starts_with('[') { "[::1]" } else { "127.0.0.1" };
                command.arg(format!("{listener}-listen={host}:0"))
            }
        };
    }
    command
}

async fn started(rendered: &Rendered, others: &Others) -> Sluicegate {
    let folder = tempfile::tempdir().unwrap();
    mount(rendered, rendered.pod(), folder.path(), others);
    let command = command(rendered, folder.path(), others);
    Sluicegate::started(folder, command).await
}

/// Sends the request of a kubelet probe.
async fn probe(server: &Sluicegate, probe: &Value) {
    if let Some(path) = probe["httpGet"]["path"].as_str() {
        assert_eq!(server.get(path).await, (200, "OK".to_owned()), "{path}");
        return;
    }
    let service = probe["grpc"]["service"].as_str().unwrap().to_owned();
    let mut health = HealthClient::new(server.channel().await);
    let answer = health.check(HealthCheckRequest { service }).await.unwrap();
    assert_eq!(answer.into_inner().status(), ServingStatus::Serving, "{probe}");
}

/// Runs a container of the test's pod, with the server's address in place of the Service's.
async fn test_container(
    rendered: &Rendered,
    name: &str,
    server: &Sluicegate,
    others: &Others,
) -> Option<Finished> {
    let pod = &rendered.only("Pod")?["spec"];
    let mut containers = pod["containers"].as_array().unwrap().iter();
    let container = containers.find(|container| container["name"] == name).unwrap();
    let folder: TempDir = tempfile::tempdir().unwrap();
    mount(rendered, pod, folder.path(), others);
    let path = Path::new(texts(&container["command"])[0]);
    let mut command = Command::new(binary(path.file_name().unwrap().to_str().unwrap()));
    command.env_clear();
    let port = server.grpc.rsplit_once(':').unwrap().1;
    for argument in texts(&container["args"]) {
        let argument = argument.replace(MOUNTED, folder.path().to_str().unwrap());
        command.arg(match argument.strip_prefix("--server=") {
            Some(url) => {
                let (scheme, _) = url.split_once("://").unwrap();
                // The certificate is for a host name.
                let host =
                    if scheme == "https" { &format!("localhost:{port}") } else { &server.grpc };
                format!("--server={scheme}://{host}")
            }
            None => argument,
        });
    }
    Some(finish(command).await)
}

#[tokio::test]
async fn the_server_accepts_each_command_line_and_answers_probes() {
    let others = Others::new();
    let mut tested = 0;
    for rendered in Rendered::matrix() {
        let server = started(&rendered, &others).await;
        for name in ["startupProbe", "readinessProbe", "livenessProbe"] {
            probe(&server, &rendered.container()[name]).await;
        }
        let run = async |name| test_container(&rendered, name, &server, &others).await;
        let (Some(check), Some(store)) = (run("check").await, run("store").await) else { continue };
        tested += 1;
        assert_eq!(check.code, 0, "{}: {check:?}", rendered.values.display());
        assert!(check.stdout.starts_with("allowed"), "{check:?}");
        // Redis is not reachable with any of the values.
        let is_memory = rendered.flag("--store") == Some("memory");
        let expected = if is_memory { (0, "serving\n") } else { (1, "not serving\n") };
        assert_eq!((store.code, store.stdout.as_str()), expected, "{store:?}");
    }
    assert!(tested > 2);
}

/// Objects and numbers are unchanged by values and ConfigMap.
#[tokio::test]
async fn limits_reach_the_server_unchanged() {
    let matrix = Rendered::matrix().find(|it| it.values.ends_with("memory.yaml"));
    let server = started(&matrix.unwrap(), &Others::new()).await;
    let (_, limits) = server.get("/rlconfig").await;
    for given in ["domain api tenant=tenant", "domain login", "123456789", "1000000"] {
        assert!(limits.contains(given), "{given}: {limits}");
    }
}

/// A password with special characters reaches Redis unchanged.
#[tokio::test]
async fn the_password_reaches_redis() {
    let rendered = Rendered::matrix().find(|it| it.values.ends_with("redis.yaml")).unwrap();
    let username = rendered.flag("--redis-username").unwrap();
    let password = decoded(rendered.only("Secret").unwrap(), "password");
    let redis = Redis::start().await;
    let grant = format!(">{password}");
    redis.query(&["ACL", "SETUSER", username, "on", &grant, "~*", "+@all"]).await;
    redis.query(&["ACL", "SETUSER", "default", "-@all", "+ping"]).await;
    let (others, folder) = (Others::new(), tempfile::tempdir().unwrap());
    mount(&rendered, rendered.pod(), folder.path(), &others);
    let given = command(&rendered, folder.path(), &others);
    let mut command = Command::new(given.as_std().get_program());
    command.env_clear();
    for argument in given.as_std().get_args() {
        match argument.to_str().unwrap().strip_prefix("--store=") {
            Some(_) => command.arg(format!("--store=redis://{}", redis.address())),
            None => command.arg(argument),
        };
    }
    let server = Sluicegate::started(folder, command).await;
    until("Redis", || async {
        server.get("/healthcheck?verbose").await.1.contains("store: ok").then_some(())
    })
    .await;
    let answer = server.should_rate_limit(hit("user", "bob")).await.unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 9);
    let login = ["--user", username, "--pass", &password, "--no-auth-warning"];
    let keys = redis.query(&[&login[..], &["KEYS", "*user=bob*"]].concat()).await;
    assert_eq!(keys.lines().count(), 1, "{keys}");
}
