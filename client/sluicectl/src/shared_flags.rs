//! Arguments that `sluicegate serve` has too, with environment variables of `sluicectl`.

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, Id};

/// Environment variables of the server, and those of `sluicectl` in their place.
const VARIABLES: [(&str, &str); 6] = [
    ("SLUICEGATE_DEFAULT_COUNTING", "SLUICECTL_DEFAULT_COUNTING"),
    ("SLUICEGATE_LIMITS_MAX_BYTES", "SLUICECTL_LIMITS_MAX_BYTES"),
    ("SLUICEGATE_LIMITS_MAX_FILES", "SLUICECTL_LIMITS_MAX_FILES"),
    ("SLUICEGATE_MERGE_DOMAINS", "SLUICECTL_MERGE_DOMAINS"),
    ("SLUICEGATE_QUOTA_MODE", "SLUICECTL_QUOTA_MODE"),
    ("SLUICEGATE_SHADOW_MODE", "SLUICECTL_SHADOW_MODE"),
];

/// Arguments of the server whose variables begin with `SLUICECTL_`.
#[derive(Clone, Copy, Debug)]
pub struct SharedFlags<T>(pub T);

impl<T: FromArgMatches> FromArgMatches for SharedFlags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<T: Args> Args for SharedFlags<T> {
    fn group_id() -> Option<Id> {
        T::group_id()
    }

    fn augment_args(command: Command) -> Command {
        T::augment_args(command).mut_args(with_own_variable)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command).mut_args(with_own_variable)
    }
}

fn with_own_variable(argument: Arg) -> Arg {
    let known = argument.get_env().and_then(|name| name.to_str());
    let own = VARIABLES.into_iter().find(|(server, _)| known == Some(*server));
    match own {
        Some((_, own)) => argument.env(own),
        None => argument,
    }
}
