//! `examples/compose.yaml`: a valid file whose services fit together. Containers are not started.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use sluicegate_tests::{
    Envoy, Redis, Sluicegate, example_token, free_port,
    tools::{self, succeed, workspace},
    yaml,
};

const FILE: &str = "examples/compose.yaml";

fn compose() -> Value {
    yaml::read(FILE, &fs::read_to_string(workspace().join(FILE)).unwrap())
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
}

/// The path on this machine, and the one in the container, of each file or folder that a service mounts.
fn mounts(service: &Value) -> Vec<(PathBuf, String)> {
    let volumes = service["volumes"].as_array().into_iter().flatten();
    let split = volumes.map(|it| it.as_str().unwrap().split(':').collect::<Vec<_>>());
    let split = split.filter(|it| it[0].starts_with('.'));
    split.map(|it| (workspace().join("examples").join(it[0]), it[1].to_owned())).collect()
}

/// The text of one of the file's own configurations.
fn content(compose: &Value, name: &str) -> String {
    compose["configs"][name]["content"].as_str().unwrap().to_owned()
}

fn by_schema(file: &Path) -> Output {
    let mut check = tools::manifests("check-jsonschema");
    check.args(["--builtin-schema", "vendor.compose-spec"]).arg(file).output().unwrap()
}

#[test]
fn the_compose_file_fits_the_schema() {
    let output = by_schema(&workspace().join(FILE));
    assert!(output.status.success(), "{output:?}");
    // The schema finds mistakes.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("compose.yaml");
    let text = fs::read_to_string(workspace().join(FILE)).unwrap();
    fs::write(&file, text.replace("depends_on:", "depend_on:")).unwrap();
    assert_eq!(by_schema(&file).status.code(), Some(1));
}

#[test]
fn docker_accepts_the_compose_file_where_it_is_installed() {
    let installed = Command::new("docker").args(["compose", "version"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        println!("skipped: docker compose is not installed");
        return;
    }
    let mut docker = Command::new("docker");
    docker.args(["compose", "--file", FILE, "config", "--quiet"]).current_dir(workspace());
    succeed(&mut docker);
}

#[test]
fn compose_mounts_existing_files_and_publishes_on_the_loopback_only() {
    let compose = compose();
    for (name, service) in compose["services"].as_object().unwrap() {
        for (path, _) in mounts(service) {
            assert!(path.exists(), "{name}: {}", path.display());
        }
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{name}: {port}");
        }
        for used in service["configs"].as_array().into_iter().flatten() {
            assert!(compose["configs"][used["source"].as_str().unwrap()].is_object(), "{used}");
        }
        let image = service["image"].as_str().unwrap_or("built:here");
        let (_, tag) = image.rsplit_once(':').unwrap_or_else(|| panic!("{image} has no version"));
        assert!(!tag.contains("latest"), "{image}");
    }
}

/// The example of Envoy after the command of its service, as the container would run it.
fn opened_envoy(compose: &Value, folder: &Path) -> String {
    let service = &compose["services"]["envoy"];
    assert_eq!(texts(&service["entrypoint"]), ["sh", "-c"]);
    let [command] = texts(&service["command"])[..] else { panic!("one command") };
    let [(example, mounted)] = &mounts(service)[..] else { panic!("one mount") };
    let made = folder.join("envoy.yaml");
    let mut script = command.to_owned();
    for (old, new) in [
        (&**mounted, example.to_str().unwrap()),
        ("/tmp/envoy.yaml", made.to_str().unwrap()),
        ("exec envoy", "exec echo"),
    ] {
        assert!(script.contains(old), "{script}");
        script = script.replace(old, new);
    }
    succeed(Command::new("sh").args(["-c", &script]));
    fs::read_to_string(made).unwrap()
}

#[tokio::test]
async fn services_of_the_compose_file_work_together() {
    let compose = compose();
    let services = &compose["services"];
    let redis = Redis::start().await;
    let [(limits, mounted)] = &mounts(&services["sluicegate"])[..] else { panic!("one mount") };
    let dockerfile = fs::read_to_string(workspace().join("Dockerfile")).unwrap();
    assert!(dockerfile.contains(&format!("SLUICEGATE_LIMITS={mounted}")));
    let command = texts(&services["sluicegate"]["command"]);
    assert_eq!(command[0], "serve");
    let address = redis.address();
    let flags: Vec<_> = command[1..].iter().map(|it| it.replace("redis:6379", &address)).collect();
    let mut flags: Vec<_> = flags.iter().map(String::as_str).collect();
    flags.extend(["--limits", limits.to_str().unwrap()]);
    let folder = tempfile::tempdir().unwrap();
    let config = opened_envoy(&compose, folder.path());
    let server = Sluicegate::start_with(folder, &flags).await;

    assert_eq!(services["envoy"]["network_mode"], "service:sluicegate");
    assert!(texts(&services["sluicegate"]["ports"]).contains(&"127.0.0.1:10000:10000"));
    let port = server.grpc.rsplit_once(':').unwrap().1;
    let mut text = config;
    for (old, new) in [
        ("0.0.0.0, port_value: 10000", "127.0.0.1, port_value: 0".to_owned()),
        ("port_value: 9901", "port_value: 0".to_owned()),
        ("port_value: 10001", format!("port_value: {}", free_port())),
        ("127.0.0.1, port_value: 8081", format!("127.0.0.1, port_value: {port}")),
        ("timeout: 0.05s", "timeout: 5s".to_owned()),
    ] {
        assert!(text.contains(old), "no {old}");
        text = text.replace(old, &new);
    }
    let envoy = Envoy::start(&tools::envoy(), &text).await;
    let token = example_token("acme", "ann", "free");
    let answer = envoy.get("/account", &[("authorization", token.as_bytes())]).await;
    assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (200, 99));
    assert!(redis.query(&["dbsize"]).await.trim().parse::<u64>().unwrap() >= 3);
}

#[test]
fn prometheus_of_the_compose_file_scrapes_the_server_and_has_the_alerts() {
    let compose = compose();
    let service = &compose["services"]["prometheus"];
    let [(alerts, mounted)] = &mounts(service)[..] else { panic!("one mount") };
    assert_eq!(*alerts, workspace().join("examples/../helm/files/alerts.yaml"));
    let text = content(&compose, "prometheus");
    let config = yaml::read("prometheus", &text);
    assert_eq!(texts(&config["rule_files"]), [mounted.as_str()]);
    let scraped = &config["scrape_configs"][0]["static_configs"][0];
    assert_eq!(texts(&scraped["targets"]), ["sluicegate:8080"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prometheus.yaml");
    fs::write(&file, text.replace(mounted, alerts.to_str().unwrap())).unwrap();
    let said = succeed(Command::new("promtool").args(["check", "config"]).arg(file));
    assert!(said.contains("rules found"), "{said}");
}

#[test]
fn grafana_of_the_compose_file_shows_the_dashboard() {
    let compose = compose();
    let service = &compose["services"]["grafana"];
    let [(dashboard, mounted)] = &mounts(service)[..] else { panic!("one mount") };
    assert_eq!(*dashboard, workspace().join("examples/../helm/files/dashboard.json"));
    assert_eq!(service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"], **mounted);
    let provider = &yaml::read("dashboards", &content(&compose, "dashboards"))["providers"][0];
    assert_eq!(
        provider["options"]["path"],
        *Path::new(mounted).parent().unwrap().to_str().unwrap()
    );
    // The dashboard takes the default data source.
    let source = &yaml::read("datasource", &content(&compose, "datasource"))["datasources"][0];
    assert_eq!((&source["type"], &source["isDefault"]), (&"prometheus".into(), &true.into()));
    assert_eq!(source["url"], "http://prometheus:9090");
}
