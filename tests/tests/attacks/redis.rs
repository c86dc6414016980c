//! A hostile or broken Redis.
