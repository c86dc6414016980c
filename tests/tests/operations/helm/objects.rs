//! Checks of the chart's objects, for every values file of the matrix.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::{Value, json};
use sluicegate_tests::{
    binary,
    tools::{self, succeed, workspace},
    yaml,
};

use super::chart::Rendered;

/// Whether all labels of the selector are among the labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    let selector = selector.as_object().unwrap();
    assert!(!selector.is_empty());
    selector.iter().all(|(label, value)| labels[label] == *value)
}

fn seconds(duration: &str) -> u64 {
    duration.strip_suffix('s').unwrap().parse().unwrap()
}

#[test]
fn containers_run_without_root_and_privilege_escalation() {
    for rendered in Rendered::matrix() {
        for pod in rendered.pods() {
            let security = &pod["securityContext"];
            assert_eq!(security["runAsNonRoot"], true);
            assert!(security["runAsUser"].as_u64().unwrap() > 0);
            assert_eq!(security["seccompProfile"], json!({"type": "RuntimeDefault"}));
            assert_eq!(pod["automountServiceAccountToken"], false);
            assert_eq!(pod["enableServiceLinks"], false);
            for inherited in ["hostNetwork", "hostPID", "hostIPC", "initContainers"] {
                assert_eq!(pod[inherited], Value::Null, "{inherited}");
            }
            for container in pod["containers"].as_array().unwrap() {
                let expected = json!({
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                });
                assert_eq!(container["securityContext"], expected);
                for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                    // A file that is mounted with `subPath` is never updated.
                    assert_eq!(mount["subPath"], Value::Null, "{mount}");
                }
            }
        }
        for account in rendered.of_kind("ServiceAccount") {
            assert_eq!(account["automountServiceAccountToken"], false);
        }
        let accounts: Vec<_> = rendered.of_kind("ServiceAccount").collect();
        for pod in rendered.pods() {
            let name = &pod["serviceAccountName"];
            let made = accounts.iter().any(|account| account["metadata"]["name"] == *name);
            assert!(made || name == "default", "{name}");
        }
    }
}

#[test]
fn ports_match_the_listeners() {
    for rendered in Rendered::matrix() {
        let ports = rendered.container()["ports"].as_array().unwrap();
        let port = |name: &str| {
            let port = ports.iter().find(|port| port["name"] == name);
            port.map(|port| port["containerPort"].to_string())
        };
        for (name, flag) in [
            ("grpc", "--grpc-listen"),
            ("http", "--http-listen"),
            ("admin", "--admin-listen"),
            ("usage", "--usage-listen"),
        ] {
            let Some(address) = rendered.flag(flag) else {
                assert_eq!((name, port(name)), ("usage", None));
                continue;
            };
            let Some((host, listened)) = address.rsplit_once(':') else {
                assert_eq!((name, address, port(name)), ("admin", "off", None));
                continue;
            };
            let everywhere = ["0.0.0.0", "[::]"].contains(&host);
            // A listener on loopback has no container port.
            assert_eq!(port(name).as_deref(), everywhere.then_some(listened), "{flag}={address}");
            assert!(everywhere || name == "admin", "{flag}={address}");
        }
        for service in rendered.of_kind("Service") {
            let labels = &rendered.deployment()["spec"]["template"]["metadata"]["labels"];
            assert!(selects(&service["spec"]["selector"], labels));
            for served in service["spec"]["ports"].as_array().unwrap() {
                let target = served["targetPort"].as_str().unwrap();
                assert_eq!(port(target), Some(served["port"].to_string()), "{served}");
                assert_eq!(served["name"], target);
            }
        }
        for policy in rendered.of_kind("NetworkPolicy") {
            let rules = policy["spec"]["ingress"].as_array().unwrap();
            let named = rules.iter().filter_map(|rule| rule["ports"][0]["port"].as_str());
            let named: Vec<_> = named.collect();
            let all: Vec<_> = ports.iter().map(|port| port["name"].as_str().unwrap()).collect();
            assert_eq!(named, all);
        }
    }
}

#[test]
fn probes_use_open_ports_and_supported_protocols() {
    for rendered in Rendered::matrix() {
        let container = rendered.container();
        let tls = rendered.flag("--grpc-tls-cert").is_some();
        let service = "envoy.service.ratelimit.v3.RateLimitService";
        for (probe, name, path) in [
            ("startupProbe", service, "/healthcheck"),
            ("readinessProbe", service, "/healthcheck"),
            // Neither a drain nor an outage of Redis may restart the pod.
            ("livenessProbe", "liveness", "/livez"),
        ] {
            let probe = &container[probe];
            let (grpc, http) = (&probe["grpc"], &probe["httpGet"]);
            if tls {
                // Kubernetes' gRPC probe has no TLS.
                assert_eq!((grpc, &http["path"]), (&Value::Null, &json!(path)));
                assert_eq!(http["port"], "http");
            } else {
                assert_eq!((http, &grpc["service"]), (&Value::Null, &json!(name)));
                let listened = rendered.flag("--grpc-listen").unwrap();
                assert!(listened.ends_with(&format!(":{}", grpc["port"])), "{listened}");
            }
        }
    }
}

#[test]
fn files_of_flags_are_mounted() {
    for rendered in Rendered::matrix() {
        let mounts = rendered.container()["volumeMounts"].as_array().unwrap();
        let volumes = rendered.pod()["volumes"].as_array().unwrap();
        let folder_of = |folder: &str| {
            let mount = mounts.iter().find(|mount| mount["mountPath"] == folder);
            let mount = mount.unwrap_or_else(|| panic!("{folder} is not mounted"));
            assert_eq!(mount["readOnly"], true);
            volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap()
        };
        // The whole folder, so that Kubernetes can replace its content.
        let limits = folder_of(rendered.flag("--limits").unwrap());
        let name = &limits["configMap"]["name"];
        let made = rendered.named("ConfigMap", name).is_some();
        assert!(made || name == "limits-of-the-team", "{name}");
        assert_eq!(limits["configMap"]["items"], Value::Null);
        let files = rendered.arguments().into_iter().filter_map(|it| it.split_once("=/"));
        let files: Vec<_> = files.filter(|(flag, _)| *flag != "--limits").collect();
        for (flag, file) in &files {
            let (folder, file) = file.rsplit_once('/').unwrap();
            let secret = &folder_of(&format!("/{folder}"))["secret"];
            let items = secret["items"].as_array().unwrap();
            assert!(items.iter().any(|item| item["path"] == *file), "{flag}");
            assert_eq!(secret["defaultMode"], 0o440);
        }
        let secrets = volumes.iter().filter(|volume| volume["secret"] != Value::Null).count();
        let folders = files.iter().map(|(_, file)| file.rsplit_once('/').unwrap().0);
        let mut folders: Vec<_> = folders.collect();
        folders.dedup();
        assert_eq!(secrets, folders.len(), "a Secret is mounted that no flag names");
    }
}

#[test]
fn secret_values_are_in_secrets_only() {
    let mut secrets = 0;
    for rendered in Rendered::matrix() {
        let values = fs::read_to_string(&rendered.values).unwrap();
        let values = yaml::read("values", &values);
        for given in [&values["redis"]["password"], &values["admin"]["token"]] {
            let Some(secret) = given.as_str() else { continue };
            secrets += 1;
            for object in rendered.objects.iter().filter(|object| object["kind"] != "Secret") {
                let escaped = json!(secret).to_string();
                let escaped = escaped.trim_matches('"');
                assert!(!object.to_string().contains(escaped), "{object}");
            }
            assert!(rendered.only("Secret").is_some());
        }
    }
    assert!(secrets > 1);
}

#[test]
fn selectors_match_only_the_servers_pods() {
    let identity = |rendered: &Rendered| {
        let name =
            if rendered.values.ends_with("everything.yaml") { "limiter" } else { "sluicegate" };
        json!({
            "app.kubernetes.io/name": name,
            "app.kubernetes.io/instance": "edge",
            "app.kubernetes.io/component": "server",
        })
    };
    for rendered in Rendered::matrix() {
        let deployment = rendered.deployment();
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        let selector = &deployment["spec"]["selector"]["matchLabels"];
        // The selector cannot change on an upgrade, so it has no version and no labels of users.
        assert_eq!(*selector, identity(&rendered));
        let services = rendered.of_kind("Service").map(|it| &it["spec"]["selector"]);
        let budgets = rendered.of_kind("PodDisruptionBudget");
        let policies = rendered.of_kind("NetworkPolicy");
        let spread = rendered.pod()["topologySpreadConstraints"].as_array().into_iter().flatten();
        let all = services
            .chain(budgets.map(|it| &it["spec"]["selector"]["matchLabels"]))
            .chain(policies.map(|it| &it["spec"]["podSelector"]["matchLabels"]))
            .chain(spread.map(|it| &it["labelSelector"]["matchLabels"]));
        for selector in [selector].into_iter().chain(all) {
            assert!(selects(selector, labels), "{selector}");
            for test in rendered.of_kind("Pod") {
                assert!(!selects(selector, &test["metadata"]["labels"]), "{selector}");
            }
        }
        for autoscaler in rendered.of_kind("HorizontalPodAutoscaler") {
            let target = &autoscaler["spec"]["scaleTargetRef"];
            assert_eq!(target["kind"], "Deployment");
            assert_eq!(target["name"], deployment["metadata"]["name"]);
            // Otherwise each upgrade would reset the autoscaler's number of pods.
            assert_eq!(deployment["spec"]["replicas"], Value::Null);
        }
        for monitor in rendered.of_kind("ServiceMonitor") {
            let selector = &monitor["spec"]["selector"]["matchLabels"];
            let services = rendered.of_kind("Service");
            let services: Vec<_> =
                services.filter(|it| selects(selector, &it["metadata"]["labels"])).collect();
            let [service] = services[..] else { panic!("scraped twice: {services:?}") };
            let port = &monitor["spec"]["endpoints"][0]["port"];
            let ports = service["spec"]["ports"].as_array().unwrap();
            assert!(ports.iter().any(|it| it["name"] == *port));
        }
    }
}

/// Alerts distinguish series by namespace and job.
#[test]
fn two_charts_in_one_release_are_two_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("charts/sluicegate");
    fs::create_dir(folder.path().join("charts")).unwrap();
    succeed(Command::new("cp").arg("-r").arg(workspace().join("helm")).arg(&chart));
    let version = fs::read_to_string(chart.join("Chart.yaml")).unwrap();
    let version = yaml::read("Chart.yaml", &version)["version"].clone();
    let aliases = ["inner", "outer"];
    let dependencies =
        aliases.map(|it| json!({"name": "sluicegate", "version": version, "alias": it}));
    let umbrella = json!({"apiVersion": "v2", "name": "umbrella", "version": "1.0.0", "dependencies": dependencies});
    fs::write(folder.path().join("Chart.yaml"), umbrella.to_string()).unwrap();
    let mut helm = tools::helm();
    helm.args(["template", "edge"]).arg(folder.path());
    helm.args(aliases.map(|it| format!("--set={it}.serviceMonitor.enabled=true")));
    let objects = yaml::read_all("template", &succeed(&mut helm));
    let monitors: Vec<_> = objects.iter().filter(|it| it["kind"] == "ServiceMonitor").collect();
    assert_eq!(monitors.len(), aliases.len());
    let mut jobs = BTreeSet::new();
    for monitor in monitors {
        let selector = &monitor["spec"]["selector"]["matchLabels"];
        let services = objects.iter().filter(|it| it["kind"] == "Service");
        let services: Vec<_> =
            services.filter(|it| selects(selector, &it["metadata"]["labels"])).collect();
        let [service] = services[..] else { panic!("{selector}: {services:?}") };
        let own = monitor["spec"]["jobLabel"]
            .as_str()
            .map_or(&service["metadata"]["name"], |label| &service["metadata"]["labels"][label]);
        let relabelings = monitor["spec"]["endpoints"][0]["relabelings"].as_array();
        let replaced = relabelings.into_iter().flatten().filter(|it| it["targetLabel"] == "job");
        let job = replaced.map(|it| &it["replacement"]).next_back().unwrap_or(own);
        assert!(jobs.insert(job.as_str().unwrap().to_owned()), "twice {job}");
    }
}

#[test]
fn a_pod_is_not_killed_before_it_has_drained() {
    for rendered in Rendered::matrix() {
        let spec = &rendered.deployment()["spec"];
        assert_eq!(spec["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
        let drain = |flag: &str| seconds(rendered.flag(flag).unwrap());
        let drained = drain("--drain-delay") + drain("--drain-timeout");
        let grace = rendered.pod()["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(grace > drained, "{grace} {drained}");
        // A preStop hook would add to the time, and delay NOT_SERVING.
        assert_eq!(rendered.container()["lifecycle"], Value::Null);
    }
}

#[test]
fn limits_change_without_a_restart() {
    let pods = |limits: &str| {
        let folder = tempfile::tempdir().unwrap();
        let values = folder.path().join("values.yaml");
        fs::write(&values, format!("limits: {{a.yaml: {{domain: {limits}}}}}")).unwrap();
        let rendered = Rendered::new(values);
        (rendered.deployment().clone(), rendered.only("ConfigMap").unwrap()["data"].clone())
    };
    let (before, after) = (pods("a"), pods("b"));
    assert_eq!(before.0, after.0, "a change of the limits changes the pods");
    assert_ne!(before.1, after.1);
}

#[test]
fn a_network_policy_allows_what_the_server_needs() {
    let policy = |name: &str| {
        let rendered = Rendered::new(workspace().join("helm/ci").join(name));
        rendered.only("NetworkPolicy").unwrap()["spec"].clone()
    };
    let ports = |rule: &Value| {
        let ports = rule["ports"].as_array().unwrap();
        ports.iter().map(|port| port["port"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let dns = vec![53, 53];
    for (name, expected) in [
        ("redis.yaml", vec![dns.clone(), vec![6380]]),
        ("cluster-tls.yaml", vec![dns.clone(), vec![7000, 7001, 6379]]),
        ("sentinel.yaml", vec![dns.clone(), vec![6379, 26379]]),
        // The ports of the sentinels, of Redis, and of the collector.
        ("everything.yaml", vec![dns, vec![26379, 26380, 6379], vec![4317]]),
    ] {
        let policy = policy(name);
        let egress = policy["egress"].as_array().unwrap();
        let with_ports = egress.iter().filter(|rule| rule["ports"] != Value::Null);
        assert_eq!(with_ports.map(ports).collect::<Vec<_>>(), expected, "{name}");
    }
    // If callers are restricted, the test's pod is one of them.
    let callers = policy("cluster-tls.yaml")["ingress"][0]["from"].clone();
    let test = json!({"matchLabels": {
        "app.kubernetes.io/name": "sluicegate",
        "app.kubernetes.io/instance": "edge",
        "app.kubernetes.io/component": "test",
    }});
    assert!(callers.as_array().unwrap().iter().any(|peer| peer["podSelector"] == test));
}

/// Otherwise a sidecar that does not end would keep the test from ending.
#[test]
fn the_tests_pod_has_labels_and_annotations_of_its_own() {
    let metadata = |name: &str| {
        let rendered = Rendered::new(workspace().join("helm/ci").join(name));
        rendered.only("Pod").unwrap()["metadata"].clone()
    };
    let label = "sidecar.istio.io/inject";
    assert_eq!(metadata("default.yaml")["labels"][label], "false");
    let given = metadata("everything.yaml");
    assert_eq!(
        (&given["labels"][label], &given["labels"]["tier"]),
        (&json!("true"), &json!("test"))
    );
    assert_eq!(given["annotations"]["linkerd.io/inject"], "disabled");
    assert_eq!(given["annotations"]["helm.sh/hook"], "test");
}

#[test]
fn a_service_admits_the_given_source_ranges() {
    let rendered = Rendered::new(workspace().join("helm/ci/everything.yaml"));
    let service = rendered.named("Service", &json!("edge-limiter")).unwrap();
    assert_eq!(service["spec"]["loadBalancerSourceRanges"], json!(["10.0.0.0/8", "fd00::/8"]));
    assert_eq!(service["spec"]["externalTrafficPolicy"], "Local");
    for other in rendered.of_kind("Service").filter(|it| it["metadata"] != service["metadata"]) {
        assert_eq!(other["spec"]["type"], "ClusterIP");
    }
}

#[test]
fn alerts_and_dashboard_match_the_files() {
    let rendered = Rendered::new(workspace().join("helm/ci/everything.yaml"));
    let file = |name: &str| fs::read_to_string(workspace().join("helm/files").join(name)).unwrap();
    let runbook = yaml::read("values", &fs::read_to_string(&rendered.values).unwrap());
    let runbook = format!("{}#", runbook["prometheusRule"]["runbook"].as_str().unwrap());
    let alerts = file("alerts.yaml").replace("docs/runbook.md#", &runbook);
    let alerts = yaml::read("alerts.yaml", &alerts);
    assert_eq!(rendered.only("PrometheusRule").unwrap()["spec"], alerts);
    let name = json!("edge-limiter-dashboard");
    let dashboard = &rendered.named("ConfigMap", &name).unwrap()["data"]["sluicegate.json"];
    let [given, kept]: [Value; 2] = [dashboard.as_str().unwrap(), &file("dashboard.json")]
        .map(|text| serde_json::from_str(text).unwrap());
    assert_eq!(given, kept);
}

#[test]
fn names_fit_with_a_long_release_name() {
    let release = "r".repeat(53);
    let mut helm = tools::helm();
    let values = workspace().join("helm/ci/everything.yaml");
    helm.args(["template", &release, "helm", "--set", "fullnameOverride=", "--values"]).arg(values);
    let text = succeed(&mut helm);
    for object in yaml::read_all("template", &text) {
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(name.len() <= 63 && !name.ends_with('-'), "{name}");
    }
}

/// The memory limit of a pod is enough for the default `--memory-max-counters`.
#[test]
fn the_default_memory_holds_the_default_counters() {
    let rendered = Rendered::new(workspace().join("helm/ci/default.yaml"));
    let limit = rendered.container()["resources"]["limits"]["memory"].as_str().unwrap();
    let bytes = limit.strip_suffix("Gi").unwrap().parse::<u64>().unwrap() << 30;
    let help = succeed(Command::new(binary("sluicegate")).args(["serve", "--help"]));
    let (_, counters) = help.split_once("SLUICEGATE_MEMORY_MAX_COUNTERS").unwrap();
    let (_, counters) = counters.split_once("[default: ").unwrap();
    let counters: u64 = counters.split_once(']').unwrap().0.parse().unwrap();
    // The target of docs/performance.md for bytes per counter.
    let performance = fs::read_to_string(workspace().join("docs/performance.md")).unwrap();
    let targets = performance
        .lines()
        .filter(|line| line.starts_with("| memory, ") && line.contains("bytes per counter"));
    let most = targets.map(|line| line.split_once("≤ ").unwrap().1.split_once(' ').unwrap().0);
    let most: u64 = most.map(|it| it.parse().unwrap()).max().unwrap();
    assert!(counters * most < bytes, "{counters} × {most} B do not fit into {limit}");
}
