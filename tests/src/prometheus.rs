//! A real Prometheus that scrapes the server under test.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{Process, free_port, until};

/// A running Prometheus.
#[derive(Debug)]
pub struct Prometheus {
    /// The process.
    pub process: Process,
    /// Address of the HTTP API.
    pub address: String,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes `target` (`HOST:PORT`) under the job `sluicegate`, and evaluates `rules`, both
    /// every 200 ms. `rules` is the text of a rule file, or empty.
    ///
    /// # Panics
    /// Prometheus cannot be started.
    pub async fn start(target: &str, rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        let config = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}\n\
             rule_files: [rules.yaml]\n\
             scrape_configs: [{{job_name: sluicegate, static_configs: [{{targets: ['{target}']}}]}}]\n"
        );
        let file = folder.path().join("prometheus.yaml");
        fs::write(&file, config).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--web.listen-address={address}"));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        let prometheus = Self { process: Process::start(command), address, _folder: folder };
        until("Prometheus to be ready", || async {
            let ready =
                reqwest::get(format!("http://{}/-/ready", prometheus.address)).await.ok()?;
            ready.status().is_success().then_some(())
        })
        .await;
        prometheus
    }

    /// The series that a query returns.
    ///
    /// # Panics
    /// The query is invalid.
    pub async fn query(&self, query: &str) -> Vec<Value> {
        let url = format!("http://{}/api/v1/query", self.address);
        let url = reqwest::Url::parse_with_params(&url, [("query", query)]).unwrap();
        let text = reqwest::get(url).await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["status"], "success", "{text}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// The samples of the only series that matches a selector with a range such as `[1m]`: seconds since the Unix
    /// epoch, and value. Empty if no series matches.
    ///
    /// # Panics
    /// Several series match, or the query is invalid.
    pub async fn samples(&self, query: &str) -> Vec<(f64, f64)> {
        let series = self.query(query).await;
        assert!(series.len() < 2, "{query}: {series:?}");
        let values = series.first().map(|it| it["values"].as_array().unwrap().clone());
        let sample =
            |it: &Value| (it[0].as_f64().unwrap(), it[1].as_str().unwrap().parse::<f64>().unwrap());
        values.unwrap_or_default().iter().map(sample).collect()
    }

    /// The only value of a query; `None` if there is none yet.
    ///
    /// # Panics
    /// The query returns several values, or is invalid.
    pub async fn value(&self, query: &str) -> Option<f64> {
        let series = self.query(query).await;
        assert!(series.len() < 2, "{query}: {series:?}");
        series.first().map(|it| it["value"][1].as_str().unwrap().parse().unwrap())
    }

    /// The state of an alert: `inactive`, `pending` or `firing`.
    ///
    /// # Panics
    /// There is no such alert.
    pub async fn alert(&self, name: &str) -> String {
        let url = format!("http://{}/api/v1/rules?type=alert", self.address);
        let text = reqwest::get(url).await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        let groups = answer["data"]["groups"].as_array().unwrap();
        let mut rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
        let rule = rules.find(|rule| rule["name"] == name);
        rule.unwrap_or_else(|| panic!("no alert {name}: {text}"))["state"].as_str().unwrap().into()
    }
}
