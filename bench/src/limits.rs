//! The limit on open file descriptors. Each connection needs one.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use thiserror::Error;

/// Descriptors for everything that is no connection: standard streams, the
/// event loop, libraries, output files, the servers' logs.
const BASE: u64 = 64;

#[derive(Debug, Error)]
pub enum LimitError {
    #[error(
        "{connections} connections need {needed} file descriptors, but the hard limit is {hard}: \
         raise it (ulimit -Hn {needed}, as root) or ask for fewer sessions"
    )]
    HardLimit {
        connections: u64,
        needed: u64,
        hard: u64,
    },
    #[error("could not raise the limit on file descriptors to {needed}")]
    Raise { needed: u64, source: Errno },
    #[error("could not read the limit on file descriptors")]
    Read(#[source] Errno),
}

/// Lets this process hold `connections` connections at a time, by raising its
/// soft limit where it has to. The hard limit stays.
pub fn allow_connections(connections: u64) -> Result<(), LimitError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(LimitError::Read)?;
    if let Some(needed) = required_soft_limit(connections, soft, hard)? {
        setrlimit(Resource::RLIMIT_NOFILE, needed, hard)
            .map_err(|source| LimitError::Raise { needed, source })?;
    }
    Ok(())
}

/// The soft limit to set, or `None` if the present one will do.
fn required_soft_limit(connections: u64, soft: u64, hard: u64) -> Result<Option<u64>, LimitError> {
    let needed = connections + BASE;
    if needed <= soft {
        Ok(None)
    } else if needed <= hard {
        Ok(Some(needed))
    } else {
        Err(LimitError::HardLimit {
            connections,
            needed,
            hard,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_already() {
        assert_eq!(required_soft_limit(960, 1024, 4096).unwrap(), None);
    }

    #[test]
    fn raised_to_what_is_needed() {
        assert_eq!(required_soft_limit(961, 1024, 4096).unwrap(), Some(1025));
        assert_eq!(required_soft_limit(4032, 1024, 4096).unwrap(), Some(4096));
    }

    #[test]
    fn beyond_the_hard_limit() {
        let error = required_soft_limit(4033, 1024, 4096).unwrap_err();
        assert_eq!(
            error.to_string(),
            "4033 connections need 4097 file descriptors, but the hard limit is 4096: \
             raise it (ulimit -Hn 4097, as root) or ask for fewer sessions"
        );
    }
}
