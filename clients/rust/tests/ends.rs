//! What ends a client, without a server of PostgreSQL: a socket that accepts connections and does not answer.

use std::future::Future;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::task::{Context, Wake};
use std::time::Duration;

use pg_pinpoint::{Client, Error, Event, Options, Subscription};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::tls::{MakeTlsConnect, NoTlsStream, TlsConnect};
use tokio_postgres::{NoTls, Socket};

const DEADLINE: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn options() -> Options {
    Options::default().timeout(10 * DEADLINE)
}

fn server() -> (TcpListener, tokio_postgres::Config) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, format!("host=127.0.0.1 port={port} user=nobody").parse().unwrap())
}

/// The connection of the client, which waits for an answer.
fn accept(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.read_exact(&mut [0; 8]).unwrap();
    stream
}

/// Wait until the client closes it.
fn wait_closed(mut stream: TcpStream) {
    stream.read_to_end(&mut Vec::new()).expect("the connection is not closed");
}

fn next(subscription: &mut Subscription) -> Option<Result<Event, Arc<Error>>> {
    let runtime = runtime();
    runtime.block_on(async { tokio::time::timeout(DEADLINE, subscription.next()).await.expect("no end") })
}

#[test]
fn dropping_the_last_handle_ends_the_client() {
    let (listener, config) = server();
    let runtime = runtime();
    let _context = runtime.enter();
    let client = Client::new(config, NoTls, options()).unwrap();
    let subscription = client.subscribe(["a"]).unwrap();
    let live = client.live("SELECT 1", &[]).unwrap();
    let stream = accept(&listener);
    drop(client);
    drop(subscription);
    drop(live);
    wait_closed(stream);
}

#[test]
fn a_subscription_keeps_the_client() {
    let (listener, config) = server();
    let runtime = runtime();
    let _context = runtime.enter();
    let mut subscription = Client::new(config, NoTls, options()).unwrap().subscribe(["a"]).unwrap();
    drop(accept(&listener));
    assert!(matches!(next(&mut subscription), Some(Ok(Event::Disconnected { .. }))));
}

#[test]
fn the_end_of_the_runtime_ends_the_client() {
    let (listener, config) = server();
    let runtime = runtime();
    let handle = runtime.handle().clone();
    let client = Client::new(config, NoTls, options()).unwrap();
    let (mut subscription, mut live) = {
        let _context = handle.enter();
        (client.subscribe(["a"]).unwrap(), client.live("SELECT 1", &[]).unwrap())
    };
    let stream = accept(&listener);
    drop(runtime);
    wait_closed(stream);
    assert!(matches!(&*next(&mut subscription).unwrap().unwrap_err(), Error::Ended));
    let other = self::runtime();
    let error = other.block_on(async { tokio::time::timeout(DEADLINE, live.next()).await.expect("no end") });
    assert!(matches!(&*error.unwrap().unwrap_err(), Error::Ended));
    let _context = handle.enter();
    assert!(client.subscribe(["b"]).is_err());
}

#[test]
fn a_runtime_that_has_ended_does_not_block() {
    let (_listener, config) = server();
    let runtime = runtime();
    let handle = runtime.handle().clone();
    drop(runtime);
    let _context = handle.enter();
    let client = Client::new(config, NoTls, options()).unwrap();
    let mut subscription = client.subscribe(["a"]).unwrap();
    assert!(matches!(&*next(&mut subscription).unwrap().unwrap_err(), Error::Ended));
}

/// TLS whose code panics, in the task of the client.
#[derive(Clone)]
struct Panics;

impl MakeTlsConnect<Socket> for Panics {
    type Stream = NoTlsStream;
    type TlsConnect = NoTls;
    type Error = <NoTls as TlsConnect<Socket>>::Error;

    fn make_tls_connect(&mut self, _domain: &str) -> Result<NoTls, Self::Error> {
        panic!("planted");
    }
}

#[test]
fn a_panic_of_the_listener_ends_subscriptions() {
    let (_listener, config) = server();
    let runtime = runtime();
    let _context = runtime.enter();
    let client = Client::new(config, Panics, options()).unwrap();
    let mut subscription = client.subscribe(["a"]).unwrap();
    assert!(matches!(&*next(&mut subscription).unwrap().unwrap_err(), Error::Ended));
}

// ---- Executors --------------------------------------------------------------------

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An executor that does its work at once, in the thread that wakes it.
struct AtOnce {
    woken: AtomicBool,
    /// A task, and how often it is polled until it is dropped.
    task: Mutex<(Option<Task>, u32)>,
}

impl Wake for AtOnce {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        while self.woken.load(Ordering::SeqCst) {
            let Ok(mut guard) = self.task.try_lock() else { return }; // who has it looks again
            self.woken.store(false, Ordering::SeqCst);
            let (Some(task), polls) = &mut *guard else { return };
            let waker = self.clone().into();
            if *polls == 0 || task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                guard.0 = None;
            } else {
                *polls -= 1;
            }
        }
    }
}

/// Tells when it is dropped.
struct Told(mpsc::Sender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Consumers of a task that is dropped after so many polls, of a client that connects in vain or is closed.
fn woken_at_once(polls: u32, closes: bool) {
    let runtime = Box::leak(Box::new(runtime())); // the test fails also if a thread hangs
    let _context = runtime.enter();
    let (listener, config) = server();
    let _listener = closes.then_some(listener);
    let moment = Duration::from_millis(1);
    let client = Client::new(config, NoTls, options().min_backoff(moment).max_backoff(moment)).unwrap();
    let (mut subscription, mut live) = (client.subscribe(["a"]).unwrap(), client.live("SELECT 1", &[]).unwrap());
    let (sender, ended) = mpsc::channel();
    let (of, told) = (client.clone(), Told(sender));
    let task = async move {
        let _told = told;
        for _ in 0..10 {
            tokio::select! {
                _ = subscription.next() => {}
                _ = live.next() => {}
            }
            of.stats();
            subscription.add(["b"]).unwrap();
            drop(of.live("SELECT 2", &[]));
        }
    };
    let executor = AtOnce { woken: AtomicBool::new(false), task: Mutex::new((Some(Box::pin(task)), polls)) };
    Arc::new(executor).wake();
    if closes {
        runtime.spawn(async move { client.close().await });
    }
    ended.recv_timeout(DEADLINE).expect("a thread hangs");
}

#[test]
fn an_executor_may_poll_or_drop_at_once() {
    for closes in [false, true] {
        for polls in [1, u32::MAX] {
            woken_at_once(polls, closes);
        }
    }
}
