//! The options of a client.

use std::fmt::Debug;
use std::time::Duration;

use crate::Error;

/// How a client receives notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Find out which of the others works.
    #[default]
    Auto,
    /// LISTEN
    Push,
    /// `pinpoint.wait()`
    Wait,
}

/// Makes the options with their defaults, and the functions that set them.
macro_rules! options {
    ($(#[$about:meta])* { $($(#[$doc:meta])* $name:ident: $kind:ty = $default:expr;)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        pub struct Options { $(pub(crate) $name: $kind,)* }

        impl Default for Options {
            fn default() -> Self {
                Options { $($name: $default,)* }
            }
        }

        impl Options {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(mut self, $name: $kind) -> Self {
                self.$name = $name;
                self
            })*
        }
    };
}

options! {
    /// Options of a client, which [`Client::new`](crate::Client::new) checks. A time is from 1 ms to 24 h.
    ///
    /// ```
    /// use std::time::Duration;
    /// let options = pg_pinpoint::Options::default().min_interval(Duration::from_secs(1)).query_timeout(None);
    /// ```
    {
        /// How the client receives notifications. Default: [`Mode::Auto`].
        mode: Mode = Mode::Auto;
        /// Between the beginnings of two executions of a live query, and after
        /// [`Event::Changed`](crate::Event::Changed) with [`Mode::Wait`]. It can be zero. Default: 50 ms.
        min_interval: Duration = Duration::from_millis(50);
        /// Bytes of events for one consumer, about. Default: 64 MB.
        buffer: usize = 64 << 20;
        /// Between the first two attempts to connect, or to execute a live query that fails. Default: 100 ms.
        min_backoff: Duration = Duration::from_millis(100);
        /// The longest time between two such attempts. Default: 15 s.
        max_backoff: Duration = Duration::from_secs(15);
        /// After more failed attempts in succession, the client ends. Default: None, no limit.
        max_attempts: Option<u32> = None;
        /// For an attempt to connect, for each host, and for short queries. Default: 10 s.
        timeout: Duration = Duration::from_secs(10);
        /// For one execution of a live query. None: no limit. Default: 60 s.
        query_timeout: Option<Duration> = Some(Duration::from_secs(60));
        /// Between two checks of a connection without heartbeats; the longest `pinpoint.wait`. Default: 10 s.
        check_interval: Duration = Duration::from_secs(10);
        /// In which a notification has to arrive through a pooler. Default: 3 s.
        probe_timeout: Duration = Duration::from_secs(3);
        /// Connections that all live queries share, up to 1,000. Default: 2.
        query_connections: usize = 2;
    }
}

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

impl Options {
    pub(crate) fn check(&self) -> Result<(), Error> {
        in_range("min_interval", self.min_interval, Duration::ZERO, LONGEST)?;
        in_range("buffer", self.buffer, 1, 1 << 30)?;
        in_range("min_backoff", self.min_backoff, SHORTEST, LONGEST)?;
        in_range("max_backoff", self.max_backoff, self.min_backoff, LONGEST)?;
        in_range("timeout", self.timeout, SHORTEST, LONGEST)?;
        in_range("query_timeout", self.query_timeout.unwrap_or(LONGEST), SHORTEST, LONGEST)?;
        in_range("check_interval", self.check_interval, SHORTEST, LONGEST)?;
        in_range("probe_timeout", self.probe_timeout, SHORTEST, LONGEST)?;
        in_range("query_connections", self.query_connections, 1, 1000)
    }
}

fn in_range<T: PartialOrd + Debug>(name: &str, value: T, minimum: T, maximum: T) -> Result<(), Error> {
    if value < minimum || value > maximum {
        return Err(Error::Options(format!(
            "the option {name} is {value:?}: it has to be between {minimum:?} and {maximum:?}"
        )));
    }
    Ok(())
}
