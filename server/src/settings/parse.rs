//! Settings from flags, environment variables and the file of `--config`: flags win over variables, variables over the file.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    path::PathBuf,
};

use clap::{
    ArgMatches, Command, CommandFactory as _, FromArgMatches as _,
    builder::OsStringValueParser,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

use super::{
    Cli,
    config_file::{self, CONFIG, FileSetting},
};

/// The command that takes a settings file.
const SERVE: &str = "serve";

/// Why a command line gives no settings.
#[derive(Debug)]
pub enum ParseError {
    /// Help was asked for, or nothing was.
    Help(clap::Error),
    /// Every mistake, a line each.
    Mistakes(Vec<String>),
}

impl Cli {
    /// The settings of a command line, of the environment, and of the file that they name.
    ///
    /// # Errors
    /// Help was asked for, or there are mistakes.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, ParseError> {
        let mut arguments: Vec<_> = arguments.into_iter().collect();
        let mut mistakes = Vec::new();
        let mut places = HashMap::new();
        if let Some(given) = serve_arguments(&arguments)
            && let Some(path) = given.get_one::<OsString>(CONFIG)
        {
            let mut command = Self::command();
            command.build();
            let serve = command.find_subcommand(SERVE);
            let read = serve.map(|serve| config_file::read(&PathBuf::from(path), serve));
            let (settings, found) = read.unwrap_or_default();
            places = insert(settings, &given, &mut arguments);
            mistakes = found;
        }
        parse(&arguments, &places, mistakes)
    }
}

/// What a command line and the environment say of `serve`, all values as texts; nothing for other commands.
fn serve_arguments(arguments: &[OsString]) -> Option<ArgMatches> {
    let as_text = |command: Command| {
        command.mut_args(|flag| flag.value_parser(OsStringValueParser::new()).required(false))
    };
    let command = Cli::command().ignore_errors(true).mut_subcommand(SERVE, as_text);
    let mut matches = command.try_get_matches_from(arguments).ok()?;
    let (name, matches) = matches.remove_subcommand()?;
    (name == SERVE).then_some(matches)
}

/// Puts the settings of the file in front of the flags, but for those that flags or variables give. Returns where the file
/// has them, by the flag's id.
fn insert(
    settings: Vec<FileSetting>,
    given: &ArgMatches,
    arguments: &mut Vec<OsString>,
) -> HashMap<String, String> {
    let mut places = HashMap::new();
    let mut inserted = Vec::new();
    for FileSetting { id, place, arguments } in settings {
        let source = given.value_source(&id);
        if !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            inserted.extend(arguments);
            places.insert(id, place);
        }
    }
    // Behind the name of the command.
    let of_command = arguments.iter().skip(1).position(|argument| argument == SERVE);
    let position = of_command.map_or(arguments.len(), |position| position + 2);
    arguments.splice(position..position, inserted);
    places
}

/// Parses a command line. A value that is rejected is noted, and then taken as it is, so that the next one is found.
fn parse(
    arguments: &[OsString],
    places: &HashMap<String, String>,
    mut mistakes: Vec<String>,
) -> Result<Cli, ParseError> {
    let mut command = Cli::command();
    let subcommand = arguments.get(1).and_then(|name| name.to_str()).unwrap_or_default();
    let mut taken = HashSet::new();
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
        let place = rejected.as_ref().and_then(|id| places.get(id));
        mistakes.push(one_line(&error, place));
        let Some(id) = rejected.filter(|id| taken.insert(id.clone())) else {
            return Err(ParseError::Mistakes(mistakes));
        };
        command = command.mut_subcommand(subcommand, |command| {
            command.mut_arg(id, |flag| flag.value_parser(OsStringValueParser::new()))
        });
    }
}

/// The id of the flag of a subcommand whose value an error rejects.
fn rejected_flag(error: &clap::Error, command: &Command, subcommand: &str) -> Option<String> {
    if !matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) {
        return None;
    }
    let ContextValue::String(shown) = error.get(ContextKind::InvalidArg)? else { return None };
    // An error shows a flag as the built command has it.
    let mut built = command.clone();
    built.build();
    let mut flags = built.find_subcommand(subcommand)?.get_arguments();
    Some(flags.find(|flag| flag.to_string() == *shown)?.get_id().to_string())
}

const fn is_help(kind: ErrorKind) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(kind, DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand)
}

/// An error without the usage that clap prints below it, which a log has no room for. `place` is where the file has the
/// value.
fn one_line(error: &clap::Error, place: Option<&String>) -> String {
    let text = error.to_string();
    let lines = text.lines().take_while(|line| !line.starts_with("Usage:"));
    let lines = lines.filter(|line| !line.starts_with("For more information"));
    let text = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    match place {
        Some(place) => format!("{place}: {text}"),
        None => text.to_owned(),
    }
}
