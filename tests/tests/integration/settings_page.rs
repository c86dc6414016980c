//! `docs/settings.md` is generated from the flags.

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use clap::{Arg, Command, CommandFactory as _};
use sluicegate::settings::Cli;
use sluicegate_tests::tools::workspace;

const BEGIN: &str = "\
# Settings

Every setting of `sluicegate`, with its flag, environment variable and default. In the file of `--config` a setting has the name of
the flag without dashes in front. Flags win over variables, variables win over the file:

```sh
sluicegate serve --limits limits/ --max-in-flight 20000
SLUICEGATE_LIMITS=limits/ SLUICEGATE_MAX_IN_FLIGHT=20000 sluicegate serve
echo '{limits: limits/, max-in-flight: 20000}' > sluicegate.yaml && sluicegate serve --config sluicegate.yaml
```

[`operations.md`](operations.md#settings) describes the file, [`bounds.md`](bounds.md) the effect of each bound. \"Since\" is the first
version with the setting.
";

fn path() -> PathBuf {
    workspace().join("docs/settings.md")
}

/// The first version of each setting of a command, from the page.
fn since(page: &str) -> BTreeMap<(&str, &str), &str> {
    let mut command = "";
    let mut since = BTreeMap::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## `sluicegate ") {
            command = heading.split('`').next().unwrap();
        }
        let cells: Vec<_> = line.split(" | ").collect();
        if let [flag, .., version] = cells[..]
            && let Some(flag) = flag.strip_prefix("| `--")
        {
            let name = flag.split(['`', ' ', '[']).next().unwrap();
            since.insert((command, name), version.trim_end_matches(" |"));
        }
    }
    since
}

/// A text as a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn row(flag: &Arg, since: &str) -> String {
    let flag_text = flag.to_string().replace(['<', '>'], "");
    let variable = flag.get_env().map_or_else(String::new, |it| format!("`{}`", it.display()));
    let defaults: Vec<_> =
        flag.get_default_values().iter().map(|it| it.to_string_lossy()).collect();
    let default = match &*defaults.join(",") {
        "" if flag.is_required_set() => "required".to_owned(),
        "" => String::new(),
        default => format!("`{default}`"),
    };
    let help = flag.get_long_help().or(flag.get_help()).unwrap().to_string();
    let is_switch = flag.get_num_args().is_some_and(|count| count.min_values() == 0);
    let values = if is_switch { Vec::new() } else { flag.get_possible_values() };
    let values = values.iter().map(|it| match it.get_help() {
        Some(help) => format!("`{}`: {}", it.get_name(), cell(&help.to_string())),
        None => format!("`{}`", it.get_name()),
    });
    let values = values.collect::<Vec<_>>().join("; ");
    let end = if help.ends_with('.') { "" } else { "." };
    let mut meaning = format!("{}{end}", cell(&help));
    if !values.is_empty() {
        meaning.push_str(&format!(" {values}."));
    }
    format!("| `{flag_text}` | {variable} | {default} | {meaning} | {since} |\n")
}

/// The page. Settings that `former` does not have are new in this version.
fn page(former: &str) -> String {
    let since = since(former);
    let mut page = BEGIN.to_owned();
    let mut cli = Cli::command();
    cli.build();
    for command in cli.get_subcommands().filter(|it| it.get_name() != "help") {
        page.push_str(&format!("\n## `sluicegate {}`\n", command.get_name()));
        if settings(command).next().is_none() {
            page.push_str("\nNo settings.\n");
        }
        for heading in headings(command) {
            if let Some(heading) = heading {
                page.push_str(&format!("\n### {heading}\n"));
            }
            page.push_str(
                "\n| flag | variable | default | meaning | since |\n|---|---|---|---|---|\n",
            );
            for flag in settings(command).filter(|it| it.get_help_heading() == heading) {
                let name = flag.get_long().unwrap();
                let version = since.get(&(command.get_name(), name));
                page.push_str(&row(flag, version.unwrap_or(&env!("CARGO_PKG_VERSION"))));
            }
        }
    }
    page
}

/// The settings of a command: its flags without help and version.
fn settings(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|it| it.get_long().is_some_and(|name| name != "help"))
}

/// The headings of a command's help, in order.
fn headings(command: &Command) -> Vec<Option<&str>> {
    let mut headings = Vec::new();
    for flag in settings(command) {
        if !headings.contains(&flag.get_help_heading()) {
            headings.push(flag.get_help_heading());
        }
    }
    headings
}

#[test]
fn the_settings_page_matches_the_flags() {
    let former = fs::read_to_string(path()).unwrap_or_default();
    let page = page(&former);
    if env::var_os("SNAPSHOTS").is_some_and(|action| action == "overwrite") {
        fs::write(path(), page).unwrap();
        return;
    }
    assert!(
        former == page,
        "docs/settings.md is not what the flags say. Renew it with\n  SNAPSHOTS=overwrite cargo nextest run \
         --workspace --all-targets --locked -E 'test(the_settings_page_matches_the_flags)'"
    );
}

#[test]
fn settings_keep_the_version_that_added_them() {
    let current = page("");
    let own = concat!(" | ", env!("CARGO_PKG_VERSION"), " |");
    let line = current.lines().find(|line| line.starts_with("| `--store ")).unwrap();
    assert!(line.ends_with(own), "{line}");
    let former = current.replace(line, &line.replace(own, " | 0.0.1 |"));
    assert_eq!(page(&former), former);
}
