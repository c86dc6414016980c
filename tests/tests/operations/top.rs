//! `sluicectl top`.

use std::{process::Stdio, time::Duration};

use serde_json::{Value, json};
use sluicegate_tests::{Finished, Redis, Sluicegate, binary, finish, hit, request, until};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStdin, Command},
    sync::watch,
};

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 10}
  - key: shadow
    shadow_mode: true
    rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 1}
";

fn name(user: &str) -> String {
    format!("s1:tb:86400:{{api:user={user}}}")
}

async fn serve(flags: &[&str]) -> Sluicegate {
    Sluicegate::start(LIMITS, flags).await
}

async fn take(server: &Sluicegate, user: &str, times: usize) {
    let mut client = server.connect().await;
    for _ in 0..times {
        client.should_rate_limit(hit("user", user)).await.unwrap();
    }
}

fn top(servers: &[&Sluicegate], flags: &[&str]) -> Command {
    let mut command = Command::new(binary("sluicectl"));
    let addresses: Vec<_> = servers.iter().map(|it| format!("http://{}", it.admin)).collect();
    command.args(["top", "--timeout", "30s", "--admin-server", &addresses.join(",")]).args(flags);
    command
}

async fn top_json(servers: &[&Sluicegate], flags: &[&str]) -> Value {
    let answer = finish(top(servers, &[&["--output", "json"], flags].concat())).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    serde_json::from_str(&answer.stdout).unwrap()
}

/// Key and total of each counter, in order.
fn totals(report: &Value) -> Vec<(String, u64)> {
    let counters = report["counters"].as_array().unwrap().iter();
    counters
        .map(|it| (it["key"].as_str().unwrap().to_owned(), it["total"].as_u64().unwrap()))
        .collect()
}

#[tokio::test]
async fn top_lists_the_most_refused_counters_first() {
    for store in [None, Some(Redis::start().await)] {
        let url = store.as_ref().map_or("memory".to_owned(), Redis::url);
        let flags = ["--store", &url, "--decision-timeout", "10s", "--top-labels", "plain"];
        let server = serve(&flags).await;
        for (user, times) in [("few", 12), ("many", 60), ("some", 30), ("none", 10)] {
            take(&server, user, times).await;
        }
        let denied = top_json(&[&server], &[]).await;
        // Ten requests of each user are allowed. With Redis, most refusals of "many" come from the deny cache.
        let wanted = [("many", 50), ("some", 20), ("few", 2)].map(|(it, count)| (name(it), count));
        assert_eq!(totals(&denied), wanted);
        let first = &denied["counters"][0];
        assert_eq!((&first["domain"], &first["rule"]), (&json!("api"), &json!("user")));
        assert_eq!((&first["error"], &first["used_permille"]), (&json!(0), &json!(1000)));
        assert!(first["rate"].as_f64() > Some(0.0), "{first}");
        assert_eq!((&denied["kind"], &denied["servers"]), (&json!("denied"), &json!(1)));
        let one = top_json(&[&server], &["--count", "1"]).await;
        assert_eq!(totals(&one), wanted[..1]);
        assert!(totals(&top_json(&[&server], &["--domain", "other"]).await).is_empty());
    }
}

#[tokio::test]
async fn near_lists_counters_by_the_used_share() {
    let server = serve(&["--top-labels", "plain", "--near-limit-ratio", "0.7"]).await;
    for (user, times) in [("far", 7), ("near", 8), ("nearest", 10)] {
        take(&server, user, times).await;
    }
    for _ in 0..3 {
        server.should_rate_limit(hit("shadow", "x")).await.unwrap();
    }
    let near = top_json(&[&server], &["--kind", "near"]).await;
    let shares: Vec<_> = near["counters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["key"].as_str().unwrap(), it["used_permille"].as_u64().unwrap()))
        .collect();
    let shadow = "s1:tb:86400:{api:shadow=x}";
    assert_eq!(shares, [(shadow, 1000), (&*name("nearest"), 1000), (&*name("near"), 800)]);
    assert!(totals(&top_json(&[&server], &[]).await).is_empty(), "no refusals");
    // Peeks are not counted.
    let mut peek = request(&[&[("user", "nearest")]]);
    peek.descriptors[0].hits_addend = Some(0);
    server.should_rate_limit(peek).await.unwrap();
    assert!(totals(&top_json(&[&server], &[]).await).is_empty());
}

#[tokio::test]
async fn keys_are_hashed_unless_labels_are_plain() {
    let server = serve(&[]).await;
    take(&server, "eve@example.com", 12).await;
    let report = top_json(&[&server], &[]).await;
    let (key, _) = &totals(&report)[0];
    assert_eq!(report["hashed"], true);
    assert!(key.len() == 16 && key.bytes().all(|it| it.is_ascii_hexdigit()), "{key}");
    // The hash of a known value can be looked up.
    let mut peek = Command::new(binary("sluicectl"));
    peek.args(["peek", "--domain", "api", "--descriptor", "user=eve@example.com"]);
    peek.args(["--output", "json", "--admin-server", &format!("http://{}", server.admin)]);
    let peeked: Value = serde_json::from_str(&finish(peek).await.stdout).unwrap();
    assert_eq!(peeked["descriptors"][0]["counters"][0]["key_hash"], **key);
    let printed = finish(top(&[&server], &[])).await.stdout;
    assert!(printed.contains(&**key) && !printed.contains("eve"), "{printed}");
}

#[tokio::test]
async fn replicas_with_equal_hashes_are_added_up() {
    let folder = tempfile::tempdir().unwrap();
    let salt = folder.path().join("salt");
    std::fs::write(&salt, "0123456789abcdef").unwrap();
    let salt = salt.to_str().unwrap();
    for (flags, rows) in
        [(&["--top-labels", "plain"][..], 1), (&["--key-hash-salt-file", salt], 1), (&[], 2)]
    {
        let (one, other) = (serve(flags).await, serve(flags).await);
        take(&one, "bob", 13).await;
        take(&other, "bob", 14).await;
        let report = top_json(&[&one, &other], &[]).await;
        let totals = totals(&report);
        assert_eq!(totals.len(), rows, "{report}");
        assert_eq!(totals.iter().map(|(_, total)| total).sum::<u64>(), 7);
        assert_eq!((&report["servers"], &report["hashes_differ"]), (&json!(2), &json!(rows == 2)));
    }
}

#[tokio::test]
async fn the_number_of_top_keys_is_bounded() {
    let server = serve(&["--top-keys", "2", "--top-labels", "plain"]).await;
    for round in 0..30 {
        take(&server, "heavy", 10).await;
        take(&server, &format!("light{round}"), 11).await;
    }
    let report = top_json(&[&server], &[]).await;
    let first = &report["counters"][0];
    assert_eq!(first["key"], *name("heavy"));
    let least = first["count"].as_u64().unwrap() - first["error"].as_u64().unwrap();
    assert!(least <= 290 && 290 <= first["count"].as_u64().unwrap(), "{report}");
    assert!(report["counters"].as_array().unwrap().len() <= 4, "two windows of two: {report}");

    let server = serve(&["--top-keys", "0"]).await;
    let answer = finish(top(&[&server], &[])).await;
    assert_eq!((answer.code, answer.stderr.lines().count()), (3, 1), "{answer:?}");
    assert!(answer.stderr.contains("--top-keys 0"), "{answer:?}");
}

#[tokio::test]
async fn without_a_terminal_one_table_is_printed() {
    let server = serve(&["--top-labels", "plain"]).await;
    let Finished { code, stdout, .. } = finish(top(&[&server], &[])).await;
    assert_eq!((code, stdout.trim()), (0, "no refusals in the last 10s, 1 server"));
    take(&server, "bob", 13).await;
    take(&server, "eve", 11).await;
    let Finished { code, stdout, .. } = finish(top(&[&server], &[])).await;
    let lines: Vec<Vec<_>> = stdout.lines().map(|it| it.split_whitespace().collect()).collect();
    assert_eq!((code, lines.len()), (0, 4), "{stdout}");
    assert_eq!(lines[1], ["RATE/S", "TOTAL", "USED", "LAST", "DOMAIN", "RULE", "COUNTER"]);
    assert_eq!((lines[2][1], lines[2][2], lines[2][6]), ("3", "100%", &*name("bob")));
    assert_eq!((lines[3][1], lines[3][6]), ("1", &*name("eve")));
    let away = ["--admin-server", "http://127.0.0.1:1", "--timeout", "1s"];
    let mut command = Command::new(binary("sluicectl"));
    command.arg("top").args(away);
    let answer = finish(command).await;
    assert_eq!((answer.code, answer.stderr.lines().count()), (3, 1), "{answer:?}");
}

#[tokio::test]
async fn results_are_shown_while_other_servers_are_unreachable() {
    let server = serve(&["--top-labels", "plain"]).await;
    take(&server, "bob", 13).await;
    let ask = async |flags: &[&str]| {
        let some = format!("http://{},http://127.0.0.1:1,http://127.0.0.1:2", server.admin);
        let mut command = Command::new(binary("sluicectl"));
        command.args(["top", "--once", "--timeout", "30s", "--admin-server", &some]).args(flags);
        finish(command).await
    };
    let answer = ask(&[]).await;
    assert_eq!((answer.code, answer.stdout.lines().count()), (3, 3), "{answer:?}");
    assert!(answer.stdout.starts_with("refused in the last 10s, 1 server\n"), "{answer:?}");
    assert!(answer.stdout.contains(&name("bob")), "{answer:?}");
    assert_eq!(answer.stderr.lines().count(), 2, "{answer:?}");
    for away in ["error: http://127.0.0.1:1", "error: http://127.0.0.1:2"] {
        assert!(answer.stderr.lines().any(|line| line.starts_with(away)), "{answer:?}");
    }
    let answer = ask(&["--output", "json"]).await;
    let report: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!((answer.code, &report["servers"]), (3, &json!(1)));
    assert_eq!(totals(&report), [(name("bob"), 3)]);
    let failures = report["failures"].as_array().unwrap();
    assert_eq!((failures.len(), answer.stderr.lines().count()), (2, 2), "{answer:?}");
    for failure in failures {
        assert!(answer.stderr.contains(failure.as_str().unwrap()), "{answer:?}");
    }
}

/// `sluicectl top` in a terminal of its own.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: watch::Receiver<String>,
}

impl Terminal {
    fn open(command: &Command) -> Self {
        let command = command.as_std();
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|it| format!("'{}'", it.to_str().unwrap())).collect();
        let line = format!("stty rows 30 cols 150; {}", words.join(" "));
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm");
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = script.spawn().unwrap();
        let (keys, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (written, screen) = watch::channel(String::new());
        tokio::spawn(async move {
            let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = output.read(&mut buffer).await {
                bytes.extend_from_slice(&buffer[..count]);
                written.send_replace(shown(&String::from_utf8_lossy(&bytes)));
            }
        });
        Self { child, keys, screen }
    }

    async fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).await.unwrap();
        self.keys.flush().await.unwrap();
    }

    /// Waits until the output so far satisfies `seen`.
    async fn until(&mut self, what: &str, seen: impl Fn(&str) -> bool) {
        let screen = self.screen.clone();
        let found = until_or_screen(what, &screen, seen).await;
        assert!(found, "{what}: {}", *screen.borrow());
    }
}

async fn until_or_screen(
    what: &str,
    screen: &watch::Receiver<String>,
    seen: impl Fn(&str) -> bool,
) -> bool {
    until(what, || async { seen(&screen.borrow()).then_some(true) }).await
}

/// The screen that a terminal would show after this output, with cursor movements and clearing.
fn shown(output: &str) -> String {
    let mut grid = vec![vec![' '; 150]; 30];
    let (mut row, mut column) = (0_usize, 0_usize);
    let mut chars = output.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\x1b' if chars.peek() == Some(&'[') => {
                chars.next();
                let mut arguments = String::new();
                let end = loop {
                    match chars.next() {
                        Some(it) if it.is_ascii_alphabetic() => break it,
                        Some(it) => arguments.push(it),
                        None => break ' ',
                    }
                };
                let mut numbers = arguments.split(';').map(|it| it.parse::<usize>().unwrap_or(1));
                match end {
                    'H' => {
                        row = numbers.next().unwrap_or(1).clamp(1, 30) - 1;
                        column = numbers.next().unwrap_or(1).clamp(1, 150) - 1;
                    }
                    'J' => grid = vec![vec![' '; 150]; 30],
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => row = (row + 1).min(29),
            char if char.is_control() => {}
            char => {
                if let Some(cell) = grid[row].get_mut(column) {
                    *cell = char;
                }
                column += 1;
            }
        }
    }
    let lines = grid.into_iter().map(|line| line.into_iter().collect::<String>());
    lines.map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_terminal_shows_a_live_table() {
    let server = serve(&["--top-labels", "plain"]).await;
    take(&server, "bob", 13).await;
    take(&server, "eve", 40).await;
    let command = top(&[&server], &["--interval", "200ms"]);
    let mut terminal = Terminal::open(&command);
    let (bob, eve) = (name("bob"), name("eve"));
    let before = |one: &str, other: &str, screen: &str| matches!((screen.find(one), screen.find(other)), (Some(one), Some(other)) if one < other);
    terminal.until("the worst first", |screen| before(&eve, &bob, screen)).await;
    terminal.press("r").await;
    terminal.until("the order turned around", |screen| before(&bob, &eve, screen)).await;
    terminal.press("r").await;
    take(&server, "bob", 100).await;
    terminal.until("news", |screen| before(&bob, &eve, screen)).await;
    terminal.press("n").await;
    terminal.until("the other kind", |screen| screen.contains("near their limits")).await;
    terminal.press("p").await;
    terminal.until("a pause", |screen| screen.contains("paused")).await;
    terminal.press("q").await;
    let ended = tokio::time::timeout(Duration::from_secs(60), terminal.child.wait()).await;
    assert_eq!(ended.unwrap().unwrap().code(), Some(0));
}

#[tokio::test]
async fn the_live_table_survives_an_unreachable_server() {
    let server = serve(&["--top-labels", "plain"]).await;
    take(&server, "bob", 13).await;
    let address = format!("http://{}", server.admin);
    let mut terminal = Terminal::open(&top(&[&server], &["--interval", "200ms"]));
    let bob = name("bob");
    terminal.until("the table", |screen| screen.contains(&bob)).await;
    server.stop().await;
    terminal
        .until("the trouble", |screen| {
            screen.contains(&format!("{address}:")) && screen.contains(&bob)
        })
        .await;
    terminal.press("\x03").await;
    let ended = tokio::time::timeout(Duration::from_secs(60), terminal.child.wait()).await;
    assert_eq!(ended.unwrap().unwrap().code(), Some(0));
}
