//! How much is read of limits files.

use std::num::{NonZeroU64, NonZeroUsize};

use clap::Args;

use crate::limits::ReadBounds;

/// How much is read of limits files.
#[derive(Args, Clone, Copy, Debug)]
pub struct ReadingArguments {
    /// The most limits files, in all folders. With more, none is taken up.
    #[arg(
        long,
        env = "SLUICEGATE_LIMITS_MAX_FILES",
        value_name = "N",
        default_value = "10000",
        help_heading = "Limits"
    )]
    pub limits_max_files: NonZeroUsize,

    /// The most bytes of all limits files together. With more, none is taken up.
    #[arg(
        long,
        env = "SLUICEGATE_LIMITS_MAX_BYTES",
        value_name = "BYTES",
        default_value = "67108864",
        help_heading = "Limits"
    )]
    pub limits_max_bytes: NonZeroU64,
}

impl ReadingArguments {
    /// The bounds of a load.
    #[must_use]
    pub const fn bounds(self) -> ReadBounds {
        let Self { limits_max_files, limits_max_bytes } = self;
        ReadBounds { files: limits_max_files.get(), bytes: limits_max_bytes.get() }
    }
}
