//! The benchmarks, one file or folder for each.

pub mod channels;
pub mod decode;
pub mod listen;
pub mod load;
pub mod pingpong;
pub mod standby;
