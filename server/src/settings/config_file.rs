//! The file of `--config`: settings in YAML, by the names of the flags.

use std::{ffi::OsString, path::Path};

use clap::{Arg, ArgAction, Command};
use sluicegate_limits::{FlatEntry, FlatMistake, FlatValue, read_flat_map};

use super::nearest::nearest;

/// The most bytes of a settings file.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The flag `--config`, which names the file. It cannot be set in the file itself.
pub(super) const CONFIG: &str = "config";

/// A setting of the file.
pub(super) struct FileSetting {
    /// The flag's id.
    pub(super) id: String,
    /// File and line: `FILE:LINE`.
    pub(super) location: String,
    /// The same setting on a command line.
    pub(super) arguments: Vec<OsString>,
}

/// Reads the settings of a file for a command. Returns them and the mistakes in the file, each with file and line.
/// Values are not parsed here, so mistakes in them are not among these.
pub(super) fn read(path: &Path, command: &Command) -> (Vec<FileSetting>, Vec<String>) {
    let file = path.display().to_string();
    let text = sluicegate_files::read(path, CONFIG_BYTES_MAX).map_err(|error| error.to_string());
    let text = text.and_then(|text| String::from_utf8(text).map_err(|_| "not UTF-8".to_owned()));
    let text = match text {
        Ok(text) => text,
        Err(error) => return (Vec::new(), vec![format!("--config: cannot read {file}: {error}")]),
    };
    let mut settings = Vec::new();
    let mut mistakes = Vec::new();
    match read_flat_map(&text) {
        Ok(entries) => {
            for entry in entries {
                let location = format!("{file}:{}", entry.line);
                match setting(entry, command) {
                    Ok((flag, arguments)) => {
                        let id = flag.get_id().to_string();
                        settings.push(FileSetting { id, location, arguments });
                    }
                    Err(mistake) => mistakes.push(format!("{location}: {mistake}")),
                }
            }
        }
        Err(found) => {
            let describe = |it: FlatMistake| format!("{file}:{}: {}", it.line, it.text);
            mistakes.extend(found.into_iter().map(describe));
        }
    }
    (settings, mistakes)
}

/// The flag of an entry of the file, and the entry as arguments.
fn setting(entry: FlatEntry, command: &Command) -> Result<(&Arg, Vec<OsString>), String> {
    let name = entry.name.ok_or("a list or a map cannot be the name of a setting")?;
    let is_setting = |flag: &&Arg| {
        !matches!(flag.get_action(), ArgAction::Help) && flag.get_long() != Some(CONFIG)
    };
    let flags = || command.get_arguments().filter(is_setting);
    let names = flags().filter_map(Arg::get_long);
    let flag = flags().find(|flag| flag.get_long() == Some(&*name)).ok_or_else(|| {
        let help = match nearest(&name, names) {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => "names are those of the flags, without dashes in front".to_owned(),
        };
        format!("no setting is called {name:?}; {help}")
    })?;
    let values = values(flag, entry.value).map_err(|mistake| format!("{name}: {mistake}"))?;
    let argument = |value: String| OsString::from(format!("--{name}={value}"));
    Ok((flag, values.into_iter().map(argument).collect()))
}

/// The values of a setting as on a command line.
fn values(flag: &Arg, value: FlatValue) -> Result<Vec<String>, &'static str> {
    let is_list = matches!(flag.get_action(), ArgAction::Append);
    match value {
        FlatValue::List(elements) if is_list => {
            elements.into_iter().map(|(_, element)| scalar(flag, element)).collect()
        }
        value => Ok(vec![scalar(flag, value)?]),
    }
}

fn scalar(flag: &Arg, value: FlatValue) -> Result<String, &'static str> {
    // Only flags that are on or off may have no value.
    let is_on_off = flag.get_num_args().is_some_and(|count| count.min_values() == 0);
    match value {
        FlatValue::Boolean(value) if is_on_off => Ok(value.to_string()),
        FlatValue::Boolean(_) => Err("true and false is not valid here; use quotes for a text"),
        FlatValue::Text(text) => Ok(text),
        FlatValue::Null => Err("the value is missing"),
        FlatValue::List(_) => Err("a list is not valid here"),
        FlatValue::Map => Err("a map is not valid here"),
    }
}
