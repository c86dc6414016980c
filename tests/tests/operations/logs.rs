//! The log: its formats, its levels while the server runs, and the decisions in it.
