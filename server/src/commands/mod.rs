//! The commands beside `serve`. Each reads files, prints a result, and exits.

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

/// Prints text, with control characters escaped, to the standard output. Ignores a closed output.
fn print_lines(text: impl Display) {
    let _closed = writeln!(io::stdout(), "{}", printable_lines(&text.to_string()));
}
