//! Flags of response headers and dynamic metadata.

use sluicegate_tests::{Sluicegate, finish, hit};

use super::{
    Row,
    given::{Given, long},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("serve --response-headers", "ratelimit-draft-11", response_headers),
        row("serve --limit-header", "x-quota", limit_header),
        row("serve --remaining-header", "x-left", remaining_header),
        row("serve --reset-header", "x-wait", reset_header),
        row("serve --dynamic-metadata", "true", dynamic_metadata),
    ]
}

/// The headers of the response to one hit.
pub(super) async fn response_headers_of(server: &Sluicegate) -> Vec<(String, String)> {
    let answer = server.should_rate_limit(hit("user", "bob")).await.unwrap();
    let headers = answer.response_headers_to_add;
    headers.into_iter().map(|header| (header.key, header.value)).collect()
}

pub(super) async fn response_headers(given: Given) {
    let server = given.serve(&[]).await;
    let names: Vec<_> =
        response_headers_of(&server).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["ratelimit-policy", "ratelimit"]);
    let server = given.with("off").serve(&[]).await;
    assert_eq!(response_headers_of(&server).await, []);
    let refused = given.with("draft-99").serve_command(&[]);
    assert!(finish(refused).await.stderr.contains("x-ratelimit-draft-03"));
}

/// The flag renames the header at this position, and is valid with one format only.
pub(super) async fn header_name(given: Given, position: usize) {
    let server = given.serve(&[("--response-headers", "x-ratelimit-draft-03")]).await;
    assert_eq!(response_headers_of(&server).await[position].0, given.value);
    let refused = finish(given.serve_command(&[])).await;
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains(&format!("{} goes with --response-headers", long(&given))));
    let refused = finish(given.with("x y").serve_command(&[])).await;
    assert_eq!(refused.code, 2, "{}", refused.stderr);
}

pub(super) async fn limit_header(given: Given) {
    header_name(given, 0).await;
}

pub(super) async fn remaining_header(given: Given) {
    header_name(given, 1).await;
}

pub(super) async fn reset_header(given: Given) {
    header_name(given, 2).await;
}

pub(super) async fn dynamic_metadata(given: Given) {
    let answer = async |given: Given| {
        let server = given.serve(&[]).await;
        server.should_rate_limit(hit("user", "bob")).await.unwrap().dynamic_metadata
    };
    assert!(answer(given.clone()).await.unwrap().fields.contains_key("descriptors"));
    assert_eq!(answer(given.with("false")).await, None);
}
