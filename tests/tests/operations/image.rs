//! The container image, as far as it can be checked without building it: the Dockerfile, the build context, and the
//! programs in a root file system with the same content.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command as Blocking,
};

use serde_json::Value;
use sluicegate_tests::{
    Sluicegate, binary, finish, hit,
    tools::{self, succeed, workspace},
    yaml,
};
use tokio::process::Command;

const PROGRAMS: [&str; 2] = ["sluicegate", "sluicectl"];

/// The instructions of the Dockerfile: name and arguments.
fn instructions() -> Vec<(String, String)> {
    let text = fs::read_to_string(workspace().join("Dockerfile")).unwrap().replace("\\\n", " ");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split = lines.map(|line| line.split_once(' ').unwrap());
    split.map(|(word, rest)| (word.to_owned(), rest.trim().to_owned())).collect()
}

/// The arguments of an instruction in the last stage.
fn arguments_of(word: &str) -> Vec<String> {
    let all = instructions();
    let last = all.iter().rposition(|(word, _)| word == "FROM").unwrap();
    let of = all.into_iter().skip(last).filter(|(it, _)| it == word);
    of.map(|(_, rest)| rest).collect()
}

fn only(word: &str) -> String {
    let [arguments] = &arguments_of(word)[..] else { panic!("there is not exactly one {word}") };
    arguments.clone()
}

/// The words of an instruction in exec form.
fn words(list: &str) -> Vec<String> {
    serde_json::from_str(list).unwrap_or_else(|_| panic!("{list} needs a shell"))
}

#[test]
fn the_dockerfile_passes_the_linter() {
    succeed(tools::manifests("hadolint").arg("Dockerfile"));
    // The linter detects mistakes.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Dockerfile");
    fs::write(&file, "FROM debian\nRUN cd /tmp\n").unwrap();
    let output = tools::manifests("hadolint").arg(file).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn the_image_runs_unprivileged_and_without_a_shell() {
    let user = only("USER");
    let (uid, gid) = user.split_once(':').unwrap();
    let [uid, gid]: [u32; 2] = [uid, gid].map(|id| id.parse().unwrap());
    assert!(uid > 0 && gid > 0);
    let values = fs::read_to_string(workspace().join("helm/values.yaml")).unwrap();
    let values = yaml::read("values.yaml", &values);
    assert_eq!(values["podSecurityContext"]["runAsUser"], uid);
    assert_eq!(values["podSecurityContext"]["runAsGroup"], gid);
    assert_eq!(only("FROM"), "scratch");
    let health = only("HEALTHCHECK");
    let (_, health) = health.split_once("CMD ").unwrap();
    for program in [&words(&only("ENTRYPOINT"))[0], &words(health)[0]] {
        let name = Path::new(program).file_name().unwrap().to_str().unwrap();
        assert!(
            PROGRAMS.contains(&name) && *program == format!("/usr/local/bin/{name}"),
            "{program}"
        );
    }
}

/// Otherwise builds for two architectures would share a cache, and one could get the other's programs.
#[test]
fn build_caches_are_separate_for_each_architecture() {
    let stage: Vec<_> = instructions().into_iter().skip_while(|(word, _)| word != "FROM").collect();
    let run = stage.iter().position(|(word, rest)| word == "RUN" && rest.contains("cargo build"));
    let (before, run) = (&stage[..run.unwrap()], &stage[run.unwrap()].1);
    assert!(before.iter().any(|(word, rest)| word == "ARG" && rest == "TARGETARCH"), "{before:?}");
    let mounts = run.split_whitespace().filter_map(|word| word.strip_prefix("--mount="));
    let mounts: Vec<_> = mounts.filter(|it| it.contains("target=/build/target")).collect();
    assert_eq!(mounts, ["type=cache,id=target-$TARGETARCH,target=/build/target"]);
}

#[test]
fn labels_and_ports_are_those_of_the_server() {
    let version = format!("VERSION={}", env!("CARGO_PKG_VERSION"));
    assert!(arguments_of("ARG").contains(&version));
    assert!(only("LABEL").contains("org.opencontainers.image.version=\"${VERSION}\""));
    let help = succeed(Blocking::new(binary("sluicegate")).args(["serve", "--help"]));
    let port_of = |variable: &str| {
        let (_, after) = help.split_once(&format!("[env: {variable}=")).unwrap();
        let (_, default) = after.split_once("[default: ").unwrap();
        default.split_once(']').unwrap().0.rsplit_once(':').unwrap().1.to_owned()
    };
    let listens = ["SLUICEGATE_HTTP_LISTEN", "SLUICEGATE_GRPC_LISTEN"];
    let ports: Vec<_> = listens.iter().map(|variable| port_of(variable)).collect();
    assert_eq!(only("EXPOSE"), ports.join(" "));
    for (variable, port) in listens.iter().zip(&ports) {
        assert!(only("ENV").contains(&format!("{variable}=0.0.0.0:{port}")), "{variable}");
    }
}

/// Whether a file is in the build context: it is not below an ignored path.
fn is_sent(ignored: &[String], path: &Path) -> bool {
    !ignored.iter().any(|it| path.starts_with(it))
}

fn ignored() -> Vec<String> {
    let text = fs::read_to_string(workspace().join(".dockerignore")).unwrap();
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    assert!(lines.iter().all(|line| !line.contains(['*', '!', '#'])), "plain paths: {lines:?}");
    lines
}

#[test]
fn the_build_context_has_every_source_of_the_programs() {
    let (ignored, root) = (ignored(), workspace().canonicalize().unwrap());
    let built = binary(PROGRAMS[0]).parent().unwrap().to_owned();
    let mut sources = 0;
    for program in PROGRAMS {
        // cargo's dep-info file: PROGRAM: SOURCE SOURCE …
        let noted = fs::read_to_string(binary(program).with_extension("d")).unwrap();
        let (_, noted) = noted.split_once(": ").unwrap();
        for source in noted.split_whitespace() {
            // Generated files are generated again.
            if Path::new(source).starts_with(&built) {
                continue;
            }
            let Ok(source) = Path::new(source).strip_prefix(&root) else { continue };
            sources += 1;
            assert!(is_sent(&ignored, source), "{} is not sent", source.display());
        }
    }
    assert!(sources > 10, "{sources}");
    for kept in ["target", ".git"] {
        assert!(!is_sent(&ignored, Path::new(kept)));
    }
}

/// Copies the files of the build context.
fn copy(ignored: &[String], from: &Path, to: &Path, path: &Path) {
    for entry in fs::read_dir(from.join(path)).unwrap().map(Result::unwrap) {
        let path = path.join(entry.file_name());
        if !is_sent(ignored, &path) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(to.join(&path)).unwrap();
            copy(ignored, from, to, &path);
        } else {
            fs::copy(entry.path(), to.join(path)).unwrap();
        }
    }
}

fn context() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&ignored(), workspace(), folder.path(), Path::new(""));
    folder
}

#[test]
fn cargo_accepts_the_build_context() {
    let context = context();
    let mut cargo = Blocking::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version=1", "--locked", "--offline"]);
    let metadata = succeed(cargo.current_dir(context.path()));
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let packages: BTreeSet<_> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["targets"].as_array().unwrap().iter().any(|it| it["kind"][0] == "bin"))
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    let built = instructions();
    let built = built.iter().find(|(word, rest)| word == "RUN" && rest.contains("cargo build"));
    let built = &built.unwrap().1;
    for package in built.split("--package ").skip(1).map(|it| it.split(' ').next().unwrap()) {
        assert!(packages.contains(package), "{package} of {packages:?}");
    }
    for program in PROGRAMS {
        assert!(built.contains(&format!("target/release/{program}")));
    }
}

/// With the commands of docs/kubernetes.md.
#[test]
fn a_bill_of_materials_names_every_dependency() {
    let context = context();
    let mut cyclonedx = tools::cargo_cyclonedx();
    succeed(
        cyclonedx
            .args(["--format", "json"])
            .env("CARGO_NET_OFFLINE", "true")
            .current_dir(context.path()),
    );
    for (folder, package) in [("server", "sluicegate"), ("client/sluicectl", "sluicectl")] {
        let bill = context.path().join(folder).join(format!("{package}.cdx.json"));
        let bill: Value = serde_json::from_str(&fs::read_to_string(bill).unwrap()).unwrap();
        assert_eq!(bill["bomFormat"], "CycloneDX");
        assert_eq!(bill["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
        let named: BTreeSet<_> = bill["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| {
                format!("{} {}", it["name"].as_str().unwrap(), it["version"].as_str().unwrap())
            })
            .collect();
        let mut tree = Blocking::new(env!("CARGO"));
        tree.args(["tree", "--locked", "--offline", "--package", package, "--edges", "normal"]);
        let tree =
            succeed(tree.args(["--prefix", "none", "--format", "{p}"]).current_dir(workspace()));
        let linked = tree.lines().filter_map(|line| line.split_once(" v"));
        let linked: BTreeSet<_> = linked
            .map(|(name, rest)| format!("{name} {}", rest.split(' ').next().unwrap()))
            .filter(|it| !it.starts_with(&format!("{package} ")))
            .collect();
        let missing: Vec<_> = linked.difference(&named).collect();
        assert!(missing.is_empty() && linked.len() > 20, "{package}: {missing:?}");
    }
}

/// The root file system of the image, with the programs of this build.
fn assembled(folder: &Path) -> PathBuf {
    let root = folder.join("root");
    let mut assemble = Blocking::new(workspace().join("image/assemble"));
    succeed(assemble.arg(&root).args(PROGRAMS.map(binary)));
    root
}

/// A command in that root, as the image's user, which owns no file in it.
fn inside(root: &Path, words: &[String]) -> Command {
    let user = only("USER");
    let (uid, gid) = user.split_once(':').unwrap();
    // Root may change root and user. Other users need a user namespace.
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut command = Command::new(if is_root { "chroot" } else { "unshare" });
    if is_root {
        command.arg(format!("--userspec={user}")).arg(root);
    } else {
        command.args(["--user", "--map-user", uid, "--map-group", gid]);
        command.arg(format!("--root={}", root.display()));
    }
    command.args(words).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

#[test]
fn the_image_is_not_writable() {
    fn check(path: &Path) {
        let metadata = fs::symlink_metadata(path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7022, 0, "{}", path.display());
        if metadata.is_dir() {
            fs::read_dir(path).unwrap().for_each(|entry| check(&entry.unwrap().path()));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let root = assembled(folder.path());
    check(&root);
    assert!(!root.join("bin").exists() && !root.join("usr/bin").exists());
}

#[tokio::test]
async fn the_image_serves_and_reports_its_health() {
    let folder = tempfile::tempdir().unwrap();
    let root = assembled(folder.path());
    let limits =
        "domain: api\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]";
    fs::write(root.join("etc/sluicegate/limits/api.yaml"), limits).unwrap();
    let mut run = words(&only("ENTRYPOINT"));
    run.extend(words(&only("CMD")));
    let mut serve = inside(&root, &run);
    for pair in only("ENV").split_whitespace() {
        let (name, value) = pair.split_once('=').unwrap();
        let listens = name.ends_with("_LISTEN");
        serve.env(name, if listens { "127.0.0.1:0" } else { value });
    }
    serve.env("SLUICEGATE_ADMIN_LISTEN", "off").env("SLUICEGATE_DRAIN_DELAY", "0s");
    let mut server = Sluicegate::started(folder, serve).await;
    server.should_rate_limit(hit("user", "bob")).await.unwrap();
    let owner = fs::metadata(format!("/proc/{}", server.process.id())).unwrap().uid();
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    assert!(!is_root || owner.to_string() == only("USER").split_once(':').unwrap().0, "{owner}");

    let health = only("HEALTHCHECK");
    let health = words(health.split_once("CMD ").unwrap().1);
    let ask = async |url: String| {
        let mut command = inside(&root, &health);
        command.env("SLUICECTL_SERVER", url);
        finish(command).await
    };
    let url = format!("http://{}", server.grpc);
    let healthy = ask(url.clone()).await;
    assert_eq!((healthy.code, healthy.stdout.as_str()), (0, "serving\n"), "{}", healthy.stderr);
    // sluicectl loads the CA certificates before it connects to the closed port.
    server.process.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(server.process.ended().await.success());
    for url in [url.clone(), url.replace("http:", "https:")] {
        let gone = ask(url).await;
        assert_eq!((gone.code, gone.stdout.as_str()), (3, ""), "{}", gone.stderr);
        assert!(gone.stderr.contains("refused"), "{}", gone.stderr);
    }
}
