//! Reloads of limits.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest,
    rate_limit_response::{Code, DescriptorStatus},
    rate_limit_service_client::RateLimitServiceClient,
};
use sluicegate_tests::{Redis, Sluicegate, hit, hits, long_windows, request, until};
use tokio::task::JoinSet;
use tonic::transport::Channel;

/// Changes must be detected by notifications, not by polling.
const NO_POLL: [&str; 2] = ["--poll-interval", "1h"];

fn limits(domain: &str, requests: usize) -> String {
    let limit = format!("{{name: of_{requests}, unit: day, requests_per_unit: {requests}}}");
    format!("domain: {domain}\ndescriptors:\n  - key: user\n    rate_limit: {limit}\n")
}

async fn generation(server: &Sluicegate, at_least: f64) {
    until("the change to be taken up", || async {
        (server.metric("sluicegate_config_generation").await >= at_least).then_some(())
    })
    .await;
}

async fn shows(server: &Sluicegate, text: &str) {
    until(text, || async { server.get("/rlconfig").await.1.contains(text).then_some(()) }).await;
}

async fn loads(server: &Sluicegate, result: &str) -> f64 {
    server.metric(&format!("sluicegate_config_loads_total{{result=\"{result}\"}}")).await
}

/// The remaining hits of this user, without a charge.
async fn left(server: &Sluicegate) -> u32 {
    let response = server.should_rate_limit(hits("user", "bob", 0)).await.unwrap();
    response.statuses[0].limit_remaining
}

async fn code(server: &Sluicegate) -> Code {
    server.should_rate_limit(hit("user", "bob")).await.unwrap().overall_code()
}

const OK: &str =
    "sluicegate_decisions_total{code=\"ok\",domain=\"api\",rule=\"user\",source=\"store\"}";

#[tokio::test]
async fn an_edited_file_is_reloaded_and_usage_is_kept() {
    let server = Sluicegate::start(&limits("api", 2), &NO_POLL).await;
    assert_eq!([code(&server).await, code(&server).await], [Code::Ok; 2]);
    assert_eq!(code(&server).await, Code::OverLimit);
    let decided = server.metric(OK).await;
    assert_eq!(decided, 2.0);

    server.replace_limits(&limits("api", 5));
    generation(&server, 2.0).await;
    assert_eq!(left(&server).await, 3);
    assert_eq!(code(&server).await, Code::Ok);
    // The peek counts as a decision too.
    assert_eq!(server.metric(OK).await, decided + 2.0);

    // In place, without a temporary file.
    fs::write(server.folder().join("limits.yaml"), limits("api", 1)).unwrap();
    shows(&server, "user: [1 ").await;
    assert_eq!(code(&server).await, Code::OverLimit);
    assert_eq!(server.metric(OK).await, decided + 2.0);
    assert_eq!(loads(&server, "failure").await, 0.0);
}

#[tokio::test]
async fn the_log_lists_counters_that_restart() {
    let rules = |unit: &str, requests: usize| -> String {
        let rule = |index| {
            format!(
                "  - key: k{index:02}\n    rate_limit: {{unit: {unit}, requests_per_unit: {requests}}}\n"
            )
        };
        let rules: String = (0..25).map(rule).collect();
        format!("{}{rules}", limits("api", 2))
    };
    let mut server = Sluicegate::start(&rules("minute", 1), &NO_POLL).await;
    server.replace_limits(&rules("minute", 7));
    generation(&server, 2.0).await;
    server.replace_limits(&(rules("hour", 7) + "tenant: user\n"));
    generation(&server, 3.0).await;
    server.process.line("what is more", |line| line.contains("more=6").then_some(())).await;
    let log = server.process.output();
    assert!(log.contains("added=0 removed=0 changed=25"), "{log}");
    assert!(log.contains("added=0 removed=0 changed=26"), "{log}");
    assert!(log.contains("domain=api rule=k00 edits=\"window minute -> hour\""), "{log}");
    assert!(log.contains("domain=api rule=\"\" edits=\"tenant none -> user\""), "{log}");
    // The first edit restarts no counter. Of the second's, 20 are listed and the others only counted.
    assert_eq!(log.matches("counters restart").count(), 21, "{log}");
}

#[tokio::test]
async fn invalid_limits_are_rejected_and_logged_once() {
    let server = Sluicegate::start(&limits("api", 2), &["--poll-interval", "50ms"]).await;
    assert_eq!(code(&server).await, Code::Ok);
    let before = server.get("/rlconfig").await;
    let bad = limits("api", 5).replace("day", "fortnight") + "  - kee: tenant\n";
    let mistakes =
        ["the unit is not known", "the key in column 5 is not known here; did you mean key?"];

    server.replace_limits(&bad);
    until("the failure to be counted", || async {
        (loads(&server, "failure").await == 1.0).then_some(())
    })
    .await;
    // The same mistakes in another file are not logged again.
    server.replace_limits(&format!("{bad}# still\n"));
    assert_eq!(server.get("/rlconfig").await, before);
    assert_eq!(code(&server).await, Code::Ok);
    assert_eq!(code(&server).await, Code::OverLimit);

    server.replace_limits(&limits("api", 5));
    generation(&server, 2.0).await;
    assert_eq!(left(&server).await, 3);
    assert_eq!((loads(&server, "success").await, loads(&server, "failure").await), (2.0, 1.0));
    let log = server.process.printed("limits rejected", 1).await;
    for mistake in mistakes {
        assert_eq!(log.matches(mistake).count(), 1, "{mistake}\n{log}");
    }
    assert_eq!(log.matches("limits rejected").count(), 1, "{log}");
}

#[tokio::test]
async fn a_deleted_file_leaves_the_old_limits_in_force() {
    let server = Sluicegate::start(&limits("api", 2), &NO_POLL).await;
    fs::remove_file(server.folder().join("limits.yaml")).unwrap();
    until("the failure to be counted", || async {
        (loads(&server, "failure").await == 1.0).then_some(())
    })
    .await;
    assert_eq!(code(&server).await, Code::Ok);
    server.replace_limits(&limits("api", 3));
    generation(&server, 2.0).await;
    assert_eq!(left(&server).await, 2);
}

/// Updates a mounted `ConfigMap`: a folder whose files are links through `..data`, which is replaced.
fn update_config_map(mount: &Path, version: usize, limits: &str) {
    let (data, new) = (format!("..2026_{version}"), mount.join("..data_tmp"));
    let old = fs::read_link(mount.join("..data"));
    fs::create_dir(mount.join(&data)).unwrap();
    fs::write(mount.join(&data).join("limits.yaml"), limits).unwrap();
    symlink(&data, &new).unwrap();
    fs::rename(&new, mount.join("..data")).unwrap();
    match old {
        Ok(old) => fs::remove_dir_all(mount.join(old)).unwrap(),
        Err(_) => symlink("..data/limits.yaml", mount.join("limits.yaml")).unwrap(),
    }
}

#[tokio::test]
async fn each_update_of_a_config_map_is_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().to_owned();
    update_config_map(&mount, 1, &limits("api", 2));
    let flags = [&["--limits", mount.to_str().unwrap()], &NO_POLL[..]].concat();
    let server = Sluicegate::start_with(folder, &flags).await;
    assert_eq!(code(&server).await, Code::Ok);
    for (version, requests) in [(2, 5), (3, 9), (4, 20)] {
        update_config_map(&mount, version, &limits("api", requests));
        shows(&server, &format!("user: [{requests} ")).await;
        assert_eq!(left(&server).await, u32::try_from(requests).unwrap() - 1);
    }
    assert_eq!(loads(&server, "failure").await, 0.0);
}

#[tokio::test]
async fn added_and_removed_files_are_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    fs::write(path.join("a.yaml"), limits("api", 2)).unwrap();
    let flags = [&["--limits", path.to_str().unwrap()], &NO_POLL[..]].concat();
    let server = Sluicegate::start_with(folder, &flags).await;
    assert_eq!(code(&server).await, Code::Ok);
    let team = path.join("team");
    fs::create_dir(&team).unwrap();
    fs::write(team.join("b.yml"), limits("more", 7)).unwrap();
    shows(&server, "domain more").await;
    assert_eq!(server.metric("sluicegate_rules").await, 2.0);
    fs::remove_file(team.join("b.yml")).unwrap();
    until("the domain to go", || async {
        (!server.get("/rlconfig").await.1.contains("domain more")).then_some(())
    })
    .await;
    assert_eq!((server.metric("sluicegate_rules").await, left(&server).await), (1.0, 1));
}

// === Under load ===

const FLIPS: usize = 100;

/// Number of callers for each kind of request.
const CALLERS: usize = 2;

/// The limits of `user`, `team` and `few` in the two versions of the file.
const VERSIONS: [[u32; 3]; 2] = [[3_000_000, 4_000_000, 600], [1_000_000, 2_000_000, 200]];

/// A version of the file, in which each limit is named after the version.
fn version(number: usize) -> String {
    let rule = |(key, requests): (&str, u32)| {
        let limit = format!("{{name: v{number}_{key}, unit: day, requests_per_unit: {requests}}}");
        format!("  - key: {key}\n    rate_limit: {limit}\n")
    };
    let rules: String =
        ["user", "team", "few"].into_iter().zip(VERSIONS[number]).map(rule).collect();
    long_windows(&format!("domain: api\ndescriptors:\n{rules}"))
}

/// The version of a status.
fn version_of(status: &DescriptorStatus) -> usize {
    let limit = status.current_limit.as_ref().unwrap();
    let (number, key) = limit.name.split_once('_').unwrap();
    let number = ["v0", "v1"].iter().position(|it| *it == number).unwrap();
    let key = ["user", "team", "few"].iter().position(|it| *it == key).unwrap();
    assert_eq!(limit.requests_per_unit, VERSIONS[number][key], "of neither file: {limit:?}");
    assert!(status.limit_remaining <= limit.requests_per_unit, "{status:?}");
    number
}

/// The answers that one caller has received.
#[derive(Default)]
struct Seen {
    /// Answers by version.
    answers: [usize; 2],
    admitted: usize,
}

/// Sends requests until stopped. No call may fail, and no answer may mix versions.
async fn ask_on(
    mut client: RateLimitServiceClient<Channel>,
    request: RateLimitRequest,
    done: Arc<AtomicBool>,
) -> Seen {
    let mut seen = Seen::default();
    while !done.load(Ordering::Relaxed) {
        let answer = client.should_rate_limit(request.clone()).await.unwrap().into_inner();
        assert_eq!(answer.statuses.len(), request.descriptors.len());
        let versions: BTreeSet<usize> = answer.statuses.iter().map(version_of).collect();
        assert_eq!(versions.len(), 1, "one answer, two files: {answer:?}");
        seen.answers[*versions.first().unwrap()] += 1;
        seen.admitted += usize::from(answer.overall_code() == Code::Ok);
    }
    seen
}

/// Used hits of a counter, read by a peek with the first version.
async fn counted(server: &Sluicegate, key: &str, value: &str, limit: u32) -> usize {
    let answer = server.should_rate_limit(hits(key, value, 0)).await.unwrap();
    let status = &answer.statuses[0];
    assert_eq!(status.current_limit.as_ref().unwrap().requests_per_unit, limit);
    (limit - status.limit_remaining).try_into().unwrap()
}

/// Alternates two versions of a file while callers send requests. Most callers stay below both limits; some request
/// more than either has.
async fn assert_reloads_lose_no_hits(flags: &[&str]) {
    let server = Sluicegate::start(&version(0), &[&NO_POLL, flags].concat()).await;
    until("the store to be well", || async {
        (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
    })
    .await;
    let done = Arc::new(AtomicBool::new(false));
    let (mut roomy, mut tight) = (JoinSet::new(), JoinSet::new());
    for _ in 0..CALLERS {
        let both = request(&[&[("user", "bob")], &[("team", "blue")]]);
        roomy.spawn(ask_on(server.connect().await, both, Arc::clone(&done)));
        tight.spawn(ask_on(server.connect().await, hit("few", "x"), Arc::clone(&done)));
    }
    for flip in 1..=FLIPS {
        server.replace_limits(&version(flip % 2));
        let taken_up = u32::try_from(flip).unwrap() + 1;
        generation(&server, f64::from(taken_up)).await;
    }
    done.store(true, Ordering::Relaxed);
    let (roomy, tight) = (roomy.join_all().await, tight.join_all().await);
    for seen in roomy.iter().chain(&tight) {
        assert!(seen.answers.iter().all(|answers| *answers > 0), "{:?}", seen.answers);
    }

    let asked = |seen: &[Seen]| seen.iter().flat_map(|it| it.answers).sum::<usize>();
    let admitted = |seen: &[Seen]| seen.iter().map(|it| it.admitted).sum::<usize>();
    assert_eq!(admitted(&roomy), asked(&roomy));
    assert_eq!(counted(&server, "user", "bob", VERSIONS[0][0]).await, asked(&roomy));
    assert_eq!(counted(&server, "team", "blue", VERSIONS[0][1]).await, asked(&roomy));
    assert_eq!(counted(&server, "few", "x", VERSIONS[0][2]).await, admitted(&tight));
    // Otherwise nothing was refused, and the limit could not have been exceeded.
    assert!(asked(&tight) > admitted(&tight), "{} asked", asked(&tight));
    assert_eq!(loads(&server, "success").await, 101.0);
    assert_eq!(loads(&server, "failure").await, 0.0);
}

#[tokio::test]
async fn reloads_under_load_lose_no_hits_in_memory() {
    assert_reloads_lose_no_hits(&[]).await;
}

#[tokio::test]
async fn reloads_under_load_lose_no_hits_in_redis() {
    let redis = Redis::start().await;
    // Every answer must be the store's.
    assert_reloads_lose_no_hits(&["--store", &redis.url(), "--decision-timeout", "10s"]).await;
}
