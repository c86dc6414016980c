//! Settings from flags, environment variables and the file of `--config`: flags win over variables, variables over the
//! file.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    path::PathBuf,
};

use clap::{
    Arg, ArgMatches, Command, CommandFactory as _, FromArgMatches as _,
    builder::OsStringValueParser,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

use super::{
    Cli,
    config_file::{self, CONFIG, FileSetting},
};

/// The command that reads a settings file.
const SERVE: &str = "serve";

/// Why a command line cannot be parsed into settings.
#[derive(Debug)]
pub enum ParseError {
    /// The command line asks for help or the version, or has no command.
    Help(clap::Error),
    /// All mistakes, one line each.
    Mistakes(Vec<String>),
}

impl Cli {
    /// Reads the settings from a command line, the environment, and the file of `--config`.
    ///
    /// # Errors
    /// The command line asks for help, or settings have mistakes.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, ParseError> {
        let mut arguments: Vec<_> = arguments.into_iter().collect();
        let mut mistakes = Vec::new();
        let mut locations = HashMap::new();
        if let Some(given) = serve_arguments(&arguments)
            && let Some(path) = given.get_one::<OsString>(CONFIG)
        {
            let mut command = Self::command();
            command.build();
            let serve = command.find_subcommand(SERVE);
            let read = serve.map(|serve| config_file::read(&PathBuf::from(path), serve));
            let (settings, found) = read.unwrap_or_default();
            locations = add_file_settings(settings, &given, &mut arguments);
            mistakes = found;
        }
        parse(&arguments, &locations, mistakes)
    }
}

/// The flags and environment variables of `serve`, with unparsed values; `None` for other commands.
fn serve_arguments(arguments: &[OsString]) -> Option<ArgMatches> {
    let as_text = |command: Command| {
        command.mut_args(|flag| flag.value_parser(OsStringValueParser::new()).required(false))
    };
    let command = Cli::command().ignore_errors(true).mut_subcommand(SERVE, as_text);
    let mut matches = command.try_get_matches_from(arguments).ok()?;
    let (name, matches) = matches.remove_subcommand()?;
    (name == SERVE).then_some(matches)
}

/// Inserts the settings of the file before the flags, except those that a flag or a variable sets. Returns their
/// locations in the file by the flag's id.
fn add_file_settings(
    settings: Vec<FileSetting>,
    given: &ArgMatches,
    arguments: &mut Vec<OsString>,
) -> HashMap<String, String> {
    let mut locations = HashMap::new();
    let mut inserted = Vec::new();
    for FileSetting { id, location, arguments } in settings {
        let source = given.value_source(&id);
        if !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            inserted.extend(arguments);
            locations.insert(id, location);
        }
    }
    let command = arguments.iter().skip(1).position(|argument| argument == SERVE);
    let behind_command = command.map_or(arguments.len(), |position| position + 2);
    arguments.splice(behind_command..behind_command, inserted);
    locations
}

/// Parses a command line, and finds all mistakes: clap stops at the first invalid value. The command line is then
/// parsed again, with that flag as text.
fn parse(
    arguments: &[OsString],
    locations: &HashMap<String, String>,
    mut mistakes: Vec<String>,
) -> Result<Cli, ParseError> {
    let mut command = Cli::command();
    let subcommand = arguments.get(1).and_then(|name| name.to_str()).unwrap_or_default();
    let mut parsed_as_text = HashSet::new();
    loop {
        let error = match command.clone().try_get_matches_from(arguments) {
            Ok(mut matches) if mistakes.is_empty() => {
                match Cli::from_arg_matches_mut(&mut matches) {
                    Ok(cli) => return Ok(cli),
                    Err(error) => error,
                }
            }
            Ok(_) => return Err(ParseError::Mistakes(mistakes)),
            Err(error) if is_help(error.kind()) => return Err(ParseError::Help(error)),
            Err(error) => error,
        };
        let rejected = rejected_flag(&error, &command, subcommand);
        let location = rejected.as_ref().and_then(|flag| locations.get(flag.get_id().as_str()));
        mistakes.push(one_line(&error, rejected.as_ref(), location));
        let id = rejected.map(|flag| flag.get_id().to_string());
        let Some(id) = id.filter(|id| parsed_as_text.insert(id.clone())) else {
            return Err(ParseError::Mistakes(mistakes));
        };
        command = command.mut_subcommand(subcommand, |command| {
            command.mut_arg(id, |flag| flag.value_parser(OsStringValueParser::new()))
        });
    }
}

/// The flag whose value the error rejects, if the error is about a value of the subcommand.
fn rejected_flag(error: &clap::Error, command: &Command, subcommand: &str) -> Option<Arg> {
    if !matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) {
        return None;
    }
    let ContextValue::String(shown) = error.get(ContextKind::InvalidArg)? else { return None };
    // The error contains the flag in the notation of the built command.
    let mut built = command.clone();
    built.build();
    let mut flags = built.find_subcommand(subcommand)?.get_arguments();
    flags.find(|flag| flag.to_string() == *shown).cloned()
}

const fn is_help(kind: ErrorKind) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(kind, DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand)
}

/// The text of an error in one line, without clap's usage notes. `location`: file and line of the value, if it is from
/// a file. Does not show the value of a flag that may contain a password: such flags hide their variables in the help.
fn one_line(error: &clap::Error, rejected: Option<&Arg>, location: Option<&String>) -> String {
    let mut text = error.to_string();
    if rejected.is_some_and(Arg::is_hide_env_values_set)
        && let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
    {
        text = text.replace(&format!("'{value}'"), "'…'");
    }
    let lines = text.lines().take_while(|line| !line.starts_with("Usage:"));
    let lines = lines.filter(|line| !line.starts_with("For more information"));
    let text = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    match location {
        Some(location) => format!("{location}: {text}"),
        None => text.to_owned(),
    }
}
