//! Runs one case and collects all differences.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use serde_json::Value;
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_client::HealthClient},
};

use crate::{
    case::Case,
    notation,
    server::Server,
    stats::{self, Page},
    step::{Ask, Get, Health, Keys, Post, Preset, Step},
    stores::Store,
};

/// A case that runs longer may have lost counters of one second.
const TOO_SLOW: Duration = Duration::from_millis(500);

/// Maximum time until a page or health is as expected.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The result of a case.
pub(crate) struct Outcome {
    title: String,
    differences: Vec<String>,
    took: Duration,
    in_redis: bool,
}

impl Outcome {
    pub(crate) const fn passed(&self) -> bool {
        self.differences.is_empty()
    }

    /// Whether counters in Redis may have expired meanwhile.
    pub(crate) fn too_slow(&self) -> bool {
        self.in_redis && self.took > TOO_SLOW
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        self.differences.iter().try_for_each(|difference| writeln!(f, "  {difference}"))
    }
}

/// Runs a case against a store.
pub(crate) async fn run(case: &Case, store: &Store) -> Outcome {
    let title = format!("{}: {} [{}]", case.file, case.title, case.counting.name());
    let in_redis = !matches!(store, Store::Memory);
    let mut outcome = Outcome { title, differences: Vec::new(), took: Duration::ZERO, in_redis };
    let server = match (Server::start(case, store).await, &case.fails) {
        (Ok(server), None) => server,
        (Ok(server), Some(why)) => {
            outcome.differences.push(format!("starts; should not, because\n{why}"));
            server.stop().await;
            return outcome;
        }
        (Err(error), why) => {
            let mut differences = Differences::default();
            let why = why.as_deref().unwrap_or("a server that starts");
            differences.compare("start", why.trim_end(), error.trim_end());
            outcome.differences = differences.found;
            return outcome;
        }
    };
    let mut differences = Differences::default();
    let started = Instant::now();
    for (place, step) in case.steps.iter().enumerate() {
        differences.step = place + 1;
        take(step, case, &server, store, &mut differences).await;
    }
    outcome.took = started.elapsed();
    server.stop().await;
    outcome.differences = differences.found;
    outcome
}

/// Differences by step.
#[derive(Default)]
struct Differences {
    step: usize,
    found: Vec<String>,
}

impl Differences {
    fn compare(&mut self, what: &str, expected: &str, got: &str) {
        if !notation::fits(expected, got) {
            let step = self.step;
            self.found
                .push(format!("step {step}, {what}\n    expected {expected}\n         got {got}"));
        }
    }

    fn compare_lists(&mut self, what: &str, expected: &[String], got: &[String]) {
        self.compare(what, &format!("[{}]", expected.join(", ")), &format!("[{}]", got.join(", ")));
    }
}

async fn take(
    step: &Step,
    case: &Case,
    server: &Server,
    store: &Store,
    differences: &mut Differences,
) {
    match step {
        Step::Ask(step) => ask(step, case, server, differences).await,
        Step::Preset(step) => preset(step, case, server).await,
        Step::Clock(step) => server.set_clock(step.clock),
        Step::Advance(step) => server.clock.advance(Duration::from_secs(step.advance)),
        Step::Reload(step) => server.reload(&step.reload.files(), step.rejected).await,
        Step::Get(step) => get(step, server, differences).await,
        Step::Post(step) => post(step, server, differences).await,
        Step::Health(step) => health(step, server, differences).await,
        Step::Keys(step) => keys(step, server, store, differences).await,
    }
}

async fn ask(step: &Ask, case: &Case, server: &Server, differences: &mut Differences) {
    let descriptors = step.ask.as_slice();
    let domain = step.domain.as_ref().unwrap_or(&case.domain);
    let request = notation::request(domain, descriptors, step.hits);
    let what = descriptors.join(" + ");
    let page_before = page(server, step.stats.is_some(), differences).await;
    let decided_before = server.decided().await;
    for at in 0..step.times {
        let nth = if step.times == 1 { what.clone() } else { format!("{what}, time {}", at + 1) };
        let answer = server.grpc.clone().should_rate_limit(request.clone()).await;
        let answer = answer.map(tonic::Response::into_inner);
        let expected = notation::at_repetition(&step.gives, at, step.times);
        differences.compare(&nth, &expected, &notation::answer(&answer));
        let Ok(answer) = answer else { continue };
        let headers = notation::headers(&answer);
        let at = |header: &String| notation::at_repetition(header, at, step.times);
        let expected: Vec<_> = step.headers.iter().map(at).collect();
        differences.compare_lists(&format!("{nth}: headers"), &expected, &headers);
        let metadata = notation::metadata(&answer);
        let shown = |it: &Option<Value>| it.as_ref().map_or("none".to_owned(), sorted);
        differences.compare(&format!("{nth}: metadata"), &shown(&step.metadata), &shown(&metadata));
    }
    if let Some(expected) = &step.decided_by {
        let decided = server.decided().await;
        let grown =
            decided.iter().filter(|(source, count)| decided_before.get(*source) != Some(count));
        let grown: Vec<_> = grown.map(|(source, _)| source.as_str()).collect();
        differences.compare(&format!("{what}: decided by"), expected, &grown.join(", "));
    }
    let Some(expected) = &step.stats else { return };
    let Some(before) = page_before else { return };
    let Some(after) = page(server, true, differences).await else { return };
    compare_stats(&what, expected, &stats::growth(&before, &after), differences);
}

/// JSON as text with sorted keys.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let map: BTreeMap<_, _> = map.iter().collect();
            let pairs = map.into_iter().map(|(key, it)| format!("{key}: {}", sorted(it)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(sorted).collect::<Vec<_>>().join(", "))
        }
        scalar => scalar.to_string(),
    }
}

/// The page, if `wanted`.
async fn page(server: &Server, wanted: bool, differences: &mut Differences) -> Option<Page> {
    if !wanted {
        return None;
    }
    let (status, body) = server.get("/stats").await;
    differences.compare("GET /stats", "200", &status.to_string());
    let page = if status == 200 { stats::read(&body) } else { return None };
    page.map_err(|error| differences.found.push(error)).ok()
}

fn compare_stats(
    what: &str,
    expected: &BTreeMap<String, Value>,
    grown: &BTreeMap<String, String>,
    differences: &mut Differences,
) {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let line = |(name, value): (&String, String)| format!("{name}: {value}");
    let expected: Vec<_> = expected.iter().map(|(name, it)| line((name, text(it)))).collect();
    let grown: Vec<_> = grown.iter().map(|(name, it)| line((name, it.clone()))).collect();
    differences.compare_lists(&format!("{what}: growth of /stats"), &expected, &grown);
}

/// Charges hits before a case. With `free` refused hits are not charged, so no more than the remaining hits are
/// requested.
async fn preset(step: &Preset, case: &Case, server: &Server) {
    let with_hits = |hits: u64| {
        let descriptor = format!("{}; hits {hits}", step.preset);
        notation::request(&case.domain, &[descriptor], 0)
    };
    let mut hits = step.to;
    if case.counting == crate::case::Counting::Free {
        let peek = server.grpc.clone().should_rate_limit(with_hits(0)).await.unwrap();
        hits = hits.min(peek.into_inner().statuses[0].limit_remaining.into());
    }
    if hits > 0 {
        server.grpc.clone().should_rate_limit(with_hits(hits)).await.unwrap();
    }
}

fn page_text((status, body): (u16, String)) -> String {
    format!("{status} | {}", body.trim_end()).trim_end().to_owned()
}

async fn get(step: &Get, server: &Server, differences: &mut Differences) {
    let expected = step.gives.trim_end();
    let got = settled(expected, || async { page_text(server.get(&step.get).await) }).await;
    differences.compare(&format!("GET {}", step.get), expected, &got);
}

async fn post(step: &Post, server: &Server, differences: &mut Differences) {
    let got = page_text(server.post(&step.post, &step.body).await);
    differences.compare(&format!("POST {} {}", step.post, step.body), step.gives.trim_end(), &got);
}

async fn health(step: &Health, server: &Server, differences: &mut Differences) {
    let asked = || async {
        let request = HealthCheckRequest { service: step.health.clone() };
        match HealthClient::new(server.channel.clone()).check(request).await {
            Ok(answer) if answer.get_ref().status == ServingStatus::Serving as i32 => {
                "SERVING".to_owned()
            }
            Ok(_) => "NOT_SERVING".to_owned(),
            Err(status) => format!("{:?}", status.code()),
        }
    };
    let got = settled(&step.gives, asked).await;
    differences.compare(&format!("health of {:?}", step.health), &step.gives, &got);
}

/// Waits for the expected text. After [`TIMEOUT`], returns the last text.
async fn settled<F: Future<Output = String>>(
    expected: &str,
    mut text: impl FnMut() -> F,
) -> String {
    let started = Instant::now();
    loop {
        let text = text().await;
        if notation::fits(expected, &text) || started.elapsed() > TIMEOUT {
            return text;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn keys(step: &Keys, server: &Server, store: &Store, differences: &mut Differences) {
    let Some(keys) = store.keys(&format!("{}*", server.own_prefix)).await else { return };
    // The key of the heartbeats is not a counter.
    let of_counters = keys.iter().filter(|key| !key.ends_with("s1:replicas"));
    let keys: Vec<_> = of_counters.map(|key| key[server.own_prefix.len()..].to_owned()).collect();
    differences.compare_lists("keys", &step.keys, &keys);
}
