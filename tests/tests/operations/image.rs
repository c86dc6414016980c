//! The container image, as far as it can be checked without building it.
