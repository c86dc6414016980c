//! Runs the commands of README and quickstart as a reader would, and compares their output.

use std::{env, fs, path::PathBuf, process::Output};

use sluicegate_tests::{Process, fenced, free_port};
use snapbox::{Assert, assert::Action};
use tokio::process::Command;

use sluicegate_tests::tools::workspace;

/// One `$ command` and its output on the page.
struct Step {
    command: String,
    prints: String,
}

/// The steps of every `console` block.
fn steps(markdown: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in fenced(markdown, "console").into_iter().flat_map(str::lines) {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), prints: String::new() });
        } else if let Some(step) = steps.last_mut() {
            step.prints.push_str(line);
            step.prints.push('\n');
        }
    }
    steps
}

/// Times and rates differ from run to run: `42s` becomes `[TIME]`, and `1.5` at the beginning of a line `[RATE]`.
fn timeless(text: &str) -> String {
    let is_time = |word: &str| {
        let digits = word.trim_end_matches(['s', 'm', 'h']);
        digits.len() + 1 == word.len()
            && !digits.is_empty()
            && digits.bytes().all(|it| it.is_ascii_digit())
    };
    let words = text.split_inclusive([' ', '"', '\n']);
    let timeless: String = words
        .map(|word| {
            let bare = word.trim_end_matches([' ', '"', '\n']);
            if is_time(bare) { word.replace(bare, "[TIME]") } else { word.to_owned() }
        })
        .collect();
    // `14m 59s` is one time.
    let timeless = timeless.replace("[TIME] [TIME]", "[TIME]");
    let rateless = |line: &str| {
        let (first, rest) = line.split_once(' ')?;
        let is_rate = first.contains('.') && first.parse::<f64>().is_ok();
        is_rate.then(|| format!("[RATE] {}", rest.trim_start()))
    };
    let lines = timeless.split('\n').map(|line| rateless(line).unwrap_or_else(|| line.to_owned()));
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn readme_commands_print_what_the_page_says() {
    check(workspace().join("README.md"), 2).await;
}

#[tokio::test]
async fn quickstart_commands_print_what_the_page_says() {
    check(workspace().join("docs/quickstart.md"), 12).await;
}

/// Starts the server with the page's first command, runs its other commands, at least so many, and compares the output.
async fn check(page: PathBuf, steps_min: usize) {
    let page = fs::read_to_string(page).unwrap();
    let mut steps = steps(&page).into_iter();
    // Uses the built programs, because building may take minutes.
    let build = "cargo build --release";
    assert!(shell(build).status().await.unwrap().success());
    // Another process may use the page's ports.
    let (grpc, http, admin) = (free_port(), free_port(), free_port());

    let serve = steps.next().unwrap();
    assert!(serve.command.contains(" serve "), "{}", serve.command);
    let mut command = shell(&format!("exec {}", serve.command));
    command.env("SLUICEGATE_GRPC_LISTEN", format!("127.0.0.1:{grpc}"));
    command.env("SLUICEGATE_HTTP_LISTEN", format!("127.0.0.1:{http}"));
    command.env("SLUICEGATE_ADMIN_LISTEN", format!("127.0.0.1:{admin}"));
    let mut server = Process::start(command);
    let log = "serving grpc=127.0.0.1:8081 http=127.0.0.1:8080 admin=127.0.0.1:8082";
    assert!(page.contains(log));
    let line = server.line("serving", |line| Some(line.split_once("serving ")?.1.to_owned())).await;
    let addresses = format!("grpc=127.0.0.1:{grpc} http=127.0.0.1:{http} admin=127.0.0.1:{admin}");
    assert_eq!(line, addresses);

    // One shell for all, because they share variables and aliases; a mark ends each step's output.
    let mark = "--- end of step ---";
    let mut script = String::from("shopt -s expand_aliases\n");
    let mut expected = String::new();
    let mut ran = 0;
    for step in steps {
        script.push_str(&step.command.replace("127.0.0.1:8080", &format!("127.0.0.1:{http}")));
        script.push_str(&format!("\necho '{mark}'\n"));
        expected.push_str(&format!("{}{mark}\n", step.prints));
        ran += 1;
    }
    assert!(ran >= steps_min, "{ran} steps");
    let mut command = shell(&script);
    command.env("SLUICECTL_SERVER", format!("http://127.0.0.1:{grpc}"));
    command.env("SLUICECTL_ADMIN_SERVER", format!("http://127.0.0.1:{admin}"));
    let Output { stdout, stderr, .. } = command.output().await.unwrap();
    let printed = String::from_utf8(stdout).unwrap();
    Assert::new()
        .action_env("SNAPSHOTS")
        .action(Action::Verify)
        .eq(timeless(&printed), timeless(&expected));
    assert!(stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
}

/// A shell without the environment variables of cargo, which would cause a new build.
fn shell(script: &str) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", script]).current_dir(workspace()).kill_on_drop(true);
    let readers = ["CARGO_HOME", "CARGO_TARGET_DIR"];
    for (name, _) in env::vars() {
        if name.starts_with("CARGO_") && !readers.contains(&name.as_str()) {
            shell.env_remove(name);
        }
    }
    shell
}
