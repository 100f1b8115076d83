#![doc = include_str!("../README.md")]

mod backoff;
mod client;
mod connection;
mod error;
mod events;
mod index;
mod listener;
mod live_query;
mod options;
mod queue;
mod subscription;
#[cfg(test)]
mod tests;

pub use client::{Client, Stats};
pub use error::Error;
pub use events::{Event, Update};
pub use live_query::Live;
pub use options::{Mode, Options};
pub use subscription::{Handle, Subscription};

macro_rules! opaque {
    ($($name:ident)*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}
opaque!(Client Subscription Handle Live);
