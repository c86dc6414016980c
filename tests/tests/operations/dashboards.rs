//! The Grafana dashboard: Prometheus accepts every query, and every query uses existing metrics.

use std::{cell::Cell, collections::BTreeSet, fs, time::Duration};

use serde_json::{Value, json};
use sluicegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use sluicegate_tests::{
    Catalogue, Load, Prometheus, Setup, Sluicegate, hit, hits,
    tools::{succeed, workspace},
    until,
};

const FILE: &str = "helm/files/dashboard.json";

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(workspace().join(FILE)).unwrap()).unwrap()
}

fn panels(dashboard: &Value) -> &[Value] {
    dashboard["panels"].as_array().unwrap()
}

/// A query, and its panel.
struct Query {
    panel: String,
    expression: String,
}

/// Every query of the dashboard, with all values of the variables and this span for rates.
fn queries(dashboard: &Value, interval: &str) -> Vec<Query> {
    let annotations = dashboard["annotations"]["list"].as_array().unwrap();
    let annotations = annotations.iter().map(|it| (&it["name"], &it["expr"]));
    let panels = panels(dashboard).iter().filter(|panel| panel["type"] != "row");
    let panels = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap();
        targets.iter().map(|target| (&panel["title"], &target["expr"]))
    });
    let query = |(name, expression): (&Value, &Value)| {
        let mut expression = expression.as_str().unwrap().replace("$__rate_interval", interval);
        for variable in ["namespace", "job", "instance", "domain"] {
            expression = expression.replace(&format!("\"${variable}\""), "\".*\"");
        }
        assert!(!expression.contains('$'), "{expression}");
        Query { panel: name.as_str().unwrap().to_owned(), expression }
    };
    annotations.chain(panels).map(query).collect()
}

#[test]
fn panels_are_numbered_placed_and_described() {
    let dashboard = dashboard();
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().unwrap();
        assert!(!title.is_empty() && ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let [x, y, w, h] =
            ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24, "{title}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{title} overlaps another panel at {cell:?}");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["description"].as_str().is_some_and(|it| it.ends_with('.')), "{title}");
        let defaults = &panel["fieldConfig"]["defaults"];
        let unit = defaults["unit"].as_str().or(panel["options"]["yAxis"]["unit"].as_str());
        assert!(unit.is_some(), "{title} has no unit");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let mut references = BTreeSet::new();
        for target in panel["targets"].as_array().unwrap() {
            assert!(references.insert(target["refId"].as_str().unwrap()), "{title}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            assert!(target["legendFormat"].as_str().is_some_and(|it| !it.is_empty()), "{title}");
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "namespace", "job", "instance", "domain"]);
}

#[test]
fn legends_use_labels_of_their_query() {
    let dashboard = dashboard();
    for panel in panels(&dashboard).iter().filter(|panel| panel["type"] != "row") {
        for target in panel["targets"].as_array().unwrap() {
            let (query, legend) =
                (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap());
            for label in legend.split("{{").skip(1).map(|it| it.split("}}").next().unwrap()) {
                let grouped = query.contains(" by (");
                let kept = query
                    .split(" by (")
                    .skip(1)
                    .any(|it| it.split(')').next().unwrap().split(", ").any(|it| it == label));
                let is_of_target = !grouped && !query.starts_with("sum(") && label == "instance";
                assert!(kept || is_of_target, "{legend}: {query}");
            }
        }
    }
}

#[test]
fn queries_use_existing_metrics_and_all_are_shown() {
    let catalogue = Catalogue::read();
    let mut shown = BTreeSet::new();
    for query in queries(&dashboard(), "5m") {
        shown.extend(catalogue.check(&query.expression));
    }
    let all = catalogue.names();
    // Maxima of metrics that panels show in another way.
    let left_out = ["process_virtual_memory_bytes", "process_threads", "up"];
    for name in all.iter().filter(|name| !left_out.contains(&name.as_str())) {
        let of_histogram = name.strip_suffix("_sum").or(name.strip_suffix("_count"));
        let shown = shown.contains(name)
            || of_histogram.is_some_and(|it| shown.contains(&format!("{it}_bucket")));
        assert!(shown, "no panel shows {name}");
    }
}

#[test]
fn prometheus_accepts_every_query() {
    let queries = queries(&dashboard(), "5m");
    let rules: Vec<_> = queries
        .iter()
        .enumerate()
        .map(|(at, query)| json!({"record": format!("panel:{at}"), "expr": query.expression}))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, json!({"groups": [{"name": "panels", "rules": rules}]}).to_string()).unwrap();
    let output =
        succeed(std::process::Command::new("promtool").args(["check", "rules"]).arg(&file));
    assert!(output.contains(&format!("SUCCESS: {} rules found", queries.len())), "{output}");
}

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 20}
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 1000000}
";

#[tokio::test]
async fn every_panel_has_data_of_a_server_under_traffic() {
    let redis = Setup::new().config("maxmemory 100mb").start().await;
    let flags = ["--store", &redis.url(), "--decision-timeout", "1s"];
    let server = Sluicegate::start(LIMITS, &flags).await;
    let prometheus = Prometheus::start(&server.http, "").await;
    let traffic = vec![
        hit("user", "ann"),
        hits("tenant", "acme", 3),
        hit("nobody", "knows"),
        RateLimitRequest { domain: "unknown".to_owned(), ..hit("user", "ann") },
    ];
    let rest = Duration::from_millis(10);
    let load = Load::start(std::slice::from_ref(&server.grpc), 4, rest, traffic).await;
    load.refuses(20).await;
    let waiting = Cell::new(queries(&dashboard(), "10s"));
    let users = Cell::new(0);
    until("every panel to have data", async || {
        // Users reach their limit quickly; as long as there are new users, some are near it.
        users.set(users.get() + 1);
        server.replace_limits(&format!("{LIMITS}# Change {}.\n", users.get()));
        let user = format!("user-{}", users.get());
        for _ in 0..25 {
            server.should_rate_limit(hit("user", &user)).await.unwrap();
        }
        let asked = waiting.take();
        let before = asked.len();
        let mut still = Vec::new();
        for query in asked {
            let series = prometheus.query(&query.expression).await;
            let has_data = series.iter().any(|it| it["value"][1] != "NaN");
            if !has_data {
                still.push(query);
            }
        }
        if still.len() < before {
            for Query { panel, expression } in &still {
                println!("without data: {panel}: {expression}");
            }
        }
        let done = still.is_empty();
        waiting.set(still);
        done.then_some(())
    })
    .await;
    let asked = load.stop().await;
    assert!(asked.iter().all(|asked| asked.answer.is_ok()), "{asked:?}");
}
