//! Checks of the `.proto` files with buf: style, compatibility with earlier versions, and with Envoy's files.

use std::process::Command;

use sluicegate_tests::tools::{buf, envoy, python, succeed, workspace};

#[test]
fn proto_files_pass_lint() {
    succeed(buf().arg("lint"));
}

#[test]
fn proto_files_are_formatted() {
    succeed(buf().args(["format", "--diff", "--exit-code"]));
}

#[test]
fn proto_files_break_no_earlier_client() {
    let earlier = match earlier() {
        Ok(commit) => commit,
        Err(reason) => return println!("skipped: {reason}"),
    };
    succeed(buf().args(["breaking", "--against", &format!(".git#ref={earlier}")]));
}

#[test]
fn proto_files_match_envoys_wire_format() {
    // Not the rules of `buf.yaml`: Envoy has more files and messages, and some fields are `bytes` here. `WIRE` accepts
    // both, but no other field numbers or encodings.
    const WIRE: &str =
        r#"{"version": "v2", "modules": [{"path": "proto"}], "breaking": {"use": ["WIRE"]}}"#;

    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("envoy.binpb");
    succeed(python("envoy_protos.py").arg(envoy()).arg(&image));
    succeed(buf().args(["breaking", "--config", WIRE, "--against"]).arg(&image));
}

/// The last tag, otherwise the first commit. The error says why there is neither.
fn earlier() -> Result<String, String> {
    let commit = match line(git("describe").args(["--tags", "--abbrev=0"])) {
        Some(tag) => tag,
        // In a shallow clone the oldest commit is not the first one.
        None if line(git("rev-parse").arg("--is-shallow-repository")).as_deref()
            == Some("true") =>
        {
            return Err("a shallow clone without a tag".to_owned());
        }
        None => line(git("rev-list").args(["--max-parents=0", "HEAD"])).ok_or("no commit yet")?,
    };
    for path in ["buf.yaml", "proto"] {
        line(git("rev-parse").arg("--verify").arg(format!("{commit}:{path}")))
            .ok_or_else(|| format!("{commit} has no {path}"))?;
    }
    Ok(commit)
}

fn git(command: &str) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(workspace()).arg(command);
    git
}

/// The first line that the command prints, if it succeeds.
fn line(command: &mut Command) -> Option<String> {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    output.status.success().then(|| text.lines().next().map(str::to_owned))?
}
