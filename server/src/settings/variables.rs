//! Warnings about environment variables that begin like settings but are unknown.

use std::collections::BTreeSet;

use clap::{Command, CommandFactory as _};

use super::{Cli, nearest::nearest};

/// The prefix of the variables of all settings.
const PREFIX: &str = "SLUICEGATE_";

/// A warning for each unknown variable with the prefix, with the nearest known name.
pub(crate) fn warnings(variables: impl Iterator<Item = String>) -> Vec<String> {
    let mut known = BTreeSet::new();
    collect(&Cli::command(), &mut known);
    let is_unknown = |name: &String| {
        name.strip_prefix(PREFIX).is_some_and(|rest| !is_set_by_kubernetes(rest))
            && !known.contains(name)
    };
    let warning = |name: String| match nearest(&name, known.iter().map(String::as_str)) {
        Some(nearest) => format!("no setting has the variable {name}; did you mean {nearest}?"),
        None => format!("no setting has the variable {name}; docs/settings.md lists them"),
    };
    variables.filter(is_unknown).map(warning).collect()
}

/// Adds the variables of a command and its subcommands.
fn collect(command: &Command, into: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(|flag| flag.get_env()?.to_str());
    into.extend(variables.map(str::to_owned));
    command.get_subcommands().for_each(|command| collect(command, into));
}

/// Whether Kubernetes sets this variable in every pod for a Service named `sluicegate` or `sluicegate-…`:
/// `SERVICE_HOST`, `SERVICE_PORT_GRPC`, `PORT`, `PORT_8081_TCP_ADDR`. `name` is without the prefix.
fn is_set_by_kubernetes(name: &str) -> bool {
    let words: Vec<_> = name.split('_').collect();
    let is_service_variable = |words: &[&str]| match words {
        ["SERVICE", "HOST"] | ["PORT"] | ["SERVICE", "PORT", ..] => true,
        ["PORT", number, "TCP" | "UDP" | "SCTP", rest @ ..] => {
            let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
            is_number && matches!(rest, [] | ["PROTO" | "PORT" | "ADDR"])
        }
        _ => false,
    };
    (0..words.len()).any(|start| words.get(start..).is_some_and(is_service_variable))
}

#[cfg(test)]
mod tests {
    use super::warnings;

    fn warned(name: &str) -> Option<String> {
        warnings([name.to_owned()].into_iter()).pop()
    }

    #[test]
    fn unknown_variables_cause_a_warning_with_the_nearest_name() {
        assert_eq!(
            warned("SLUICEGATE_REDIS_CONECTIONS").unwrap(),
            "no setting has the variable SLUICEGATE_REDIS_CONECTIONS; did you mean SLUICEGATE_REDIS_CONNECTIONS?"
        );
        let unlike = warned("SLUICEGATE_SOMETHING_ELSE_ENTIRELY").unwrap();
        assert!(unlike.ends_with("docs/settings.md lists them"), "{unlike}");
        for known in ["SLUICEGATE_STORE", "SLUICEGATE_CONFIG", "PATH", "XSLUICEGATE_STORES"] {
            assert_eq!(warned(known), None);
        }
    }

    #[test]
    fn variables_of_kubernetes_are_not_warned_of() {
        for name in [
            "SLUICEGATE_PORT",
            "SLUICEGATE_PORT_8081_TCP",
            "SLUICEGATE_PORT_8081_TCP_PROTO",
            "SLUICEGATE_PORT_8081_TCP_PORT",
            "SLUICEGATE_PORT_8081_TCP_ADDR",
            "SLUICEGATE_SERVICE_HOST",
            "SLUICEGATE_SERVICE_PORT",
            "SLUICEGATE_SERVICE_PORT_GRPC",
            "SLUICEGATE_ADMIN_SERVICE_HOST",
            "SLUICEGATE_ADMIN_PORT_8082_TCP_ADDR",
        ] {
            assert_eq!(warned(name), None);
        }
        for name in ["SLUICEGATE_PORTS", "SLUICEGATE_PORT_GRPC", "SLUICEGATE_SERVICE"] {
            assert!(warned(name).is_some(), "{name}");
        }
    }
}
