//! Who is being limited.
