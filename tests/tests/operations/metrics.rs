//! Every metric of the catalogue, in Prometheus and OTLP.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    io::Write as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_response::Code,
};
use sluicegate_tests::{
    Authority, Cluster, Collector, Fleet, Mode, Proxy, Redis, Setup, Sluicegate, finish, hit, hits,
    request, tools, until,
};

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 10}
  - key: simulated
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: customer
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 1}
";

// === The catalogue ===

/// A metric in `docs/metrics.md` or on `/metrics`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// The table in `docs/metrics.md`. A unit test compares it with the catalogue.
fn catalogue() -> BTreeMap<String, Family> {
    let page = fs::read_to_string(tools::workspace().join("docs/metrics.md")).unwrap();
    let (_, table) = page.split_once("| metric | kind | labels | meaning |\n").unwrap();
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let entry = |row: &str| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, help] = cells[..] else { panic!("{row}") };
        let labels = labels.split_whitespace().map(|label| label.trim_matches('`').to_owned());
        let family =
            Family { kind: kind.to_owned(), help: help.to_owned(), labels: labels.collect() };
        (name.trim_matches('`').to_owned(), family)
    };
    rows.map(entry).collect()
}

/// The metrics on `/metrics`.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|it| it.split_once(' ')) {
            help.clone_into(&mut families.entry(name.to_owned()).or_default().help);
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' '))
        {
            kind.clone_into(&mut families.entry(name.to_owned()).or_default().kind);
        } else {
            let end = line.find(['{', ' ']).unwrap();
            let sample = &line[..end];
            let parts = ["_bucket", "_sum", "_count"].iter();
            let mut whole = parts.filter_map(|part| sample.strip_suffix(part));
            let histogram = |it: &&str| families.get(*it).is_some_and(|it| it.kind == "histogram");
            let name = whole.find(histogram).unwrap_or(sample).to_owned();
            let family = families.get_mut(&name).unwrap_or_else(|| panic!("no TYPE: {line}"));
            let labels = line.split_once('{').map_or("", |(_, rest)| rest);
            let names = labels.split("\",").filter_map(|label| label.split_once("=\""));
            let of_histogram = |name: &&str| *name != "le";
            family
                .labels
                .extend(names.map(|(name, _)| name).filter(of_histogram).map(str::to_owned));
        }
    }
    families
}

/// The output of `promtool check metrics`; empty if there is no mistake.
fn promtool(page: &str) -> String {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = [&output.stdout[..], &output.stderr[..]].concat();
    let printed = String::from_utf8(printed).unwrap();
    assert!(output.status.success(), "{}: {printed}", output.status);
    printed
}

/// Sends requests that change every metric.
async fn traffic(server: &Sluicegate) {
    let ask = |request: RateLimitRequest| server.should_rate_limit(request);
    let refused = async || ask(hits("user", "bob", 8)).await.unwrap().overall_code();
    assert_eq!(ask(hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
    assert_eq!(ask(hits("user", "bob", 8)).await.unwrap().overall_code(), Code::Ok);
    for _ in 0..2 {
        assert_eq!(refused().await, Code::OverLimit);
    }
    let mut refund = hit("user", "bob");
    refund.descriptors[0].is_negative_hits = true;
    ask(refund).await.unwrap();
    for key in ["simulated", "customer", "nothing"] {
        ask(hits(key, "x", 2)).await.unwrap();
    }
    ask(RateLimitRequest { domain: "other".to_owned(), ..hit("user", "bob") }).await.unwrap();
    ask(RateLimitRequest::default()).await.unwrap_err();
}

/// Compares the metrics of a server with the catalogue, after a successful and a rejected reload. Returns them.
async fn assert_as_documented(server: &Sluicegate) -> BTreeMap<String, Family> {
    traffic(server).await;
    let metric = |name: &'static str| async move { server.metric(name).await };
    let first = metric("sluicegate_config_hash").await;
    server.replace_limits(&LIMITS.replace("10}", "20}"));
    until("other limits", async || {
        (metric("sluicegate_config_generation").await == 2.0).then_some(())
    })
    .await;
    assert_eq!(metric("sluicegate_config_last_load_successful").await, 1.0);
    let second = metric("sluicegate_config_hash").await;
    assert_ne!(second, first);
    server.replace_limits("domain: [");
    until("bad limits to be refused", async || {
        (metric("sluicegate_config_last_load_successful").await == 0.0).then_some(())
    })
    .await;
    assert_eq!(metric("sluicegate_config_loads_total{result=\"failure\"}").await, 1.0);
    let (_, page) = server.get("/metrics").await;
    assert_eq!(promtool(&page), "");
    let (catalogue, shown) = (catalogue(), families(&page));
    for (name, family) in &shown {
        let entry = catalogue.get(name).unwrap_or_else(|| panic!("{name} is not in the catalogue"));
        assert_eq!((&family.kind, &family.help), (&entry.kind, &entry.help), "{name}");
        assert!(family.labels.is_subset(&entry.labels), "{name}: {:?}", family.labels);
    }
    server.replace_limits(&LIMITS.replace("10}", "20}"));
    until("the limits in force to be there again", async || {
        (metric("sluicegate_config_last_load_successful").await == 1.0).then_some(())
    })
    .await;
    assert_eq!(metric("sluicegate_config_generation").await, 2.0);
    assert_eq!(metric("sluicegate_config_hash").await, second);
    shown
}

#[tokio::test]
async fn metrics_match_the_catalogue() {
    let redis = Redis::start().await;
    let flags = ["--store", &redis.url(), "--decision-timeout", "5s"];
    let (memory, fleet) =
        tokio::join!(Sluicegate::start(LIMITS, &[]), Fleet::start(1, LIMITS, &flags));
    let mut shown = assert_as_documented(&memory).await;
    for (name, family) in assert_as_documented(&fleet.servers[0]).await {
        shown.entry(name).or_default().labels.extend(family.labels);
    }
    for (name, entry) in catalogue() {
        let family = shown.get(&name).unwrap_or_else(|| panic!("no server has {name}"));
        assert_eq!(family.labels, entry.labels, "{name}");
    }
    for (metric, value) in [
        ("sluicegate_requests_in_flight_max", 10_000.0),
        (concat!("sluicegate_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1.0),
        ("sluicegate_store_degraded_seconds_total", 0.0),
    ] {
        assert_eq!(memory.metric(metric).await, value, "{metric}");
    }
    // The same limits in different folders.
    let hash = memory.metric("sluicegate_config_hash").await;
    assert_eq!(fleet.servers[0].metric("sluicegate_config_hash").await, hash);
    let refused = "sluicegate_hits_over_limit_from_deny_cache_total";
    assert_eq!(fleet.sum(refused, &[("rule", "user")]).await, 8.0);
}

/// Regardless of its descriptors: the share of refused requests differs from the share of refused descriptors.
#[tokio::test]
async fn a_request_is_counted_once_by_its_verdict() {
    let limits = |unit: &str| {
        format!("{LIMITS}  - key: once\n    rate_limit: {{unit: {unit}, requests_per_unit: 1}}\n")
    };
    let counted = async |server: &Sluicegate| {
        let mut counted = Vec::new();
        for code in ["ok", "over_limit", "shadowed"] {
            let series = format!("sluicegate_requests_total{{code=\"{code}\",domain=\"api\"}}");
            counted.push(server.metric(&series).await);
        }
        counted
    };
    let asked: [&[(&str, &str)]; 4] =
        [&[("once", "x")], &[("simulated", "x")], &[("customer", "x")], &[("nothing", "x")]];
    for (flag, expected) in [(None, [1.0, 2.0, 0.0]), (Some("--shadow-mode"), [1.0, 0.0, 2.0])] {
        let server = Sluicegate::start(&limits("day"), flag.as_slice()).await;
        assert_eq!(counted(&server).await, [0.0; 3]);
        for _ in 0..3 {
            server.should_rate_limit(request(&asked)).await.unwrap();
        }
        assert_eq!(counted(&server).await, expected, "{flag:?}");
        server.replace_limits(&limits("hour"));
        until("other limits", async || {
            (server.metric("sluicegate_config_generation").await == 2.0).then_some(())
        })
        .await;
        assert_eq!(counted(&server).await, expected, "{flag:?}");
    }
}

#[tokio::test]
async fn process_metrics_are_shown() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let used = server.process.cpu().as_secs_f64();
    let shown = server.metric("process_cpu_seconds_total").await;
    // The system counts CPU time in ticks of 10 ms.
    assert!(shown + 0.02 >= used, "{shown} {used}");
    assert!(shown <= server.process.cpu().as_secs_f64(), "{shown}");
    let threads = || {
        let status = format!("/proc/{}/status", server.process.id());
        let status = fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
        line.trim().parse::<f64>().unwrap()
    };
    // Their number changes, also because of this test's requests.
    until("the number of threads", async || {
        (server.metric("process_threads").await == threads()).then_some(())
    })
    .await;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let age = now - server.metric("process_start_time_seconds").await;
    assert!((-1.0..60.0).contains(&age), "{age}");
    assert!(server.metric("process_resident_memory_bytes").await > 1e6);
    let (open, max) =
        (server.metric("process_open_fds").await, server.metric("process_max_fds").await);
    assert!(3.0 < open && open < max, "{open} of {max}");
}

// === Values of requests ===

#[tokio::test]
async fn values_of_requests_are_labels_up_to_a_bound() {
    let server = Sluicegate::start(LIMITS, &["--detailed-metric-series", "3"]).await;
    let longest = "x".repeat(256 - "customer_".len());
    let longer = format!("{longest}x");
    for customer in [&longer, "ann", &longest, "bob", "eve", "eve", "ann"] {
        server.should_rate_limit(hit("customer", customer)).await.unwrap();
    }
    let of = async |customer: &str| {
        let key = if customer == "(other)" {
            customer.to_owned()
        } else {
            format!("customer_{customer}")
        };
        server.sum("sluicegate_hits_total", &[("key", &key)]).await
    };
    for (customer, hits) in [
        ("ann", 2.0),
        (&longest, 1.0),
        ("bob", 1.0),
        ("eve", 0.0),
        (&longer, 0.0),
        ("(other)", 3.0),
    ] {
        assert_eq!(of(customer).await, hits, "{customer}");
    }
    assert_eq!(server.sum("sluicegate_hits_total", &[("rule", "customer")]).await, 7.0);
    // Decisions have no values as labels, for any rule.
    assert_eq!(server.sum("sluicegate_decisions_total", &[("rule", "customer")]).await, 7.0);
    let (_, page) = server.get("/metrics").await;
    assert!(!page.contains("customer_eve"), "{page}");
    // A removed rule frees its series.
    server.replace_limits(&LIMITS.replace("key: customer", "key: client"));
    until("the other rule", async || {
        (server.metric("sluicegate_config_generation").await == 2.0).then_some(())
    })
    .await;
    server.should_rate_limit(hit("client", "eve")).await.unwrap();
    assert_eq!(server.sum("sluicegate_hits_total", &[("key", "client_eve")]).await, 1.0);
}

#[tokio::test]
async fn unknown_domains_are_labels_up_to_a_bound() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    for number in 0..=101 {
        let domain = format!("d{number}");
        let request = RateLimitRequest { domain, ..hit("user", "bob") };
        server.should_rate_limit(request).await.unwrap();
    }
    let of = async |domain| {
        server.sum("sluicegate_requests_unknown_domain_total", &[("domain", domain)]).await
    };
    assert_eq!(
        [of("d0").await, of("d99").await, of("d100").await, of("(other)").await],
        [1.0, 1.0, 0.0, 2.0]
    );
}

// === Redis ===

async fn with_redis(store: &str, flags: &[&str]) -> Sluicegate {
    let own = ["--store", store, "--decision-timeout", "5s"];
    Fleet::start(1, LIMITS, &[&own, flags].concat()).await.servers.remove(0)
}

fn of(metric: &str, redis: &Redis) -> String {
    format!("{metric}{{server=\"{}\"}}", redis.address())
}

#[tokio::test]
async fn calls_and_batches_are_measured_each_once() {
    let redis = Redis::start().await;
    let server = with_redis(&redis.url(), &["--redis-connections", "1"]).await;
    let asked = (0..200).map(|number| {
        let (server, user) = (&server, format!("user{number}"));
        async move { server.should_rate_limit(hit("user", &user)).await.unwrap() }
    });
    futures::future::join_all(asked).await;
    let calls = server.metric("sluicegate_redis_calls_total").await;
    assert!(calls > 0.0);
    assert_eq!(server.metric("sluicegate_redis_call_duration_seconds_count").await, calls);
    assert!(server.metric("sluicegate_redis_call_duration_seconds_sum").await > 0.0);
    assert_eq!(server.metric("sluicegate_redis_batch_groups_count").await, calls);
    assert_eq!(server.metric("sluicegate_redis_batch_groups_sum").await, 200.0);
    let of = async |bound| {
        let bucket = format!("sluicegate_redis_call_duration_seconds_bucket{{le=\"{bound}\"}}");
        let (_, page) = server.get("/metrics").await;
        assert!(page.contains(&bucket), "{page}");
    };
    futures::future::join_all(["0.0001", "0.001", "1"].map(of)).await;
}

#[tokio::test]
async fn degraded_seconds_cover_the_whole_outage() {
    let mut redis = Redis::start().await;
    let mut server = with_redis(&redis.url(), &["--redis-connections", "2"]).await;
    let open = of("sluicegate_redis_connections_open", &redis);
    let breaker = of("sluicegate_redis_breaker_open", &redis);
    let memory = of("sluicegate_redis_memory_used_bytes", &redis);
    until("both connections", async || (server.metric(&open).await == 2.0).then_some(())).await;
    until("the memory", async || (server.metric(&memory).await > 0.0).then_some(())).await;
    assert_eq!(server.metric(&breaker).await, 0.0);
    assert_eq!(server.metric("sluicegate_redis_reconnects_total").await, 0.0);
    let (_, stats) = server.get("/stats").await;
    assert!(stats.contains("ratelimit.redis_pool.cx_active: 2\n"), "{stats}");
    let degraded =
        async |server: &Sluicegate| server.metric("sluicegate_store_degraded_seconds_total").await;
    // The time from the start until Redis was reached.
    let at_first = degraded(&server).await;
    assert!(at_first > 0.0);
    assert_eq!(degraded(&server).await, at_first);

    // No scrape during this outage.
    let killed = Instant::now();
    redis.kill().await;
    server
        .process
        .line("the outage", |line| line.contains("Redis unavailable").then_some(()))
        .await;
    let noticed = Instant::now();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let least = noticed.elapsed();
    redis.restart().await;
    let answers = |server: &Sluicegate| server.process.output().matches("Redis available").count();
    until("the end of it", async || (answers(&server) == 2).then_some(())).await;
    let most = killed.elapsed();
    let counted = degraded(&server).await - at_first;
    let bounds = least.as_secs_f64()..=most.as_secs_f64();
    assert!(bounds.contains(&counted), "{counted} {bounds:?}");
    assert_eq!(degraded(&server).await - at_first, counted);
    until("both connections again", async || (server.metric(&open).await == 2.0).then_some(()))
        .await;
    let made = server.metric("sluicegate_redis_connections_total").await;
    assert_eq!(server.metric("sluicegate_redis_reconnects_total").await, made - 2.0);

    // A scrape during this outage.
    redis.kill().await;
    until("the breaker", async || (server.metric(&breaker).await == 1.0).then_some(())).await;
    assert_eq!(server.metric(&open).await, 0.0);
    assert_eq!(server.metric("sluicegate_store_degraded").await, 1.0);
    let earliest = Instant::now();
    let first = degraded(&server).await;
    let between = Instant::now();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let least = between.elapsed();
    let grown = degraded(&server).await - first;
    let bounds = least.as_secs_f64()..=earliest.elapsed().as_secs_f64();
    assert!(bounds.contains(&grown), "{grown} {bounds:?}");
    // Metrics of an unreachable server are absent.
    until("the memory to be unknown", async || {
        let (_, page) = server.get("/metrics").await;
        (!page.contains("sluicegate_redis_memory_used_bytes")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn rejected_writes_are_an_outage_with_a_closed_breaker() {
    let redis = Redis::start().await;
    let server = with_redis(&redis.url(), &[]).await;
    redis.query(&["CONFIG", "SET", "maxmemory", "1"]).await;
    server.should_rate_limit(hit("user", "bob")).await.unwrap();
    assert_eq!(server.metric("sluicegate_store_degraded").await, 1.0);
    assert_eq!(server.metric(&of("sluicegate_redis_breaker_open", &redis)).await, 0.0);
    let max = of("sluicegate_redis_memory_max_bytes", &redis);
    until("the bound to be known", async || (server.metric(&max).await == 1.0).then_some(())).await;
    redis.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
    until("Redis to be of use", async || {
        server.should_rate_limit(hit("user", "ann")).await.unwrap();
        (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
    })
    .await;
    until("no bound", async || (server.metric(&max).await == 0.0).then_some(())).await;
    let degraded = server.metric("sluicegate_store_degraded_seconds_total").await;
    assert_eq!(server.metric("sluicegate_store_degraded_seconds_total").await, degraded);
}

#[tokio::test]
async fn redis_memory_is_shown_if_info_is_permitted() {
    let redis = Setup::new().user("admin", "admin").start().await;
    for (user, may) in [("open", "+info"), ("silent", "-info")] {
        let rules = ["on", ">secret", "~*", "&*", "+@all", may];
        redis.query(&[&["ACL", "SETUSER", user][..], &rules].concat()).await;
    }
    redis.query(&["SELECT", "3"]).await;
    let url = |user| redis.url().replace("//", &format!("//{user}:secret@")) + "/3";
    let keys = of("sluicegate_redis_keys", &redis);
    let silent = with_redis(&url("silent"), &[]).await;
    silent.should_rate_limit(hit("user", "bob")).await.unwrap();
    // Only a server that becomes available triggers the query.
    let open = with_redis(&url("open"), &[]).await;
    until("what Redis holds", async || (open.metric(&keys).await >= 1.0).then_some(())).await;
    let used: f64 = redis.info("memory", "used_memory").await.unwrap().unwrap().parse().unwrap();
    let shown = open.metric(&of("sluicegate_redis_memory_used_bytes", &redis)).await;
    assert!((0.5..2.0).contains(&(shown / used)), "{shown} {used}");
    until("Redis to refuse", async || {
        redis.query(&["ACL", "LOG"]).await.contains("info").then_some(())
    })
    .await;
    let (_, page) = silent.get("/metrics").await;
    let unknown = ["keys", "memory", "cpu", "clients"];
    for metric in unknown.map(|it| format!("sluicegate_redis_{it}")) {
        assert!(!page.contains(&metric), "{page}");
    }
    assert_eq!(silent.metric("sluicegate_store_degraded").await, 0.0);
}

#[tokio::test]
async fn cpu_time_and_clients_of_redis_are_shown() {
    let redis = Redis::start().await;
    redis.query(&["CONFIG", "SET", "maxclients", "321"]).await;
    let cpu = async || {
        let mut sum = 0.0;
        for field in ["used_cpu_sys", "used_cpu_user"] {
            let seconds = redis.info("cpu", field).await.unwrap().unwrap();
            sum += seconds.parse::<f64>().unwrap();
        }
        sum
    };
    // Visible beside the time that a start takes.
    redis.query(&["EVAL", "for i = 1, 2e7 do end", "0"]).await;
    let before = cpu().await;
    let server = with_redis(&redis.url(), &["--redis-connections", "3"]).await;
    let max = of("sluicegate_redis_clients_max", &redis);
    until("what Redis reports", async || (server.metric(&max).await == 321.0).then_some(())).await;
    let shown = server.metric(&of("sluicegate_redis_cpu_seconds_total", &redis)).await;
    let after = cpu().await;
    assert!((before..=after).contains(&shown), "{before} {shown} {after}");
    assert!(before > 0.01, "{before}");
    // At least the connection that asked, at most those of the server and of this test.
    let clients = server.metric(&of("sluicegate_redis_clients", &redis)).await;
    assert!((1.0..=5.0).contains(&clients), "{clients}");
}

#[tokio::test]
async fn every_primary_of_a_cluster_is_shown() {
    let cluster = Cluster::start().await;
    let server = with_redis(&cluster.url(), &[]).await;
    for metric in [
        "sluicegate_redis_memory_used_bytes",
        "sluicegate_redis_memory_max_bytes",
        "sluicegate_redis_keys",
        "sluicegate_redis_cpu_seconds_total",
        "sluicegate_redis_clients",
        "sluicegate_redis_clients_max",
        "sluicegate_redis_connections_open",
        "sluicegate_redis_breaker_open",
    ] {
        until(metric, async || {
            let (_, page) = server.get("/metrics").await;
            let series = page.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
            (series.count() == 3).then_some(())
        })
        .await;
    }
}

// === OTLP ===

const PUSHES: &str = "sluicegate_metrics_pushes_total{result=\"success\"}";
const FAILED_PUSHES: &str = "sluicegate_metrics_pushes_total{result=\"failure\"}";

/// The last value of a metric that a collector has received, with any labels.
fn received(collector: &Collector, metric: &str) -> Option<f64> {
    let output = collector.process.output();
    let (_, of_metric) = output.rsplit_once(&format!("-> Name: {metric}\n"))?;
    let value = of_metric.lines().find_map(|line| line.trim().strip_prefix("Value: "))?;
    value.parse().ok()
}

#[tokio::test]
async fn a_collector_receives_every_metric_at_shutdown() {
    let redis = Redis::start().await;
    let collector = Collector::start().await;
    // Only the shutdown exports metrics.
    let flags = ["--otlp-endpoint", &collector.endpoint, "--otlp-metrics-interval", "1h"];
    let server = with_redis(&redis.url(), &flags).await;
    traffic(&server).await;
    until("what Redis holds", async || {
        server.get("/metrics").await.1.contains("sluicegate_redis_keys{").then_some(())
    })
    .await;
    assert!(!collector.process.output().contains("sluicegate"));
    assert!(server.stop().await.success());
    until("the metrics", async || received(&collector, "sluicegate_redis_keys")).await;
    let output = collector.process.output();
    for (name, entry) in catalogue() {
        assert!(output.contains(&format!("-> Name: {name}\n")), "{name} is missing\n{output}");
        for label in &entry.labels {
            assert!(output.contains(&format!("-> {label}: Str(")), "{label} is missing\n{output}");
        }
    }
    assert_eq!(received(&collector, "sluicegate_requests_invalid_total"), Some(1.0));
    assert_eq!(received(&collector, "sluicegate_rules"), Some(3.0));
    let version = env!("CARGO_PKG_VERSION");
    for attribute in ["service.name: Str(sluicegate)", &format!("service.version: Str({version})")]
    {
        assert!(output.contains(attribute), "{attribute} is missing\n{output}");
    }
    let instance = output.split_once("service.instance.id: Str(").unwrap().1;
    assert_eq!(instance.split_once(')').unwrap().0.len(), 32);
}

#[tokio::test]
async fn an_unavailable_collector_is_logged_once() {
    let collector = Collector::start().await;
    let proxy = Proxy::start(collector.endpoint.strip_prefix("http://").unwrap()).await;
    let endpoint = format!("http://{}", proxy.address());
    let flags = ["--otlp-endpoint", &endpoint, "--otlp-metrics-interval", "1s"];
    let mut server = Sluicegate::start(LIMITS, &flags).await;
    let lines = |server: &Sluicegate, text: &str| server.process.output().matches(text).count();
    let (away, back) = ("cannot be sent to the collector", "sent to the collector again");
    for times in 1..=2 {
        let asked = server.metric("sluicegate_decision_duration_seconds_count").await;
        server.should_rate_limit(hit("user", "bob")).await.unwrap();
        until("a push", async || {
            let pushed = received_count(&collector, "sluicegate_decision_duration_seconds")?;
            (pushed == asked + 1.0).then_some(())
        })
        .await;
        proxy.set(Mode::Refuse);
        until("that it is away", async || (lines(&server, away) == times).then_some(())).await;
        let failed = server.metric(FAILED_PUSHES).await;
        until("more that fail", async || {
            (server.metric(FAILED_PUSHES).await >= failed + 2.0).then_some(())
        })
        .await;
        server.should_rate_limit(hit("user", "bob")).await.unwrap();
        proxy.set(Mode::Pass);
        until("that it is back", async || (lines(&server, back) == times).then_some(())).await;
        assert_eq!(lines(&server, away), times, "{}", server.process.output());
    }
    // A collector that does not reply does not delay the shutdown.
    proxy.set(Mode::Swallow);
    server.process.signal(Signal::SIGTERM);
    let line =
        |line: &str| line.contains("the last metrics were not sent to the collector").then_some(());
    server.process.line("that the last push is given up", line).await;
    assert!(server.process.ended().await.success());
}

#[tokio::test]
async fn series_beyond_one_message_all_arrive() {
    const KEYS: usize = 16_000;
    let limits = "
domain: api
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 9}
";
    let collector = Collector::start().await;
    let flags = ["--otlp-endpoint", &collector.endpoint, "--otlp-metrics-interval", "3s"];
    let series = ["--detailed-metric-series", &KEYS.to_string()];
    let flags = [&flags[..], &series].concat();
    // The collector prints every point, which may take some time.
    let export_timeout = [("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")];
    let server = Sluicegate::start_in(limits, &flags, &export_timeout).await;
    // The points of this metric alone are larger than the 4 MiB of a message.
    let value = |number: usize| format!("{number:05}{}", "x".repeat(240));
    for numbers in (0..KEYS).collect::<Vec<_>>().chunks(250) {
        let values: Vec<_> = numbers.iter().map(|number| [("user", value(*number))]).collect();
        let descriptors: Vec<_> = values.iter().map(|entries| &entries[..]).collect();
        server.should_rate_limit(request(&descriptors)).await.unwrap();
    }
    let before = server.metric(PUSHES).await;
    // The first export may have begun before.
    until("two pushes", async || (server.metric(PUSHES).await >= before + 2.0).then_some(())).await;
    assert_eq!(server.metric(FAILED_PUSHES).await, 0.0, "{}", server.process.output());
    until("every series", async || {
        let output = collector.process.output();
        let (mut keys, mut is_hits) = (HashSet::new(), false);
        for line in output.lines() {
            if let Some((_, name)) = line.split_once("-> Name: ") {
                is_hits = name == "sluicegate_hits_total";
            } else if let Some((_, key)) = line.split_once("-> key: Str(user_")
                && is_hits
            {
                keys.insert(key.get(..5).unwrap());
            }
        }
        (keys.len() == KEYS).then_some(())
    })
    .await;
}

#[tokio::test]
async fn otel_variables_set_resource_attributes() {
    let attributes =
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,service.instance.id=pod-1,team=b");
    for (environment, name) in
        [(&[attributes][..], "a"), (&[attributes, ("OTEL_SERVICE_NAME", "edge")], "edge")]
    {
        let collector = Collector::start().await;
        let flags = ["--otlp-endpoint", &collector.endpoint, "--otlp-metrics-interval", "1s"];
        let _server = Sluicegate::start_in(LIMITS, &flags, environment).await;
        until("the metrics", async || received(&collector, "sluicegate_rules")).await;
        let output = collector.process.output();
        let wanted = [
            &*format!("service.name: Str({name})"),
            "service.instance.id: Str(pod-1)",
            "team: Str(b)",
            "telemetry.sdk.language: Str(rust)",
        ];
        for attribute in wanted {
            assert!(output.contains(attribute), "{attribute} is missing\n{output}");
        }
        let names = |of: &str| output.matches(of).count();
        assert_eq!(names("service.name: "), names(wanted[0]), "{output}");
    }
}

/// The last count of a histogram that a collector has received.
fn received_count(collector: &Collector, metric: &str) -> Option<f64> {
    let output = collector.process.output();
    let (_, of_metric) = output.rsplit_once(&format!("-> Name: {metric}\n"))?;
    let value = of_metric.lines().find_map(|line| line.trim().strip_prefix("Count: "))?;
    value.parse().ok()
}

#[tokio::test]
async fn a_collector_over_tls_needs_a_trusted_ca() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let ours = Authority::new("ours");
    fs::write(path("ours.pem"), ours.pem()).unwrap();
    fs::write(path("other.pem"), Authority::new("other").pem()).unwrap();
    fs::write(path("none.pem"), "").unwrap();
    ours.issue("127.0.0.1").write(folder.path(), "server");
    // Another server acts as collector: it accepts the TLS handshake, and does not have the service.
    let tls = ["--grpc-tls-cert", &path("server.pem"), "--grpc-tls-key", &path("server.key")];
    let collector = Sluicegate::start(LIMITS, &tls).await;
    let endpoint = format!("https://{}", collector.grpc);
    let failed = async || collector.metric("sluicegate_tls_handshakes_failed_total").await;
    for (authority, trusted) in [("ours.pem", true), ("other.pem", false)] {
        let authority = path(authority);
        let flags = ["--otlp-endpoint", &endpoint, "--otlp-tls-ca", &authority];
        let all = [&flags[..], &["--otlp-metrics-interval", "1s"]].concat();
        let before = failed().await;
        let mut server = Sluicegate::start(LIMITS, &all).await;
        let why = |line: &str| line.contains("cannot be sent").then(|| line.to_owned());
        let why = server.process.line("what the collector says", why).await;
        assert_eq!(why.contains("Unimplemented"), trusted, "{why}");
        assert_eq!(failed().await == before, trusted, "{authority}");
    }
    for (endpoint, authority, expected) in [
        (&*endpoint, "none.pem", "no certificate can be read"),
        (&endpoint, "missing.pem", "cannot read"),
        ("http://127.0.0.1:1", "ours.pem", "use https://"),
    ] {
        let (authority, limits) = (path(authority), path("limits.yaml"));
        fs::write(&limits, LIMITS).unwrap();
        let flags = ["--limits", &limits, "--otlp-endpoint", endpoint, "--otlp-tls-ca", &authority];
        let refused = finish(Sluicegate::command(&flags, &[])).await;
        assert_eq!((refused.code, refused.stderr.lines().count()), (1, 1), "{refused:?}");
        let stderr = &refused.stderr;
        assert!(stderr.contains("--otlp-tls-ca") && stderr.contains(expected), "{stderr}");
    }
}
