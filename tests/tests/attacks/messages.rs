//! Attacks with large messages and values.
