//! Reads the YAML of a limits file into [`LimitsFile`], and reports all mistakes in its structure.
//!
//! serde is not used, because it stops at the first mistake. This reader reports a broken part, leaves it out, and
//! checks the rest.
//!
//! The file may be something else than a limits file, by mistake or on purpose. So mistakes do not quote its text: they
//! describe values, and name only keys that limits files define.

mod document;
mod flat;
mod keys;
mod location;
mod metadata;
mod node;
mod node_builder;
mod reader;
mod response_body;
mod scalar;
mod schema;

use std::sync::Arc;

use sluicegate_core::rules::{LimitsFile, Mistake};

use self::{location::FileLocation, reader::Reader, scalar::is_null};

pub use self::flat::{FlatEntry, FlatMistake, FlatValue, read_flat_map};
pub(super) use self::reader::ReadState;
pub use self::schema::json_schema;

/// Reads one limits file, and adds mistakes and warnings to `shared`. `None` if the file is not a map with a domain, or
/// if there are more mistakes than are listed.
pub(super) fn read(name: &str, text: &str, shared: &mut ReadState) -> Option<LimitsFile> {
    let mut nodes_left = shared.nodes_left;
    let mut reader = Reader { file: Arc::from(name), shared, mistakes: 0 };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let loaded =
        node_builder::build_nodes(text, &mut nodes_left, |at, warning| reader.warn(&at, warning));
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
