//! Tests of the parts that need no server.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{mpsc, Arc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tokio_postgres::types::Type;

use crate::backoff::{backoff, count_failures};
use crate::client::Shared;
use crate::error::{is_permanent_text, NO_WAIT};
use crate::index::Index;
use crate::live_query::{Execution, Key, LiveQuery, Parameter};
use crate::queue::{Buffer, Counters, Events, Latest, Queue, Sink};
use crate::{Client, Error, Event, Mode, Options, Update};

// ---- Times between attempts -------------------------------------------------------

#[test]
fn backoff_doubles_up_to_the_maximum() {
    let (minimum, maximum) = (Duration::from_millis(100), Duration::from_secs(15));
    let times = [1, 2, 3, 8, 9, u32::MAX].map(|failures| backoff(minimum, maximum, failures, 1.0).as_millis());
    assert_eq!(times, [100, 200, 400, 12_800, 15_000, 15_000]);
    assert_eq!(backoff(minimum, maximum, 1, 0.0).as_millis(), 50);
    assert_eq!(backoff(minimum, maximum, 99, 0.5).as_millis(), 11_250);
}

#[test]
fn a_connection_that_has_lasted_ends_the_failures() {
    let maximum = Duration::from_secs(15);
    let lasted = [None, Some(maximum / 2), Some(maximum)];
    assert_eq!(lasted.map(|lasted| count_failures(4, lasted, maximum)), [5, 5, 1]);
}

// ---- Options ----------------------------------------------------------------------

#[test]
fn options_are_checked() {
    let check = |options: Options| options.check().map_err(|error| error.to_string());
    let second = Duration::from_secs(1);
    let unlimited = Options::default().query_timeout(None).max_attempts(None).min_interval(Duration::ZERO);
    assert_eq!(check(unlimited.mode(Mode::Push)), Ok(()));
    let wrong: [(&str, Options); 10] = [
        ("min_interval", Options::default().min_interval(Duration::MAX)),
        ("buffer", Options::default().buffer(0)),
        ("min_backoff", Options::default().min_backoff(Duration::ZERO)),
        ("max_backoff", Options::default().min_backoff(2 * second).max_backoff(second)),
        ("timeout", Options::default().timeout(Duration::ZERO)),
        ("query_timeout", Options::default().query_timeout(Some(Duration::ZERO))),
        ("check_interval", Options::default().check_interval(Duration::MAX)),
        ("probe_timeout", Options::default().probe_timeout(Duration::ZERO)),
        ("query_connections", Options::default().query_connections(0)),
        ("query_connections", Options::default().query_connections(1001)),
    ];
    for (name, options) in wrong {
        let error = check(options).unwrap_err();
        assert!(error.starts_with(&format!("the option {name} is ")) && error.contains(" between "), "{error}");
    }
    let config = "host=localhost".parse().unwrap();
    let client = Client::new(config, tokio_postgres::NoTls, Options::default().buffer(0));
    assert_eq!(client.err().unwrap().to_string(), "the option buffer is 0: it has to be between 1 and 1073741824");
}

// ---- Errors -----------------------------------------------------------------------

#[test]
fn permanent_errors() {
    assert!(NO_WAIT.is_permanent() && NO_WAIT.code() == Some("0A000"));
    assert!(Error::Denied.is_permanent() && !Error::NotWatched("t".to_owned()).is_permanent());
    assert!(!Error::Lost("certificate".to_owned()).is_permanent());
    assert!(is_permanent_text("error performing TLS handshake: certificate verify failed"));
    assert!(is_permanent_text("error performing TLS handshake: server does not support TLS"));
    assert!(is_permanent_text("invalid configuration: password missing"));
    assert!(!is_permanent_text("error communicating with the server: unexpected end of file"));
}

#[test]
fn errors_have_a_source() {
    let error = Parameter::new(&"text", &Type::INT4).unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(error.to_string(), format!("a parameter cannot be sent: {source}"));
    let driver = "unknown=1".parse::<tokio_postgres::Config>().unwrap_err();
    let text = driver.to_string();
    assert_eq!(std::error::Error::source(&Error::from(driver)).unwrap().to_string(), text);
}

// ---- Queues -----------------------------------------------------------------------

fn notification(channel: &str, size: usize) -> Event {
    Event::Notification { channel: channel.to_owned(), payload: "x".repeat(size), pid: 1 }
}

fn changed(channels: &[&str]) -> Event {
    Event::Changed(channels.iter().map(|channel| (*channel).to_owned()).collect())
}

/// What is in the queue.
fn take<B: Buffer>(queue: &Queue<B>) -> Vec<B::Item> {
    let mut items = Vec::new();
    while let Poll::Ready(Some(Ok(item))) = queue.poll_next(&mut Context::from_waker(Waker::noop())) {
        items.push(item);
    }
    items
}

#[test]
fn a_notification_that_does_not_fit_becomes_a_changed() {
    let counters = Arc::new(Counters::default());
    let queue = Queue::new(Events::new(1000, counters.clone()), counters.clone());
    let put = |event| queue.change(&mut Vec::new(), |events| events.put(event));
    assert!(!put(notification("a", 500)));
    assert!(put(notification("b", 500)));
    assert!(!put(notification("c", 500)), "told once");
    queue.change(&mut Vec::new(), |events| events.put(changed(&["d"])));
    assert!(!put(notification("e", 0)));
    let fits = [notification("a", 500), changed(&["b", "c", "d"]), notification("e", 0)];
    assert_eq!(take(&queue), fits);
    assert!(!put(notification("f", 700)));
    assert!(put(Event::Disconnected { reason: String::new(), retry_in: Duration::ZERO }));
    assert_eq!(take(&queue), [notification("f", 700)]);
    assert_eq!(counters.dropped.load(Ordering::Relaxed), 3);
    assert_eq!(counters.events.load(Ordering::Relaxed), 4);
}

#[test]
fn a_queue_ends_after_its_events() {
    let queue = Queue::new(Events::new(1000, Arc::default()), Arc::default());
    let waiting = std::thread::scope(|scope| {
        let next = scope.spawn(|| futures_next(&queue));
        let mut wakers = Vec::new();
        queue.end(&mut wakers, Some(Arc::new(Error::Closed)));
        queue.end(&mut wakers, None);
        wakers.into_iter().for_each(Waker::wake);
        next.join().unwrap()
    });
    assert!(matches!(&*waiting.unwrap().unwrap_err(), Error::Closed));
    assert!(futures_next(&queue).is_none());
}

/// A task that closes its subscription when it is dropped.
struct Closes(Arc<Queue<Events>>);

impl Wake for Closes {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.end(&mut Vec::new(), None);
    }
}

#[test]
fn a_waker_may_be_the_last_reference_to_a_task() {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let queue = Arc::new(Queue::new(Events::new(1000, Arc::default()), Arc::default()));
        let poll = |waker: &Waker| queue.poll_next(&mut Context::from_waker(waker));
        assert!(poll(&Waker::from(Arc::new(Closes(queue.clone())))).is_pending());
        assert!(poll(Waker::noop()).is_pending());
        sender.send(poll(Waker::noop())).unwrap();
    });
    assert!(matches!(ended.recv_timeout(Duration::from_secs(60)), Ok(Poll::Ready(None))));
}

fn futures_next<B: Buffer>(queue: &Queue<B>) -> Option<Result<B::Item, Arc<Error>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(poll_fn(|context| queue.poll_next(context)))
}

#[test]
fn an_error_that_repeats_is_given_once() {
    let queue = Queue::new(Latest::default(), Arc::default());
    let given = |update: Update| {
        queue.change(&mut Vec::new(), |latest| latest.update = Some(update));
        take(&queue).len()
    };
    let error = |table: &str| Update::Error(Arc::new(Error::NotWatched(table.to_owned())));
    let lost = Update::Disconnected { reason: String::new(), retry_in: Duration::ZERO };
    assert_eq!([error("a"), error("a"), error("b"), error("a"), lost, error("a")].map(given), [1, 0, 1, 1, 1, 1]);
    assert_eq!([Update::Rows(Arc::default()), error("a"), error("a")].map(given), [1, 1, 0]);
}

// ---- Parameters -------------------------------------------------------------------

#[test]
fn parameters_are_compared_as_they_are_sent() {
    let of = |value: &(dyn tokio_postgres::types::ToSql + Sync), kind| Parameter::new(value, &kind).unwrap();
    assert_eq!(of(&1, Type::INT4), of(&1, Type::INT4));
    assert_ne!(of(&1, Type::INT4), of(&2, Type::INT4));
    assert_ne!(of(&1i64, Type::INT8), of(&1, Type::INT4));
    assert_eq!(of(&vec![Some("a"), None], Type::TEXT_ARRAY), of(&[Some("a"), None].as_slice(), Type::TEXT_ARRAY));
    assert_eq!(of(&"a", Type::TEXT), of(&"a".to_owned(), Type::TEXT));
    assert_ne!(of(&None::<&str>, Type::TEXT), of(&"", Type::TEXT));
    assert_ne!(of(&None::<&str>, Type::TEXT), of(&None::<i32>, Type::INT4));
}

// ---- The index --------------------------------------------------------------------

struct Subscribers {
    index: Index,
    queues: Vec<Arc<Queue<Events>>>,
}

impl Subscribers {
    fn new(count: u64) -> Self {
        let mut made = Subscribers { index: Index::default(), queues: Vec::new() };
        for id in 0..count {
            let queue = Arc::new(Queue::new(Events::new(1 << 20, Arc::default()), Arc::default()));
            made.index.insert(id, Sink::Subscription(queue.clone()));
            made.queues.push(queue);
        }
        made
    }

    /// What the listener does when the channels have changed. The result: LISTEN and UNLISTEN.
    fn listen(&mut self) -> (HashSet<String>, HashSet<String>) {
        let (fresh, gone) = self.index.take();
        self.index.tell::<&str>(&[]);
        let names = |list: Vec<Arc<str>>| list.iter().map(|name| name.to_string()).collect();
        (names(fresh), names(gone))
    }

    fn taken(&self, id: usize) -> Vec<Event> {
        take(&self.queues[id])
    }
}

fn names(list: &[&str]) -> HashSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn each_channel_has_its_subscribers() {
    let mut all = Subscribers::new(2);
    all.index.add(0, ["a", "b"]);
    all.index.give("a", "", 1);
    assert_eq!(all.taken(0), [], "nothing before the LISTEN");
    assert_eq!(all.listen(), (names(&["a", "b"]), names(&[])));
    assert_eq!(all.taken(0), [changed(&["a", "b"])]);
    all.index.add(1, ["b", "c", "c"]);
    assert_eq!(all.listen(), (names(&["c"]), names(&[])));
    assert_eq!((all.taken(0), all.taken(1)), (vec![], vec![changed(&["b", "c"])]));
    assert_eq!(all.index.give("b", "", 1), 0);
    assert_eq!((all.taken(0), all.taken(1)), (vec![notification("b", 0)], vec![notification("b", 0)]));
    all.index.remove(0, ["b", "unknown"]);
    assert_eq!(all.listen(), (names(&[]), names(&[])), "another one listens");
    all.index.give("b", "", 1);
    assert_eq!((all.taken(0), all.taken(1)), (vec![], vec![notification("b", 0)]));
    all.index.delete(1);
    assert_eq!(all.listen(), (names(&[]), names(&["b", "c"])));
    all.index.give("b", "", 1);
    assert_eq!((all.taken(0), all.taken(1)), (vec![], vec![]));
    assert!(all.index.set(0, &names(&["a"])));
    assert!(!all.index.set(0, &names(&["d"])));
    assert!(!all.index.set(1, &names(&["d"])), "it has ended");
    assert_eq!(all.listen(), (names(&["d"]), names(&["a"])));
}

#[test]
fn changes_that_cancel_each_other_cost_nothing() {
    let mut all = Subscribers::new(1);
    all.index.add(0, ["a"]);
    all.index.remove(0, ["a"]);
    assert_eq!(all.listen(), (names(&[]), names(&[])));
    all.index.add(0, ["a"]);
    all.listen();
    all.index.remove(0, ["a"]);
    all.index.add(0, ["a"]);
    assert_eq!(all.listen(), (names(&[]), names(&[])));
    assert_eq!(all.taken(0), [changed(&["a"])]);
}

#[test]
fn a_new_connection_tells_what_has_changed() {
    let mut all = Subscribers::new(2);
    all.index.add(0, ["a", "b"]);
    all.index.add(1, ["b"]);
    all.listen();
    assert_eq!((all.taken(0).len(), all.taken(1).len()), (1, 1));
    all.index.remove(0, ["a"]);
    all.index.add(1, ["c"]);
    all.index.restart();
    let (fresh, gone) = all.index.take();
    assert_eq!((fresh.len(), gone.len()), (2, 0));
    all.index.add(0, ["d"]); // meanwhile
    assert!(!all.index.tell(&["b", "unknown"]));
    assert_eq!((all.taken(0), all.taken(1)), (vec![changed(&["b"])], vec![changed(&["b", "c"])]));
}

/// The least time of a function in some attempts.
fn least(mut function: impl FnMut()) -> Duration {
    let mut time = || {
        let started = Instant::now();
        function();
        started.elapsed()
    };
    (0..20).map(|_| time()).min().unwrap()
}

#[test]
fn a_subscription_costs_its_own_channels() {
    let times = |others: u64| {
        let mut all = Subscribers::new(others + 1);
        for id in 0..others {
            all.index.add(id, [format!("channel {id}")]);
        }
        all.listen();
        let change = least(|| {
            for _ in 0..100 {
                all.index.add(others, ["a"]);
                all.listen();
                all.index.remove(others, ["a"]);
                all.listen();
            }
        });
        let give = least(|| (0..100).for_each(|_| assert_eq!(all.index.give("channel 1", "", 1), 0)));
        (change / 100, give / 100)
    };
    let (few, many) = (times(10), times(40_000));
    println!("add and remove, give: {few:?} beside 10, {many:?} beside 40,000");
    assert!(many.0 < 10 * few.0 && many.1 < 10 * few.1, "{few:?} {many:?}");
}

// ---- Tasks ------------------------------------------------------------------------

#[test]
fn a_panic_of_a_live_query_ends_its_consumers() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let _context = runtime.enter();
    let shared = Arc::new(Shared::new(Options::default(), Arc::new(|| panic!("planted"))));
    let key = Key { query: "SELECT 1".to_owned(), parameters: Vec::new() };
    let live = Arc::new(LiveQuery::new(Arc::new(key), 1));
    let queue = Arc::new(Queue::new(Latest::default(), Arc::default()));
    live.consumers().push(queue.clone());
    live.dirty.notify_one();
    shared.connection.send_replace(Some(Event::Connected { server_version: 1, standby: false, mode: Mode::Push }));
    shared.spawn(Execution { shared: shared.clone(), live }.run());
    let end =
        runtime.block_on(tokio::time::timeout(Duration::from_secs(60), poll_fn(|context| queue.poll_next(context))));
    assert!(matches!(&*end.unwrap().unwrap().unwrap_err(), Error::Ended));
}

#[tokio::test]
async fn names_of_channels_are_checked() {
    let client = Client::new("host=127.0.0.1".parse().unwrap(), tokio_postgres::NoTls, Options::default()).unwrap();
    for name in ["", "pinpoint_heartbeat", "a\0b", &"x".repeat(64)] {
        let error = client.subscribe(["a", name]).err().unwrap();
        assert!(matches!(&*error, Error::Channel(_)), "{error}");
    }
}

/// It need not wait for the next attempt.
#[tokio::test]
async fn a_consumer_that_comes_during_an_outage_is_told_at_once() {
    let hour = Duration::from_secs(3600);
    let options = Options::default().min_backoff(hour).max_backoff(hour);
    let client = Client::new("host=127.0.0.1 port=1".parse().unwrap(), tokio_postgres::NoTls, options).unwrap();
    let limit = Duration::from_secs(20);
    for _ in 0..2 {
        let mut events = client.subscribe(["a"]).unwrap();
        let event = tokio::time::timeout(limit, events.next()).await.unwrap().unwrap().unwrap();
        assert!(matches!(event, Event::Disconnected { retry_in, .. } if retry_in > hour / 10 && retry_in <= hour));
    }
    let mut live = client.live("SELECT 1", &[]).unwrap();
    let update = tokio::time::timeout(limit, live.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(update, Update::Disconnected { .. }), "{update:?}");
}
