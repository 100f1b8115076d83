//! How far the standby is, and how far the listeners on it are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pinpoint_servers::connection::connect;
use tokio_postgres::{Config, SimpleQueryMessage};

/// A standby, where every second listener is.
#[derive(Debug)]
pub struct Standby {
    pub config: Config,
    /// How often it began to shut down or was there again: while it is odd, the standby
    /// is restarted.
    stops: AtomicU32,
    /// Each listener there has a token for each step towards the promotion, until it has taken
    /// the step, or has gone.
    steps: [Arc<()>; STEPS_TO_PROMOTION],
    /// Its replay is paused, and goes on only with the promotion.
    is_held: AtomicBool,
    is_promoted: AtomicBool,
}

/// Steps of a listener on a standby towards the promotion: it does nothing more that waits
/// for replay, and all that it is to receive is sent.
const STEPS_TO_PROMOTION: usize = 2;

impl Standby {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            stops: AtomicU32::new(0),
            steps: Default::default(),
            is_held: AtomicBool::new(false),
            is_promoted: AtomicBool::new(false),
        }
    }

    /// To be called before it is shut down, as its sessions will lose their connections,
    /// and when it is there again.
    pub fn add_stop(&self) {
        self.stops.fetch_add(1, Ordering::SeqCst);
    }

    pub fn stops(&self) -> u32 {
        self.stops.load(Ordering::SeqCst)
    }

    /// Whether a session may have lost its connection by that, which was made when there
    /// were `stops`.
    pub fn may_have_ended(&self, stops: u32) -> bool {
        self.stops() != stops || stops % 2 == 1
    }

    /// The tokens of a listener, that of the first step last.
    pub fn tokens(&self) -> Vec<Arc<()>> {
        self.steps.iter().rev().cloned().collect()
    }

    /// Whether all listeners have taken this step, counted from 0.
    pub fn have_all_taken(&self, step: usize) -> bool {
        Arc::strong_count(&self.steps[step]) == 1
    }

    pub fn hold(&self) {
        self.is_held.store(true, Ordering::SeqCst);
    }

    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::SeqCst)
    }

    pub fn set_promoted(&self) {
        self.is_promoted.store(true, Ordering::SeqCst);
    }

    pub fn is_promoted(&self) -> bool {
        self.is_promoted.load(Ordering::SeqCst)
    }

    /// One session, for a single command.
    pub async fn execute(
        &self,
        sql: &str,
    ) -> Result<Vec<SimpleQueryMessage>, tokio_postgres::Error> {
        connect(&self.config).await?.simple_query(sql).await
    }
}
