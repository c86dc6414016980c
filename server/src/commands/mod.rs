//! The commands beside `serve`: each does one thing with files, prints, and ends.

mod diff;
mod validate;

pub use diff::diff;
pub use validate::validate;

use std::{
    fmt::Display,
    io::{self, Write as _},
};

use sluicegate_proto::text::printable_lines;

/// Prints text to the standard output. Whoever closed it does not want to read on.
fn say(text: impl Display) {
    let _closed = writeln!(io::stdout(), "{}", printable_lines(&text.to_string()));
}
