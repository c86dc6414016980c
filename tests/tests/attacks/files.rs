//! Hostile limits files.
