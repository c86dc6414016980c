//! Plain values that settings and the parts of the server share. This folder imports nothing of this crate.

mod listen_address;
mod ratio;

pub use self::{
    listen_address::{AddressError, ListenAddress},
    ratio::{NearLimitRatio, Ratio, RatioError},
};
