//! Tests that the example limits behave as their comments describe.

use std::time::Duration;

use sluicegate_client::{Check, Client, Descriptor, Verdict};
use sluicegate_tests::{Sluicegate, binary};
use tokio::process::Command;

use sluicegate_tests::tools::workspace;

async fn serve() -> (Sluicegate, Client) {
    let limits = workspace().join("examples/limits");
    let folder = tempfile::tempdir().unwrap();
    let server = Sluicegate::start_with(folder, &["--limits", limits.to_str().unwrap()]).await;
    let client = Client::connect(&format!("http://{}", server.grpc)).await.unwrap();
    (server, client.with_deadline(Duration::from_secs(30)))
}

async fn ask<const N: usize>(
    client: &Client,
    domain: &str,
    descriptors: [&[(&str, &str)]; N],
) -> Verdict {
    let descriptors = descriptors.map(|entries| Descriptor::new(entries.iter().copied()));
    client.check(Check::new(domain).descriptors(descriptors)).await.unwrap()
}

fn names(verdict: &Verdict) -> Vec<&str> {
    verdict.statuses.iter().filter_map(|it| Some(it.limit.as_ref()?.name.as_str())).collect()
}

#[tokio::test]
async fn the_examples_are_valid_and_raise_no_warning() {
    let limits = workspace().join("examples/limits");
    let output =
        Command::new(binary("sluicegate")).arg("validate").arg(limits).output().await.unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.ends_with(" rules, 0 warnings\n"), "{printed}");
}

#[tokio::test]
async fn the_public_api_decides_all_levels_together() {
    let (_server, client) = serve().await;
    let layers = [
        &[("tenant", "acme")] as &[_],
        &[("tenant", "acme"), ("user", "ann")],
        &[("tenant", "acme"), ("user", "ann"), ("route", "search")],
        &[("remote_address", "203.0.113.7")],
        &[("client_fingerprint", "t13d1516h2_8daaf6152771")],
    ];
    for _ in 0..30 {
        let verdict = ask(&client, "public_api", layers).await;
        assert!(verdict.allowed);
        let met = ["daily_plan", "per_user", "searches", "per_address", "per_fingerprint"];
        assert_eq!(names(&verdict), met);
    }
    for _ in 0..20 {
        let refused = ask(&client, "public_api", layers).await;
        assert!(!refused.allowed);
        assert!(refused.retry_after().unwrap() <= Duration::from_secs(60));
        // If the day ends in between, more hits remain, never fewer.
        assert!(
            refused.statuses[0].remaining >= 100_000 - 30,
            "refusals are not charged to the tenant"
        );
        assert!(refused.statuses[3].remaining >= 3_000 - 30);
    }
    let other_route = [("tenant", "acme"), ("user", "ann"), ("route", "export")];
    let verdict = ask(&client, "public_api", [&other_route]).await;
    assert_eq!((names(&verdict), verdict.statuses[0].remaining), (vec!["per_route"], 19));
    let globex = ask(
        &client,
        "public_api",
        [&[("tenant", "globex")], &[("tenant", "globex"), ("user", "u")]],
    );
    let globex = globex.await;
    assert_eq!(names(&globex), ["globex_daily_plan", "per_user"]);
    assert_eq!(globex.statuses[0].limit.as_ref().unwrap().requests_per_unit, 5_000_000);
}

#[tokio::test]
async fn the_login_example_allows_five_attempts_in_15_minutes() {
    let (_server, client) = serve().await;
    for _ in 0..5 {
        assert!(ask(&client, "login", [&[("email", "eve@example.com")]]).await.allowed);
    }
    let refused = ask(&client, "login", [&[("email", "eve@example.com")]]).await;
    assert!(!refused.allowed);
    let wait = refused.retry_after().unwrap();
    assert!(
        wait > Duration::from_secs(10 * 60) && wait <= Duration::from_secs(15 * 60),
        "{wait:?}"
    );
    assert!(ask(&client, "login", [&[("email", "bob@example.com")]]).await.allowed);
}

#[tokio::test]
async fn tokens_are_charged_after_the_response_even_past_the_limit() {
    let (_server, client) = serve().await;
    let tokens = || Descriptor::new([("tier", "free"), ("api_key", "k"), ("meter", "tokens")]);
    let check = |descriptor| client.check(Check::new("llm_gateway").descriptor(descriptor));
    assert!(check(tokens().peek()).await.unwrap().allowed);
    for _ in 0..2 {
        assert!(check(tokens().hits(15_000)).await.unwrap().allowed, "some tokens remained before");
    }
    let refused = check(tokens().peek()).await.unwrap();
    assert!(!refused.allowed, "20,000 tokens, of which 10,000 are beyond the limit");
    // 10,000 per minute: refilling the excess and one token takes 60.006 s.
    let wait = refused.retry_after().unwrap();
    assert!(wait > Duration::from_secs(20) && wait <= Duration::from_secs(61), "{wait:?}");
    let requests = [("tier", "enterprise"), ("api_key", "k")];
    assert!(ask(&client, "llm_gateway", [&requests]).await.statuses[0].is_unlimited());
    let unnamed = [("tier", "trial"), ("api_key", "k")];
    let verdict = ask(&client, "llm_gateway", [&unnamed]).await;
    assert_eq!((names(&verdict), verdict.statuses[0].remaining), (vec!["free_requests"], 4));
}

#[tokio::test]
async fn limits_files_of_upstream_are_served_unchanged() {
    let (_server, client) = serve().await;
    let order = [("header_match", "checkout"), ("user", "ann")];
    let mut allowed = 0;
    for _ in 0..21 {
        allowed += usize::from(ask(&client, "storefront", [&order]).await.allowed);
    }
    // The next hour may begin in between.
    assert!(allowed == 10 || allowed == 20, "{allowed}");
    assert!(
        ask(&client, "storefront", [&[("remote_address", "10.1.2.3")]]).await.statuses[0]
            .is_unlimited()
    );
    let crawlers = ["googlebot", "bingbot/2.0"].map(|name| [("user_agent", name)]);
    let verdict = ask(&client, "storefront", [&crawlers[0], &crawlers[1]]).await;
    let left = |at: usize| verdict.statuses[at].remaining;
    assert_eq!(left(0) - left(1), 1, "all crawlers share one counter");
    for _ in 0..5 {
        assert!(ask(&client, "storefront", [&[("generic_key", "newsletter")]]).await.allowed);
    }
}
