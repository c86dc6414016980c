//! The commands beside `serve`: each does one thing with files, prints, and ends.

mod diff;
mod schema;
mod validate;

pub use diff::diff;
pub use schema::schema;
pub use validate::validate;

use std::{
    fmt::Display,
    io::{self, Write as _},
};

use sluicegate_proto::text::printable_lines;

/// Prints text to the standard output. Ignores a closed output.
fn say(text: impl Display) {
    let _closed = writeln!(io::stdout(), "{}", printable_lines(&text.to_string()));
}
