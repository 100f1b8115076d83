//! The limit on open file descriptors. Each connection needs one.

use anyhow::{Context, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors for everything that is no connection: standard streams, the
/// event loop, libraries, output files, the servers' logs.
const BASE: u64 = 64;

/// Lets this process hold `connections` connections at a time, by raising its
/// soft limit where it has to. The hard limit stays.
pub fn allow_connections(connections: u64) -> anyhow::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)
        .context("could not read the limit on file descriptors")?;
    if let Some(needed) = required_soft_limit(connections, soft, hard)? {
        setrlimit(Resource::RLIMIT_NOFILE, needed, hard).with_context(|| {
            format!("could not raise the limit on file descriptors to {needed}")
        })?;
    }
    Ok(())
}

/// The soft limit to set, or `None` if the present one will do.
fn required_soft_limit(connections: u64, soft: u64, hard: u64) -> anyhow::Result<Option<u64>> {
    let needed = connections + BASE;
    ensure!(
        needed <= hard,
        "{connections} connections need {needed} file descriptors, but the hard limit is {hard}: \
         raise it (ulimit -Hn {needed}, as root) or ask for fewer sessions"
    );
    Ok((needed > soft).then_some(needed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_what_is_needed() {
        assert_eq!(required_soft_limit(960, 1024, 4096).unwrap(), None);
        assert_eq!(required_soft_limit(961, 1024, 4096).unwrap(), Some(1025));
        assert_eq!(required_soft_limit(4032, 1024, 4096).unwrap(), Some(4096));
        let error = required_soft_limit(4033, 1024, 4096).unwrap_err();
        assert_eq!(
            error.to_string(),
            "4033 connections need 4097 file descriptors, but the hard limit is 4096: \
             raise it (ulimit -Hn 4097, as root) or ask for fewer sessions"
        );
    }
}
