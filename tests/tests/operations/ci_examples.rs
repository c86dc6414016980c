//! `examples/ci`: the report on limits files of a change, in a real git repository, and the commands that post it.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use sluicegate_tests::{
    binary, fenced,
    tools::{self, succeed, workspace},
    yaml,
};
use tempfile::TempDir;

const THREE: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
";

/// A repository with a branch `main`, and a checked out branch `change`; and stubs of the commands that post.
struct Repository {
    folder: TempDir,
}

impl Repository {
    /// With these limits on `main`, if any, and these on the branch.
    fn new(main: Option<&str>, change: &str) -> Self {
        let it = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(it.path("work/ci")).unwrap();
        fs::copy(workspace().join("examples/ci/limits-report"), it.path("work/ci/limits-report"))
            .unwrap();
        it.git(&["init", "--quiet", "--initial-branch=main"]);
        main.inspect(|limits| it.write(limits));
        it.commit();
        it.git(&["checkout", "--quiet", "-b", "change"]);
        it.write(change);
        it.commit();
        // What others merge in the meantime is not part of the change.
        it.git(&["checkout", "--quiet", "main"]);
        fs::write(it.path("work/README"), "later").unwrap();
        if let Some(limits) = main {
            it.write(&limits.replace("domain: api", "domain: later"));
        }
        it.commit();
        it.git(&["checkout", "--quiet", "change"]);
        fs::create_dir(it.path("bin")).unwrap();
        for stub in ["gh", "curl"] {
            let script = "#!/bin/sh\nprintf '%s\\n' \"${0##*/}\" \"$@\" > \"$POSTED\"\n";
            fs::write(it.path("bin").join(stub), script).unwrap();
            let executable = fs::Permissions::from_mode(0o755);
            fs::set_permissions(it.path("bin").join(stub), executable).unwrap();
        }
        it
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, limits: &str) {
        fs::create_dir_all(self.path("work/limits")).unwrap();
        fs::write(self.path("work/limits/api.yaml"), limits).unwrap();
    }

    fn git(&self, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=test", "-c", "user.email=test@example.com"]);
        succeed(
            git.args(arguments)
                .current_dir(self.path("work"))
                .env("GIT_CONFIG_GLOBAL", "/dev/null"),
        );
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "limits"]);
    }

    /// Runs a script with the variables of a CI service.
    fn run(&self, script: &str, variables: &[(&str, &str)]) -> Output {
        let programs = binary("sluicegate").parent().unwrap().to_owned();
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{}:{path}", self.path("bin").display(), programs.display());
        let mut bash = Command::new("bash");
        bash.args(["-e", "-c", script]).current_dir(self.path("work"));
        bash.env("PATH", path).env("POSTED", self.path("posted"));
        bash.envs(variables.iter().copied()).output().unwrap()
    }

    /// The report, and whether the change may be merged.
    fn report(&self) -> (String, bool) {
        let output = self.run("ci/limits-report main limits", &[]);
        assert!(output.stderr.is_empty(), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), output.status.success())
    }
}

#[test]
fn the_report_lists_changed_rules() {
    let repository = Repository::new(Some(THREE), &THREE.replace(": 3", ": 5"));
    let (report, passed) = repository.report();
    assert!(passed, "{report}");
    // The README shows the report.
    let readme = fs::read_to_string(workspace().join("examples/ci/README.md")).unwrap();
    let shown = readme.split_once("$ ci/limits-report origin/main limits\n").unwrap().1;
    let shown: Vec<_> = shown
        .lines()
        .take_while(|it| it.is_empty() || it.starts_with("    "))
        .map(str::trim)
        .collect();
    assert_eq!(report.trim(), shown.join("\n").trim());
}

#[test]
fn the_report_lists_mistakes_and_fails() {
    let repository = Repository::new(Some(THREE), &THREE.replace(": 3", ": many"));
    let (report, passed) = repository.report();
    assert!(!passed, "{report}");
    assert!(report.starts_with("### Limits: mistakes\n"), "{report}");
    assert!(
        report.contains("\nlimits/api.yaml:5: descriptors[0].rate_limit.requests_per_unit: "),
        "{report}"
    );
}

#[test]
fn the_report_says_what_cannot_be_compared() {
    let same = Repository::new(Some(THREE), &format!("{THREE}# a comment\n"));
    assert_eq!(
        same.report(),
        ("### Limits: no change\n\nEvery request is decided as before.\n".to_owned(), true)
    );
    let (report, passed) = Repository::new(None, THREE).report();
    assert!(
        passed && report.starts_with("### Limits: new\n") && report.contains("1 rule"),
        "{report}"
    );
    let (report, passed) = Repository::new(Some("domain: [\n"), THREE).report();
    assert!(passed && report.starts_with("### Limits: valid\n"), "{report}");
    assert!(report.contains("\nlimits/api.yaml:"), "{report}");
}

#[test]
fn a_long_report_is_cut() {
    let rules = (0..2_000).map(|user| {
        format!("  - {{key: user, value: u{user}, rate_limit: {{unit: minute, requests_per_unit: 3}}}}\n")
    });
    let many = format!("domain: api\ndescriptors:\n{}", rules.collect::<String>());
    let (report, passed) = Repository::new(Some(&many), &many.replace(": 3", ": 5")).report();
    assert!(passed && report.len() < 51_000, "{}", report.len());
    assert!(report.trim_end().ends_with("see the rest)\n````````"), "{report}");
}

// === Services ===

fn workflow(name: &str) -> Value {
    yaml::read(name, &fs::read_to_string(workspace().join("examples/ci").join(name)).unwrap())
}

#[test]
fn ci_services_accept_the_workflows() {
    let check = |schema: &str, file: &Path| {
        let mut check = tools::manifests("check-jsonschema");
        check.args(["--builtin-schema", schema]).arg(file).output().unwrap().status.success()
    };
    let folder = tempfile::tempdir().unwrap();
    for (file, schema, key) in [
        ("github.yaml", "vendor.github-workflows", "runs-on:"),
        ("gitlab.yaml", "vendor.gitlab-ci", "after_script:"),
    ] {
        let path = workspace().join("examples/ci").join(file);
        assert!(check(schema, &path), "{file}");
        let wrong = folder.path().join(file);
        let text = fs::read_to_string(path).unwrap();
        fs::write(&wrong, text.replace(key, &format!("un{key}"))).unwrap();
        assert!(!check(schema, &wrong), "{file} without {key}");
    }
    let readme = fs::read_to_string(workspace().join("examples/ci/README.md")).unwrap();
    let [dockerfile] = fenced(&readme, "dockerfile")[..] else { panic!("one Dockerfile") };
    let file = folder.path().join("Dockerfile");
    fs::write(&file, dockerfile).unwrap();
    // Packages without versions, and a placeholder for the registry.
    succeed(tools::manifests("hadolint").args(["--ignore", "DL3008"]).arg(file));
}

/// What the stub of the command that posts was called with, and the file that it got.
fn posted(repository: &Repository) -> Vec<String> {
    let posted = fs::read_to_string(repository.path("posted")).unwrap();
    posted.lines().map(str::to_owned).collect()
}

#[test]
fn github_comments_also_after_a_failed_check() {
    for (change, passes) in
        [(THREE.replace(": 3", ": 5"), true), (THREE.replace(": 3", ": x"), false)]
    {
        let repository = Repository::new(Some(THREE), &change);
        repository.git(&["update-ref", "refs/remotes/origin/main", "main"]);
        let workflow = workflow("github.yaml");
        let steps = workflow["jobs"]["limits"]["steps"].as_array().unwrap();
        let step = |name: &str| steps.iter().find(|step| step["name"] == name).unwrap();
        let temporary = repository.folder.path().to_str().unwrap();
        let summary = repository.path("summary");
        let variables = [
            ("GITHUB_BASE_REF", "main"),
            ("RUNNER_TEMP", temporary),
            ("GITHUB_STEP_SUMMARY", summary.to_str().unwrap()),
            ("NUMBER", "7"),
        ];
        let run = |name: &str| repository.run(step(name)["run"].as_str().unwrap(), &variables);
        assert_eq!(run("Check").status.success(), passes);
        for name in ["Summarize", "Comment"] {
            assert!(step(name)["if"].as_str().unwrap().starts_with("always()"), "{name}");
            assert!(run(name).status.success(), "{name}");
        }
        let report = repository.path("report.md");
        let expected =
            ["gh", "pr", "comment", "7", "--edit-last", "--create-if-none", "--body-file"];
        let posted = posted(&repository);
        assert_eq!(posted[..7], expected);
        assert_eq!(posted[7], report.to_str().unwrap());
        let report = fs::read_to_string(report).unwrap();
        assert!(
            report.contains(if passes { "changed api: user" } else { "limits/api.yaml:5: " }),
            "{report}"
        );
        assert_eq!(fs::read_to_string(summary).unwrap(), report);
    }
}

#[test]
fn gitlab_comments_also_after_a_failed_check() {
    for (change, passes) in
        [(THREE.replace(": 3", ": 5"), true), (THREE.replace(": 3", ": x"), false)]
    {
        let repository = Repository::new(Some(THREE), &change);
        // The service's clone has the target branch at its origin only.
        let origin = repository.path("work").display().to_string();
        repository.git(&["remote", "add", "origin", &origin]);
        let workflow = workflow("gitlab.yaml");
        let script = |name: &str| {
            let lines = workflow["limits"][name].as_array().unwrap().iter();
            lines.map(|line| line.as_str().unwrap()).collect::<Vec<_>>().join("\n")
        };
        let variables = [
            ("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "main"),
            ("CI_API_V4_URL", "https://git.example.com/api/v4"),
            ("CI_PROJECT_ID", "5"),
            ("CI_MERGE_REQUEST_IID", "7"),
            ("LIMITS_TOKEN", "secret"),
        ];
        assert_eq!(repository.run(&script("script"), &variables).status.success(), passes);
        assert!(repository.run(&script("after_script"), &variables).status.success());
        let posted = posted(&repository);
        assert_eq!(posted[0], "curl");
        assert!(posted.contains(&"body@report.md".to_owned()), "{posted:?}");
        let url = "https://git.example.com/api/v4/projects/5/merge_requests/7/notes";
        assert_eq!(posted.last().unwrap(), url);
        let report = fs::read_to_string(repository.path("work/report.md")).unwrap();
        assert!(
            report.contains(if passes { "changed api: user" } else { "limits/api.yaml:5: " }),
            "{report}"
        );
    }
}
