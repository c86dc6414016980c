//! `sluicectl rules`, `peek`, `reset` and `status`.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
};

use futures::future::join_all;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_response::Code,
};
use sluicegate_tests::{
    Authority, Cluster, Finished, Redis, Sluicegate, binary, finish, hit, long_window,
    long_windows, request, until,
};
use tokio::process::Command;

/// Tenants, a limit of each algorithm, several limits on one descriptor, and a counter that several values share.
const API: &str = "
domain: api
tenant: tenant
descriptors:
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 1000}
    descriptors:
      - key: user
        on_failure: deny
        limits:
          - {name: daily, unit: day, requests_per_unit: 10}
          - {name: burst, algorithm: token_bucket, unit: day, requests_per_unit: 5}
      - key: route
        value: /v1/*
        share_threshold: true
        rate_limit: {algorithm: sliding_window_log, unit: day, requests_per_unit: 20}
      - key: gcra
        shadow_mode: true
        rate_limit: {algorithm: gcra, unit: day, requests_per_unit: 20}
      - key: window
        rate_limit: {algorithm: sliding_window_counter, unit: day, requests_per_unit: 20}
  - key: ip
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: free
    rate_limit: {unlimited: true}
";

/// Another domain with the same tenants.
const SHOP: &str = "
domain: shop
tenant: tenant
response_body: openai
descriptors:
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 1000}
";

/// A domain without tenants.
const PLAIN: &str = "
domain: plain
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 5}
";

/// A server with this store, once the store is available. The limits have [long windows](long_windows).
async fn serve(store: &str, more: &[&str]) -> Sluicegate {
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits");
    fs::create_dir(&limits).unwrap();
    for (name, text) in [("api.yaml", API), ("plain.yaml", PLAIN), ("shop.yaml", SHOP)] {
        fs::write(limits.join(name), long_windows(text)).unwrap();
    }
    let limits = limits.to_str().unwrap().to_owned();
    let own = ["--limits", &limits, "--store", store, "--decision-timeout", "10s"];
    let server = Sluicegate::start_with(folder, &[&own, more].concat()).await;
    until("the store", || async {
        (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
    })
    .await;
    server
}

/// Every kind of store, with its running servers.
enum Store {
    Memory,
    Redis(Box<Redis>),
    Cluster(Cluster),
}

impl Store {
    async fn all() -> [Self; 3] {
        let redis = Box::new(Redis::start().await);
        [Self::Memory, Self::Redis(redis), Self::Cluster(Cluster::start().await)]
    }

    fn url(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            Self::Redis(redis) => redis.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }
}

async fn ctl<S: AsRef<OsStr>>(server: &Sluicegate, arguments: &[S]) -> Finished {
    let mut command = Command::new(binary("sluicectl"));
    command.args(arguments).args(["--timeout", "30s"]);
    command.arg("--admin-server").arg(format!("http://{}", server.admin));
    finish(command).await
}

/// Exit code and JSON output.
async fn ctl_json<S: AsRef<OsStr>>(server: &Sluicegate, arguments: &[S]) -> (i32, Value) {
    let mut all: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
    all.extend(["--output", "json"].map(OsStr::new));
    let answer = ctl(server, &all).await;
    let json = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
    (answer.code, json)
}

/// Every counter of a tenant: its key, and its used hits if its rule is known.
async fn counters(server: &Sluicegate, domain: &str, tenant: &[u8]) -> BTreeMap<String, Value> {
    let mut asked: Vec<&OsStr> = ["peek", "--domain", domain, "--tenant"].map(OsStr::new).into();
    asked.push(OsStr::from_bytes(tenant));
    let (code, json) = ctl_json(server, &asked).await;
    let listed = json["counters"].as_array().unwrap();
    assert_eq!(code, i32::from(listed.is_empty()), "{json}");
    let counters: BTreeMap<_, _> = listed
        .iter()
        .map(|it| {
            (it["counter_key"].as_str().unwrap().to_owned(), it["limit"]["counter"]["used"].clone())
        })
        .collect();
    assert_eq!(counters.len(), listed.len(), "each once: {json}");
    counters
}

fn in_domain(domain: &str, mut request: RateLimitRequest) -> RateLimitRequest {
    domain.clone_into(&mut request.domain);
    request
}

async fn ask(server: &Sluicegate, request: RateLimitRequest) -> Code {
    server.should_rate_limit(request).await.unwrap().overall_code()
}

/// Charges [`USED`] counters of a tenant in `api`, and one in `shop`.
async fn use_some(server: &Sluicegate, tenant: &[u8], long: &[u8]) {
    let of = |key: &'static str, value: &[u8]| {
        request(&[
            &[("tenant", tenant.to_vec())],
            &[("tenant", tenant.to_vec()), (key, value.to_vec())],
        ])
    };
    for request in [
        of("user", b"bob"),
        of("user", b"bob"),
        of("user", long),
        of("route", b"/v1/a"),
        of("route", b"/v1/b"),
        of("gcra", b"x"),
        of("window", b"x y\xff"),
        in_domain("shop", request(&[&[("tenant", tenant)]])),
    ] {
        assert_eq!(ask(server, request).await, Code::Ok);
    }
}

/// The tenant's counter, two users with two limits each, a shared counter, and two of other algorithms.
const USED: usize = 1 + 4 + 1 + 2;

#[tokio::test]
async fn a_tenant_reset_affects_only_the_tenants_counters() {
    let tenants: [&[u8]; 8] = [
        b"acme",
        b"acm",
        b"{acme}",
        b"*",
        b"a?[b-d]\\ %41^",
        b"\xff\x01\n",
        &[b'x'; 5000],
        &[b'x'; 250],
    ];
    let long = [b'u'; 3000];
    for store in Store::all().await {
        for prefix in ["", "a*[b]?:"] {
            let server = serve(&store.url(), &["--key-prefix", prefix]).await;
            // Keys of other applications are not counters.
            if let Store::Redis(redis) = &store {
                redis
                    .query(&["SET", &format!("{prefix}s1:fw:60:{{acme}}:other:tenant"), "1"])
                    .await;
                if !prefix.is_empty() {
                    redis.query(&["SET", "s1:fw:60:{acme}:api:tenant:not", "1"]).await;
                }
            }
            for tenant in tenants {
                use_some(&server, tenant, &long).await;
            }
            let all = async |domain| {
                join_all(tenants.iter().map(|tenant| counters(&server, domain, tenant))).await
            };
            let (before, shop) = (all("api").await, all("shop").await);
            for (tenant, counters) in tenants.iter().zip(&before) {
                assert_eq!(counters.len(), USED, "{tenant:?} {counters:#?}");
                let known = counters.values().filter(|counter| !counter.is_null()).count();
                // The rule of a key that ends in a digest is unknown.
                assert_eq!(known, USED - 2, "{tenant:?} {counters:#?}");
                assert!(counters.keys().all(|key| key.starts_with(&format!("{prefix}s1:"))));
            }
            for (at, tenant) in tenants.iter().enumerate() {
                let mut reset: Vec<&OsStr> =
                    ["reset", "tenant", "--domain", "api", "--tenant"].map(OsStr::new).into();
                reset.push(OsStr::from_bytes(tenant));
                let dry: Vec<&OsStr> = [&reset[..], &[OsStr::new("--dry-run")]].concat();
                let would =
                    json!({"dry_run": true, "counters": USED, "complete": true, "more": false});
                assert_eq!(ctl_json(&server, &dry).await, (0, would));
                assert_eq!(counters(&server, "api", tenant).await, before[at], "a dry run");
                let done =
                    json!({"dry_run": false, "counters": USED, "complete": true, "more": false});
                assert_eq!(ctl_json(&server, &reset).await, (0, done));
                assert!(counters(&server, "api", tenant).await.is_empty());
                for (other, before) in tenants.iter().zip(&before).skip(at + 1) {
                    assert_eq!(counters(&server, "api", other).await, *before, "{other:?}");
                }
                assert_eq!(ctl(&server, &reset).await.code, 1, "no counters are left");
            }
            assert_eq!(all("shop").await, shop, "another domain");
            let count = server.metric("sluicegate_counters_reset_total").await;
            assert_eq!(count, (USED * tenants.len()) as f64);
            if let Store::Redis(redis) = &store {
                let other = redis.keys("*{acme}:other:*").await;
                assert_eq!(other.len(), 1, "{other:?}");
                redis.query(&["FLUSHALL"]).await;
            }
            for tenant in tenants {
                let shop: [&OsStr; 5] =
                    ["reset", "tenant", "--domain", "shop", "--tenant"].map(OsStr::new);
                let shop = [&shop[..], &[OsStr::from_bytes(tenant)]].concat();
                ctl(&server, &shop).await;
            }
        }
    }
}

#[tokio::test]
async fn a_reset_takes_effect_at_once() {
    for store in Store::all().await {
        let server = serve(&store.url(), &[]).await;
        let tenant = ["reset", "tenant", "--domain", "api", "--tenant", "acme"];
        let counter = ["reset", "counter", "--domain", "api", "--descriptor"];
        let user = || request(&[&[("tenant", "acme"), ("user", "bob")]]);
        let resets: [(RateLimitRequest, usize, Vec<&str>); 3] = [
            (user(), 5, tenant.to_vec()),
            (user(), 5, [&counter[..], &["tenant=acme,user=bob"]].concat()),
            (hit("ip", "::1"), 3, [&counter[..], &["ip=::1"]].concat()),
        ];
        for (request, limit, reset) in resets {
            for round in 0..3 {
                for _ in 0..limit {
                    assert_eq!(ask(&server, request.clone()).await, Code::Ok, "round {round}");
                }
                // The second refusal comes from the deny cache, if there is one.
                for _ in 0..2 {
                    assert_eq!(ask(&server, request.clone()).await, Code::OverLimit);
                }
                let answer = ctl(&server, &reset).await;
                assert_eq!((answer.code, &*answer.stderr), (0, ""), "{answer:?}");
            }
        }
    }
}

#[tokio::test]
async fn one_counter_is_reset_by_descriptor_limit_or_name() {
    for store in Store::all().await {
        let server = serve(&store.url(), &["--key-prefix", "blue:"]).await;
        let descriptor = ["--descriptor", "tenant=acme,user=bob"];
        let bob = || request(&[&[("tenant", "acme"), ("user", "bob")]]);
        let daily = &*long_windows("blue:s1:fw:86400:{acme}:api:tenant:user=bob");
        let burst = &*long_windows("blue:s1:tb:86400:{acme}:api:tenant:user=bob");
        let used = async || {
            let asked = [&["peek", "--domain", "api"][..], &descriptor].concat();
            let (code, json) = ctl_json(&server, &asked).await;
            assert_eq!(code, 0);
            let counters = &json["descriptors"][0]["counters"];
            [0, 1].map(|at| counters[at]["counter"]["used"].as_u64().unwrap())
        };
        let reset = async |more: &[&str]| {
            let (code, json) = ctl_json(&server, &[&["reset", "counter"], more].concat()).await;
            let results = json["counters"].as_array().unwrap().iter().map(|it| {
                (it["counter_key"].as_str().unwrap().to_owned(), it["was_used"].as_bool().unwrap())
            });
            (code, results.collect::<Vec<_>>())
        };
        let asked = [&["--domain", "api"][..], &descriptor].concat();
        for _ in 0..3 {
            ask(&server, bob()).await;
        }
        assert_eq!(used().await, [3, 3]);
        let both = |used| vec![(daily.to_owned(), used), (burst.to_owned(), used)];
        let dry = reset(&[&asked[..], &["--dry-run"]].concat()).await;
        assert_eq!(dry, (0, both(true)));
        assert_eq!(used().await, [3, 3]);
        let one = reset(&[&asked[..], &["--limit", "burst"]].concat()).await;
        assert_eq!(one, (0, vec![(burst.to_owned(), true)]));
        assert_eq!(used().await, [3, 0]);
        assert_eq!(reset(&["--key", daily]).await, (0, vec![(daily.to_owned(), true)]));
        assert_eq!(used().await, [0, 0]);
        assert_eq!(reset(&["--key", daily]).await, (1, vec![(daily.to_owned(), false)]));
        ask(&server, bob()).await;
        assert_eq!(reset(&asked).await, (0, both(true)));
        assert_eq!(reset(&asked).await, (1, both(false)));
    }
}

#[tokio::test]
async fn peek_shows_counters_and_charges_nothing() {
    let server = serve("memory", &[]).await;
    for _ in 0..2 {
        ask(&server, request(&[&[("tenant", "acme"), ("user", "bob")]])).await;
    }
    let asked = ["peek", "--domain", "api", "--descriptor", "tenant=acme,user=bob"];
    let more = ["--descriptor", "ip=::1", "--descriptor", "free=x", "--descriptor", "no=thing"];
    let answer = ctl(&server, &[&asked[..], &more].concat()).await;
    assert_eq!((answer.code, &*answer.stderr), (0, ""));
    let folder = format!("{}/limits/", server.folder().display());
    let text = answer.stdout.replace(&folder, "");
    let steady = |line: &str| {
        let line = line.split_once(", resets in ").map_or(line, |(before, _)| before);
        line.split_once("hash     ").map_or(line, |(before, _)| before).trim_end().to_owned()
    };
    let lines: Vec<_> = text.lines().map(steady).collect();
    let wanted = "\
tenant=acme, user=bob
    rule tenant.user (api.yaml:8)
    limit 10 per day (daily), fixed_window, counting free, on_failure deny
      counter  s1:fw:86400:{acme}:api:tenant:user=bob
      slot     11304
      state    2 of 10 used, 8 left

    limit 5 per day (burst), token_bucket, counting free, on_failure deny
      counter  s1:tb:86400:{acme}:api:tenant:user=bob
      slot     11304
      state    2 of 5 used, 3 left

ip=::1
    rule ip (api.yaml:22)
    limit 3 per day, fixed_window, counting free, on_failure local
      counter  s1:fw:86400:{api:ip=%3a%3a1}
      slot     8967
      state    0 of 3 used, 3 left

free=x
    rule free (api.yaml:24)
no=thing
    no limit applies";
    assert_eq!(lines.join("\n"), long_windows(wanted));
    let (_, json) = ctl_json(&server, &asked).await;
    let counter = &json["descriptors"][0]["counters"][0];
    assert_eq!(counter["hash_slot"], 11304);
    assert_eq!(counter["counter"]["used"], 2);
    assert_eq!(counter["key_hash"].as_str().unwrap().len(), 16);
    let none = ["peek", "--domain", "api", "--descriptor", "no=thing"];
    assert_eq!(ctl(&server, &none).await.code, 1);
}

#[tokio::test]
async fn a_tenants_counters_are_listed_with_their_rules() {
    let server = serve("memory", &[]).await;
    use_some(&server, b"acme", &[b'u'; 3000]).await;
    let asked = ["peek", "--domain", "api", "--tenant", "acme"];
    let (_, json) = ctl_json(&server, &asked).await;
    let rules: BTreeMap<&str, &Value> = json["counters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["counter_key"].as_str().unwrap(), &it["rule"]["path"]))
        .collect();
    let known: Vec<_> = rules.iter().filter(|(_, rule)| !rule.is_null()).collect();
    assert_eq!(
        known
            .iter()
            .map(|(key, rule)| ((**key).to_owned(), rule.as_str().unwrap()))
            .collect::<Vec<_>>(),
        [
            ("s1:fw:86400:{acme}:api:tenant", "tenant"),
            ("s1:fw:86400:{acme}:api:tenant:user=bob", "tenant.user"),
            ("s1:gc:86400:{acme}:api:tenant:gcra=x", "tenant.gcra"),
            ("s1:sc:86400:{acme}:api:tenant:window=x%20y%ff", "tenant.window"),
            ("s1:sl:86400:{acme}:api:tenant:route=/v1/*", "tenant.route=/v1/*"),
            ("s1:tb:86400:{acme}:api:tenant:user=bob", "tenant.user"),
        ]
        .map(|(key, rule)| (long_windows(key), rule))
    );
    assert_eq!(json["more"], false);
    let (_, some) = ctl_json(&server, &[&asked[..], &["--limit", "3"]].concat()).await;
    assert_eq!((some["counters"].as_array().unwrap().len(), &some["more"]), (3, &json!(true)));
    let answer = ctl(&server, &asked).await;
    let lines: Vec<_> =
        answer.stdout.lines().map(|it| it.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(lines[0], ["COUNTER", "USED", "RESETS", "IN", "RULE", "HASH"]);
    let tenant = long_windows("s1:fw:86400:{acme}:api:tenant");
    let own = lines.iter().find(|line| line[0] == tenant).unwrap();
    assert_eq!(own[1..4], ["7", "of", "1000"]);
    assert_eq!(lines.len(), 1 + USED);
}

#[tokio::test]
async fn invalid_targets_are_reported() {
    let server = serve("memory", &[]).await;
    let of_limit = |descriptor: &'static str| {
        ["reset", "counter", "--domain", "api", "--descriptor", descriptor, "--limit", "x"]
    };
    let no_limit = "no limit of the name x applies to the descriptor; ";
    for (arguments, expected) in [
        (
            &["reset", "tenant", "--domain", "nothing", "--tenant", "a"][..],
            "no limits file has domain nothing",
        ),
        (
            &["reset", "counter", "--domain", "nothing", "--descriptor", "a=b"],
            "no limits file has domain nothing",
        ),
        (&["peek", "--domain", "nothing", "--tenant", "a"], "no limits file has domain nothing"),
        (&of_limit("tenant=a,user=b"), &format!("{no_limit}these do: daily, burst")),
        (&of_limit("ip=::1"), &format!("{no_limit}those that do have no names")),
        (&of_limit("no=thing"), &format!("{no_limit}no limit does")),
    ] {
        let answer = ctl(&server, arguments).await;
        assert_eq!((answer.code, answer.stderr.lines().count()), (1, 1), "{answer:?}");
        assert!(answer.stderr.contains(expected) && answer.stdout.is_empty(), "{answer:?}");
    }
    for (arguments, expected) in [
        (&["reset", "tenant", "--domain", "plain", "--tenant", "a"][..], "names no tenant"),
        (&["reset", "tenant", "--domain", "api", "--tenant", ""], "tenant must not be empty"),
        (&["peek", "--domain", "plain", "--tenant", "a"], "names no tenant"),
        (&["reset", "counter", "--key", "user:bob"], "not the name of a counter"),
        (&["peek", "--domain", "", "--descriptor", "a=b"], "domain must not be empty"),
    ] {
        let answer = ctl(&server, arguments).await;
        assert_eq!((answer.code, answer.stderr.lines().count()), (3, 1), "{answer:?}");
        assert!(answer.stderr.contains(expected), "{answer:?}");
    }
    for arguments in [
        &["peek", "--domain", "api"][..],
        &["peek", "--domain", "api", "--tenant", "a", "--descriptor", "a=b"],
        &["reset", "counter", "--domain", "api"],
        &["reset", "counter", "--descriptor", "a=b"],
        &["reset", "counter", "--key", "a", "--domain", "api"],
        &["reset", "tenant", "--tenant", "a"],
        &["reset"],
    ] {
        assert_eq!(ctl(&server, arguments).await.code, 2, "{arguments:?}");
    }
    let nothing = ["reset", "counter", "--domain", "api", "--descriptor", "no=thing"];
    let answer = ctl(&server, &nothing).await;
    assert_eq!((answer.code, answer.stdout.trim()), (1, "no limit applies"));
}

#[tokio::test]
async fn resets_are_audit_logged_with_the_caller() {
    for labels in ["plain", "hashed"] {
        let server = serve("memory", &["--log-format", "json", "--top-labels", labels]).await;
        use_some(&server, b"acme", b"x").await;
        ctl(&server, &["reset", "tenant", "--domain", "api", "--tenant", "acme", "--dry-run"])
            .await;
        ctl(&server, &["reset", "tenant", "--domain", "api", "--tenant", "acme"]).await;
        ctl(&server, &["reset", "counter", "--domain", "api", "--descriptor", "ip=::1"]).await;
        let lines: Vec<Value> = until("the lines", || async {
            let output = server.process.output();
            let lines = output.lines().filter_map(|line| serde_json::from_str(line).ok());
            let lines: Vec<Value> =
                lines.filter(|line: &Value| line["target"] == "sluicegate::audit").collect();
            (lines.len() == 5).then_some(lines)
        })
        .await;
        let [dry_begins, dry, tenant_begins, tenant, counter] = &lines[..] else {
            panic!("{lines:?}")
        };
        for (line, message, domain, count) in [
            (dry_begins, "tenant reset begins", "api", None),
            (dry, "tenant reset", "api", Some(USED)),
            (tenant_begins, "tenant reset begins", "api", None),
            (tenant, "tenant reset", "api", Some(USED)),
            (counter, "counter reset", "api", Some(0)),
        ] {
            assert_eq!(
                (&line["message"], &line["level"]),
                (&json!(message), &json!("INFO")),
                "{line}"
            );
            assert_eq!(
                (&line["domain"], &line["counters"]),
                (&json!(domain), &json!(count)),
                "{line}"
            );
            assert!(line["caller"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        }
        assert_eq!([&dry["dry_run"], &tenant["dry_run"]], [true, false]);
        assert_eq!([&dry_begins["dry_run"], &tenant_begins["dry_run"]], [true, false]);
        assert_eq!(tenant_begins["tenant"], tenant["tenant"]);
        let plain = labels == "plain";
        assert_eq!(tenant["tenant"] == "acme", plain, "{tenant}");
        let key = long_windows("s1:fw:86400:{api:ip=%3a%3a1}");
        assert_eq!(counter["counter"] == key, plain, "{counter}");
        assert_eq!(tenant["tenant"].as_str().unwrap().len(), if plain { 4 } else { 16 });
        if !plain {
            let output = server.process.output();
            assert!(!output.contains("acme") && !output.contains("%3a"), "{output}");
        }
    }
}

#[tokio::test]
async fn audit_lines_name_the_certificate_or_the_local_process() {
    let authority = Authority::new("all");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("ca.pem"), authority.pem()).unwrap();
    authority.issue("127.0.0.1").write(folder.path(), "server");
    authority.issue("spiffe://test/operator").write(folder.path(), "caller");
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(path);
    let tls = ["--admin-tls-cert", &cert, "--admin-tls-key", &key, "--admin-tls-client-ca", &ca];
    let server = serve("memory", &tls).await;
    let reset = |address: &str| {
        let mut command = Command::new(binary("sluicectl"));
        command.args(["reset", "counter", "--domain", "plain", "--descriptor", "user=bob"]);
        command.args(["--timeout", "30s", "--admin-server", address]);
        command
    };
    let mut command = reset(&format!("https://{}", server.admin));
    command.args(["--tls-ca", &ca]);
    command.args(["--tls-cert", &path("caller.pem"), "--tls-key", &path("caller.key")]);
    let answer = finish(command).await;
    assert_eq!(answer.code, 1, "{answer:?}");
    server.process.printed("certificate=\"spiffe://test/operator\"", 1).await;

    let socket = format!("unix:{}", path("admin.sock"));
    let server = serve("memory", &["--admin-listen", &socket]).await;
    assert_eq!(finish(reset(&socket)).await.code, 1);
    let uid = fs::metadata(folder.path()).unwrap().uid();
    server.process.printed(&format!("caller=\"uid {uid} pid "), 1).await;
}

#[tokio::test]
async fn a_reset_fails_while_redis_is_unavailable() {
    let mut redis = Redis::start().await;
    let server = serve(&redis.url(), &["--redis-connect-timeout", "500ms"]).await;
    use_some(&server, b"acme", b"x").await;
    redis.kill().await;
    for reset in [
        &["reset", "tenant", "--domain", "api", "--tenant", "acme"][..],
        &["reset", "counter", "--domain", "api", "--descriptor", "ip=::1"],
    ] {
        let answer = ctl(&server, reset).await;
        assert_eq!((answer.code, answer.stderr.lines().count()), (3, 1), "{answer:?}");
        assert!(answer.stderr.contains("the store is not available: 127.0.0.1"), "{answer:?}");
        assert!(answer.stderr.contains("0 counters were reset before"), "{answer:?}");
    }
    let (code, peeked) =
        ctl_json(&server, &["peek", "--domain", "api", "--descriptor", "ip=::1"]).await;
    assert_eq!(code, 3);
    assert!(!peeked["descriptors"][0]["counters"][0]["unanswered"].is_null(), "{peeked}");
    let (code, status) = ctl_json(&server, &["status"]).await;
    assert_eq!((code, &status["store"]["degraded"]), (1, &json!(true)), "{status}");
    assert_eq!(status["store"]["redis"][0]["breaker"], "open");
    assert_eq!(status["store"]["redis"][0]["connections"], 0);
    let answer = ctl(&server, &["status"]).await;
    assert!(answer.stdout.contains("breaker open, 0 of "), "{answer:?}");
    server.process.printed("tenant not completely reset", 1).await;
    server.process.printed("counter not reset", 1).await;
    redis.restart().await;
    until("the store", || async { (ctl(&server, &["status"]).await.code == 0).then_some(()) })
        .await;
}

#[tokio::test]
async fn a_reset_of_unknown_outcome_is_audit_logged_after_cancel() {
    let mut redis = Redis::start().await;
    let server = serve(&redis.url(), &["--redis-connect-timeout", "4s"]).await;
    for _ in 0..3 {
        assert_eq!(ask(&server, hit("ip", "::1")).await, Code::Ok);
    }
    let refused = async || {
        assert_eq!(ask(&server, hit("ip", "::1")).await, Code::OverLimit);
        let (_, status) = ctl_json(&server, &["status"]).await;
        assert_eq!(status["store"]["deny_cache_refusals"], 1);
    };
    let forgotten = async || {
        let (_, status) = ctl_json(&server, &["status"]).await;
        (status["store"]["deny_cache_refusals"] == 0).then_some(())
    };
    let lines = || server.process.output().matches("counter may have been reset").count();
    let reset = ["reset", "counter", "--domain", "api", "--descriptor", "ip=::1"];

    refused().await;
    redis.pause();
    let mut command = Command::new(binary("sluicectl"));
    // Long enough for the command to be sent, and shorter than its reply takes.
    command.args(reset).args(["--timeout", "1s"]);
    command.arg("--admin-server").arg(format!("http://{}", server.admin));
    assert_eq!(finish(command).await.code, 3);
    until("the line", || async { (lines() == 1).then_some(()) }).await;
    until("the refusal to be forgotten", forgotten).await;
    redis.resume();
    // Redis has run the commands that it received.
    until("the reset", || async { redis.keys("s1:fw:*").await.is_empty().then_some(()) }).await;

    until("the store", || async { (ctl(&server, &["status"]).await.code == 0).then_some(()) })
        .await;
    for _ in 0..3 {
        assert_eq!(ask(&server, hit("ip", "::1")).await, Code::Ok);
    }
    refused().await;
    redis.pause();
    let answer = ctl(&server, &reset).await;
    assert_eq!((answer.code, answer.stderr.lines().count()), (3, 1), "{answer:?}");
    assert!(answer.stderr.contains("the store has not answered: 127.0.0.1"), "{answer:?}");
    let expected = "0 counters were reset before, and more may have been reset";
    assert!(answer.stderr.contains(expected), "{answer:?}");
    until("the other line", || async { (lines() == 2).then_some(()) }).await;
    assert!(forgotten().await.is_some());
    redis.resume();
}

#[tokio::test]
async fn a_tenant_reset_is_audit_logged_when_the_server_stops() {
    let mut redis = Redis::start().await;
    let flags = ["--redis-connect-timeout", "3s", "--drain-delay", "0s"];
    let mut server = serve(&redis.url(), &flags).await;
    use_some(&server, b"acme", b"x").await;
    redis.pause();
    let mut command = Command::new(binary("sluicectl"));
    command.args(["reset", "tenant", "--domain", "api", "--tenant", "acme", "--timeout", "30s"]);
    command.arg("--admin-server").arg(format!("http://{}", server.admin));
    let asked = tokio::spawn(finish(command));
    server.process.printed("tenant reset begins", 1).await;
    server.process.signal(Signal::SIGTERM);
    server.process.ended().await;
    let output = server.process.output();
    assert!(output.contains("tenant not completely reset"), "{output}");
    assert_eq!(asked.await.unwrap().code, 3);
    redis.resume();
}

#[tokio::test]
async fn an_unanswered_counter_reset_is_audit_logged_at_shutdown() {
    let redis = Redis::start().await;
    let flags = ["--redis-connect-timeout", "60s", "--drain-delay", "0s"];
    let mut server = serve(&redis.url(), &flags).await;
    // Writes block.
    redis.query(&["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let mut command = Command::new(binary("sluicectl"));
    command.args(["reset", "counter", "--domain", "api", "--descriptor", "ip=::1"]);
    command.args(["--timeout", "60s", "--admin-server", &format!("http://{}", server.admin)]);
    let asked = tokio::spawn(finish(command));
    until("the reset", || async {
        redis.query(&["CLIENT", "LIST"]).await.contains("cmd=unlink").then_some(())
    })
    .await;
    server.process.signal(Signal::SIGTERM);
    server.process.ended().await;
    let output = server.process.output();
    assert!(output.contains("counter may have been reset"), "{output}");
    assert!(!output.contains("resets were aborted"), "{output}");
    assert_eq!(asked.await.unwrap().code, 3);
}

#[tokio::test]
async fn a_redis_that_rejects_writes_shows_an_error() {
    let redis = Redis::start().await;
    let server = serve(&redis.url(), &[]).await;
    redis.query(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let complaint = until("the complaint", || async {
        ask(&server, hit("ip", "::1")).await;
        let (_, status) = ctl_json(&server, &["status"]).await;
        let redis = &status["store"]["redis"][0];
        assert_eq!(redis["breaker"], "closed", "{status}");
        redis["complaint"].as_str().map(str::to_owned)
    })
    .await;
    assert!(complaint.starts_with("OOM"), "{complaint}");
    let text = ctl(&server, &["status"]).await.stdout;
    assert!(text.contains("breaker closed, ") && text.contains(" connections: OOM"), "{text}");
}

#[tokio::test]
async fn an_unreachable_server_is_reported() {
    let mut redis = Redis::start().await;
    let server = serve(&redis.url(), &[]).await;
    redis.kill().await;
    until("the complaint", || async {
        let text = ctl(&server, &["status"]).await.stdout;
        text.contains("connections: Connection refused (os error 111)").then_some(())
    })
    .await;
    let answer = ctl(&server, &["reset", "tenant", "--domain", "api", "--tenant", "acme"]).await;
    assert_eq!(answer.code, 3, "{answer:?}");
    assert!(answer.stderr.contains("Connection refused"), "{answer:?}");
    let output = server.process.output();
    assert!(!output.contains("Os {") && !answer.stderr.contains("Os {"), "{output}");
}

#[tokio::test]
async fn calls_to_another_port_name_the_right_one() {
    let server = serve("memory", &[]).await;
    // The HTTP listener supports HTTP/1.1 only, so the connection breaks.
    for (address, expected) in [
        (&server.http, "or is it another listener?"),
        (&server.grpc, "no such service here; is this the admin listener?"),
    ] {
        let mut command = Command::new(binary("sluicectl"));
        command.args([
            "status",
            "--timeout",
            "30s",
            "--admin-server",
            &format!("http://{address}"),
        ]);
        let answer = finish(command).await;
        assert_eq!((answer.code, answer.stderr.lines().count()), (3, 1), "{answer:?}");
        assert!(answer.stderr.contains(expected), "{answer:?}");
    }
}

#[tokio::test]
async fn resets_before_a_failure_are_reported() {
    let server = serve("memory", &[]).await;
    ask(&server, request(&[&[("tenant", "acme"), ("user", "bob")]])).await;
    let both = ["--descriptor", "tenant=acme,user=bob", "--descriptor", "ip=::1"];
    let reset = [&["reset", "counter", "--domain", "api", "--limit", "daily"][..], &both].concat();
    let answer = ctl(&server, &reset).await;
    assert_eq!(answer.code, 1, "{answer:?}");
    let reset_line = long_windows("reset        s1:fw:86400:{acme}:api:tenant:user=bob\n");
    assert_eq!(answer.stdout, reset_line);
    assert!(answer.stderr.contains("no limit of the name daily"), "{answer:?}");
    let answer = ctl(&server, &[&reset[..], &["--output", "json"]].concat()).await;
    let json: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!((answer.code, &json["counters"][0]["was_used"]), (1, &json!(false)));
}

#[tokio::test]
async fn a_reset_finds_the_right_server_after_a_failover() {
    let mut cluster = Cluster::start().await;
    let server = serve(&cluster.url(), &[]).await;
    let slot = cluster.slot("{acme}").await;
    use_some(&server, b"acme", b"x").await;
    use_some(&server, b"other", b"x").await;
    let primary = cluster.primary_of(slot).await.unwrap();
    cluster.until_replicated(primary).await;
    cluster.nodes[primary].kill().await;
    cluster.until_taken_over(slot, primary).await;
    until("the store to be whole again", || async {
        (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
    })
    .await;
    let reset = ["reset", "tenant", "--domain", "api", "--tenant", "acme"];
    let answer = ctl(&server, &reset).await;
    assert_eq!((answer.code, answer.stdout.trim()), (0, "8 counters reset"), "{answer:?}");
    assert!(cluster.keys("s1:*{acme}:api:*").await.is_empty());
    assert_eq!(cluster.keys("s1:*{other}:api:*").await.len(), USED);
}

#[tokio::test]
async fn a_migrating_slot_is_reset_as_a_whole() {
    let cluster = Cluster::start().await;
    let server = serve(&cluster.url(), &[]).await;
    use_some(&server, b"acme", b"x").await;
    let slot = cluster.slot("{acme}").await;
    let from = cluster.primary_of(slot).await.unwrap();
    let migration = cluster.migrate_start(slot, (from + 1) % 3).await;
    assert!(cluster.migrate_keys(migration, 3).await == 3);
    let reset = ["reset", "tenant", "--domain", "api", "--tenant", "acme"];
    let answer = ctl(&server, &reset).await;
    assert_eq!(answer.code, 3, "{answer:?}");
    assert!(answer.stderr.contains("ASK"), "{answer:?}");
    cluster.migrate_end(migration).await;
    let answer = ctl(&server, &reset).await;
    assert_eq!((answer.code, answer.stdout.trim()), (0, "8 counters reset"), "{answer:?}");
    assert!(cluster.keys("s1:*{acme}:api:*").await.is_empty());
}

#[tokio::test]
async fn many_counters_are_reset_in_steps_while_others_are_decided() {
    for store in [Store::Memory, Store::Redis(Box::new(Redis::start().await))] {
        let server = serve(&store.url(), &[]).await;
        let mut client = server.connect().await;
        let users = 4000;
        for first in (0..users).step_by(200) {
            let entries: Vec<_> = (first..first + 200)
                .map(|user| [("tenant", "acme".to_owned()), ("window", user.to_string())])
                .collect();
            let descriptors: Vec<&[(&str, String)]> = entries.iter().map(|it| &it[..]).collect();
            let answer = client.should_rate_limit(request(&descriptors)).await.unwrap();
            assert_eq!(answer.into_inner().overall_code(), Code::Ok);
        }
        let reset = ["reset", "tenant", "--domain", "api", "--tenant", "acme"];
        let (answer, others) = tokio::join!(ctl_json(&server, &reset), async {
            for _ in 0..100 {
                let other = request(&[&[("tenant", "other"), ("window", "x")]]);
                let _decided = client.should_rate_limit(other).await.unwrap();
            }
            counters(&server, "api", b"other").await
        });
        assert_eq!((answer.0, &answer.1["counters"]), (0, &json!(users)));
        assert_eq!(others.len(), 1);
        assert!(counters(&server, "api", b"acme").await.is_empty());
    }
}

#[tokio::test]
async fn rules_are_listed_by_domain_and_path() {
    let server = serve("memory", &[]).await;
    let (code, json) = ctl_json(&server, &["rules"]).await;
    assert_eq!(code, 0);
    let paths = |json: &Value| -> Vec<String> {
        let rules = json["rules"].as_array().unwrap().iter();
        rules
            .map(|it| {
                format!(
                    "{}/{}",
                    it["domain"].as_str().unwrap(),
                    it["rule"]["path"].as_str().unwrap()
                )
            })
            .collect()
    };
    let api = [
        "api/tenant",
        "api/tenant.user",
        "api/tenant.route=/v1/*",
        "api/tenant.gcra",
        "api/tenant.window",
        "api/ip",
        "api/free",
    ];
    assert_eq!(paths(&json), [&api[..], &["plain/user", "shop/tenant"]].concat());
    let user = &json["rules"][1];
    assert_eq!(user["tenant"], "tenant");
    assert!(user["rule"]["file"].as_str().unwrap().ends_with("api.yaml"), "{user}");
    assert_eq!((&user["rule"]["line"], &user["on_failure"]), (&json!(8), &json!("deny")));
    let window = long_window();
    let (unit, multiplier) = window.in_units();
    assert_eq!(
        user["limits"][1],
        json!({"name": "burst", "requests_per_unit": 5, "unit": unit.name(), "unit_multiplier": multiplier, "window_seconds": window.seconds(), "capacity": 5, "algorithm": "token_bucket", "replaces": []})
    );
    assert_eq!(
        (&json["rules"][3]["shadow_mode"], &json["rules"][6]["unlimited"]),
        (&json!(true), &json!(true))
    );
    assert!(json["rules"][7]["tenant"].is_null());
    assert!(json["rules"][7]["response_body"].is_null());
    assert_eq!(json["rules"][8]["response_body"], "openai");
    let (_, some) = ctl_json(&server, &["rules", "--domain", "api", "--path", "tenant."]).await;
    assert_eq!(paths(&some), api[1..5]);
    assert_eq!(ctl(&server, &["rules", "--domain", "nothing"]).await.code, 1);
    let answer = ctl(&server, &["rules", "--domain", "api", "--path", "tenant.user"]).await;
    let text = answer.stdout.replace(&format!("{}/limits/", server.folder().display()), "");
    let [daily, burst] =
        ["10 per day (daily), fixed_window", "5 per day (burst), token_bucket"].map(long_windows);
    let width = daily.len();
    assert_eq!(
        text,
        format!(
            "\
DOMAIN  RULE         {:width$}  POLICY                 PLACE
api     tenant.user  {daily}  free, on_failure deny  api.yaml:8
                     {burst}
",
            "LIMIT"
        )
    );
}

#[tokio::test]
async fn the_status_shows_limits_store_and_replicas() {
    for store in Store::all().await {
        let server = serve(&store.url(), &["--poll-interval", "200ms"]).await;
        let (code, status) = ctl_json(&server, &["status"]).await;
        assert_eq!(code, 0, "{status}");
        assert_eq!((&status["serving"], &status["in_flight"]), (&json!(true), &json!(0)));
        assert_eq!(
            (
                &status["config"]["generation"],
                &status["config"]["rules"],
                &status["config"]["rejected"]
            ),
            (&json!(1), &json!(9), &Value::Null)
        );
        let (kind, servers) = match store {
            Store::Memory => ("memory", 0),
            Store::Redis(_) => ("redis", 1),
            Store::Cluster(_) => ("redis-cluster", 3),
        };
        let redis = status["store"]["redis"].as_array().unwrap();
        assert_eq!((&status["store"]["kind"], redis.len()), (&json!(kind), servers));
        for server in redis {
            assert_eq!(
                (&server["breaker"], &server["complaint"]),
                (&json!("closed"), &Value::Null)
            );
            assert!(server["connections"].as_u64() > Some(0), "{server}");
        }
        let text = ctl(&server, &["status"]).await.stdout;
        assert!(text.starts_with("sluicegate 0.1.0, serving, up "), "{text}");
        assert!(text.contains(&format!("store     {kind}, ok")), "{text}");

        let file = server.folder().join("limits/shop.yaml");
        fs::write(&file, "domain: shop\ndescriptors:\n  - key: a\n    rate_limit: {unit: eon}\n")
            .unwrap();
        let rejected = until("the mistake", || async {
            let (code, status) = ctl_json(&server, &["status"]).await;
            (code == 1).then_some(status["config"]["rejected"].clone())
        })
        .await;
        assert!(rejected["mistakes"][0].as_str().unwrap().contains("shop.yaml:4"), "{rejected}");
        let text = ctl(&server, &["status"]).await.stdout;
        assert!(text.contains("files rejected") && text.contains("rate_limit.unit"), "{text}");
        fs::write(&file, long_windows(SHOP)).unwrap();
        until("the files to be as they were", || async {
            (ctl(&server, &["status"]).await.code == 0).then_some(())
        })
        .await;
    }
}
