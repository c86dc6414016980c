//! Reads the YAML of a limits file into [`LimitsFile`], and notes everything that is not of its shape.
//!
//! A reader of our own rather than serde's, because serde stops at the first mistake. What is broken is
//! noted and left out, so that the rest can still be checked.
//!
//! The file may be something else than limits, by mistake or on purpose. So nothing of its text goes into what is noted:
//! values are described, and only keys of limits files are named.

mod document;
mod flat;
mod keys;
mod location;
mod metadata;
mod node;
mod reader;
mod scalar;
mod schema;
mod shape;

use std::sync::Arc;

use sluicegate_core::rules::{LimitsFile, Mistake};

use self::{location::FileLocation, reader::Reader, scalar::is_null};

pub use self::flat::{FlatEntry, FlatMistake, FlatValue, read_flat};
pub(super) use self::reader::ReadState;
pub use self::schema::schema;

/// Reads one file; `None` if it is no map with a domain, or if there are more mistakes than are listed.
pub(super) fn read(name: &str, text: &str, shared: &mut ReadState) -> Option<LimitsFile> {
    let mut nodes_left = shared.nodes_left;
    let mut reader = Reader { file: Arc::from(name), shared, noted: 0 };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let loaded = shape::load(text, &mut nodes_left, |at, warning| reader.warn(&at, warning));
    reader.shared.nodes_left = nodes_left;
    let root = match loaded {
        Ok(root) => root,
        Err((at, mistake)) => {
            reader.mistake(&at, mistake);
            return None;
        }
    };
    let Some(root) = root.filter(|root| !is_null(root)) else {
        reader.mistake(&FileLocation::file_start(), Mistake::Missing("domain"));
        return None;
    };
    reader.file(&root)
}
