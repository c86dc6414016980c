//! Flags of settings files and limits files, and flags that apply to all rules.

use std::{
    fs,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{HangingStore, finish, hit, hits, request, until};

use super::{
    LIMITS, Row,
    given::{Given, code, left, one_line},
    row,
    store::nowhere,
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("serve --config", "{folder}/settings.yaml", config),
        row("serve --limits", "{folder}/a.yaml,{folder}/more", limits),
        row("serve --default-counting", "upstream", default_counting),
        row("serve --merge-domains", "true", merge_domains),
        row("serve --limits-max-files", "1", limits_max_files),
        row("serve --limits-max-bytes", "200", limits_max_bytes),
        row("serve --poll-interval", "200ms", poll_interval),
        row("serve --default-on-failure", "deny", default_on_failure),
        row("serve --shadow-mode", "true", shadow_mode),
        row("serve --quota-mode", "true", quota_mode),
    ]
}

pub(super) async fn config(given: Given) {
    given.write("settings.yaml", "max-in-flight: 7\n");
    let server = given.serve(&[]).await;
    assert_eq!(server.metric("sluicegate_requests_in_flight_max").await, 7.0);
    let refused = finish(given.with("/nowhere/settings.yaml").serve_command(&[])).await;
    one_line(&refused, 2, &["--config: cannot read /nowhere/settings.yaml", "No such file"]);
}

pub(super) async fn limits(given: Given) {
    given.write("a.yaml", LIMITS);
    fs::create_dir(given.folder.path().join("more")).unwrap();
    given.write("more/b.yml", &LIMITS.replace("api", "more"));
    let server = given.serve(&[]).await;
    let (_, shown) = server.get("/rlconfig").await;
    assert!(shown.contains("domain api ") && shown.contains("domain more "), "{shown}");
}

pub(super) async fn default_counting(given: Given) {
    let server = given.serve(&[]).await;
    assert_eq!(code(&server, "bob", 11).await, Code::OverLimit);
    // Refused hits are charged.
    assert_eq!(code(&server, "bob", 1).await, Code::OverLimit);
    assert!(server.get("/rlconfig").await.1.contains("default_counting=upstream"));
}

/// A second file for the domain of LIMITS. Returns the paths of both.
pub(super) fn two_of_a_domain(given: &Given) -> (String, String) {
    given.write("more.yaml", &LIMITS.replace("user", "team"));
    (given.path("limits.yaml"), given.path("more.yaml"))
}

pub(super) async fn merge_domains(given: Given) {
    let (one, two) = two_of_a_domain(&given);
    let both = format!("{one},{two}");
    let server = given.serve(&[("--limits", &both)]).await;
    assert_eq!(left(&server, "bob").await, 10);
    let team = server.should_rate_limit(hits("team", "bob", 0)).await.unwrap();
    assert_eq!(team.statuses[0].limit_remaining, 10);
    let refused = finish(given.with("false").serve_command(&[("--limits", &both)])).await;
    one_line(&refused, 1, &["is also defined in", "--merge-domains"]);
}

pub(super) const TOO_MANY_FILES: &str = "more than 1 files in all (--limits-max-files)";

pub(super) const TOO_MANY_BYTES: &str = "more than 200 bytes in all files (--limits-max-bytes)";

/// A second file, of more than 200 bytes.
pub(super) fn second_file(given: &Given) -> (String, String) {
    given.write("more.yaml", &format!("domain: more\n#{}\n", "-".repeat(200)));
    (given.path("limits.yaml"), given.path("more.yaml"))
}

/// Asserts that the server rejects the second file because of the bound, and accepts it with a higher bound.
pub(super) async fn serve_bounds_files(given: Given, text: &str) {
    let (one, two) = second_file(&given);
    let both = format!("{one},{two}");
    let refused = finish(given.serve_command(&[("--limits", &both)])).await;
    one_line(&refused, 1, &[&two, text]);
    let server = given.with("100000").serve(&[("--limits", &both)]).await;
    assert_eq!(left(&server, "bob").await, 10);
}

pub(super) async fn limits_max_files(given: Given) {
    serve_bounds_files(given, TOO_MANY_FILES).await;
}

pub(super) async fn limits_max_bytes(given: Given) {
    serve_bounds_files(given, TOO_MANY_BYTES).await;
}

pub(super) async fn poll_interval(given: Given) {
    // Writes through a hard link in another folder cause no notification.
    let watched = given.folder.path().join("watched");
    fs::create_dir(&watched).unwrap();
    let (file, link) = (watched.join("limits.yaml"), given.path("limits.yaml"));
    fs::hard_link(&link, &file).unwrap();
    let server = given.serve(&[("--limits", file.to_str().unwrap())]).await;
    let at = LIMITS.find("10").unwrap();
    let started = Instant::now();
    let link = fs::OpenOptions::new().write(true).open(link).unwrap();
    for requests in ["11", "12", "13", "14", "15"] {
        link.write_all_at(requests.as_bytes(), at.try_into().unwrap()).unwrap();
        let shown = format!("user: [{requests} ");
        until("the change", || async {
            server.get("/rlconfig").await.1.contains(&shown).then_some(())
        })
        .await;
    }
    // With the default, each change is detected after up to 10s.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

pub(super) async fn default_on_failure(given: Given) {
    let server = given.serve(&[("--store", &nowhere())]).await;
    assert_eq!(code(&server, "bob", 1).await, Code::OverLimit);
    assert!(server.get("/rlconfig").await.1.contains("default_on_failure=deny"));
}

pub(super) async fn shadow_mode(given: Given) {
    for (given, overall) in [(given.clone(), Code::Ok), (given.with("false"), Code::OverLimit)] {
        let server = given.serve(&[]).await;
        let refused = server.should_rate_limit(hits("user", "bob", 11)).await.unwrap();
        assert_eq!(refused.overall_code(), overall);
        assert_eq!(refused.statuses[0].code(), Code::OverLimit);
        let shadowed = server.metric("sluicegate_requests_shadowed_total").await;
        assert_eq!(shadowed, if overall == Code::Ok { 1.0 } else { 0.0 });
    }
    // The server also allows requests under overload.
    let mut store = HangingStore::start().await;
    let [url, timeout] = store.flags();
    let server = given.serve(&[url, timeout, ("--max-in-flight", "1")]).await;
    let held = store.hold(&server, hit("user", "bob")).await;
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    assert_eq!(server.metric("sluicegate_requests_shed_total").await, 1.0);
    store.release();
    held.answer().await.unwrap();
    // It also allows requests whose messages are too large.
    let server = given.serve(&[("--grpc-max-message-bytes", "10")]).await;
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
}

pub(super) async fn quota_mode(given: Given) {
    for (given, overall) in [(given.clone(), Code::Ok), (given.with("false"), Code::OverLimit)] {
        let server = given.serve(&[]).await;
        let mut both = request(&[&[("user", "bob")], &[("user", "ann")]]);
        both.descriptors[0].hits_addend = Some(11);
        let answer = server.should_rate_limit(both).await.unwrap();
        assert_eq!(answer.overall_code(), overall);
        assert_eq!(answer.statuses[0].code(), Code::OverLimit);
    }
}
