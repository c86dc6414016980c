//! Types of setting values, which other modules use too.

mod listen_address;
mod ratio;

pub use self::{
    listen_address::{AddressError, ListenAddress},
    ratio::{NearLimitRatio, Ratio, RatioError},
};
