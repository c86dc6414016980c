//! Attacks with many, silent or half-sent connections, on every listener.
