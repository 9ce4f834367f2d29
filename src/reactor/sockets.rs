//! The real network under the reactor: the only place in the crate that knows mio.
//!
//! Sockets are edge-triggered. A token is a connection's slot and generation, so an event of a socket that has been closed
//! in the same turn names nobody. What happens is told to the reactor; what to do about it is the reactor's.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::{ConnectionId, Event, Network, Pace, Reactor};
use crate::clock::Clock;
use crate::ring::Doorbell;

const LISTENER: Token = Token(usize::MAX);
const DOORBELL: Token = Token(usize::MAX - 1);

/// Readiness events taken in one turn.
const EVENTS_MAX: usize = 1024;

/// Connections waiting in the kernel until they are accepted.
const BACKLOG: i32 = 4096;

#[derive(Debug)]
pub struct Sockets {
    poll: Poll,
    listener: TcpListener,
    streams: Vec<Option<(TcpStream, SocketAddr)>>,
    address: SocketAddr,
    waker: Arc<Waker>,
}

impl Sockets {
    /// Binds the address; connections wait in the kernel until the reactor runs.
    pub fn bind(address: SocketAddr, connections_max: usize) -> io::Result<Sockets> {
        let poll = Poll::new()?;
        let mut listener = listen(address)?;
        let address = listener.local_addr()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Arc::new(Waker::new(poll.registry(), DOORBELL)?);
        let streams = (0..connections_max).map(|_| None).collect();
        Ok(Sockets { poll, listener, streams, address, waker })
    }

    /// Where clients connect, the port chosen if it was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What wakes the reactor from its wait for sockets.
    pub fn doorbell(&self) -> Arc<Doorbell> {
        let waker = Arc::clone(&self.waker);
        Arc::new(Doorbell::new(Box::new(move || {
            // It fails only when the eventfd's counter is full, and then the wake-up is pending already.
            let _ = waker.wake();
        })))
    }

    /// Waits for readiness, at most until `timeout`, and tells the reactor.
    fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            other => other,
        }
    }
}

/// A listener with a backlog of our own choosing, for a burst of clients must not meet resets.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}

fn token(id: ConnectionId) -> Token {
    Token((u64::from(id.generation) << 32 | u64::from(id.slot)) as usize)
}

fn connection(token: Token) -> ConnectionId {
    ConnectionId { slot: token.0 as u32, generation: (token.0 as u64 >> 32) as u32 }
}

impl Network for Sockets {
    fn accept(&mut self, id: ConnectionId) -> io::Result<()> {
        let (mut stream, peer) = self.listener.accept()?;
        // Answers are written whole; waiting for more would only delay them. On a connection that is gone already this can
        // fail, and reading from it will tell.
        let _ = stream.set_nodelay(true);
        self.poll.registry().register(&mut stream, token(id), Interest::READABLE | Interest::WRITABLE)?;
        self.streams[id.slot as usize] = Some((stream, peer));
        Ok(())
    }

    fn read(&mut self, slot: u32, into: &mut [u8]) -> io::Result<usize> {
        self.stream(slot).read(into)
    }

    fn write(&mut self, slot: u32, from: &[u8]) -> io::Result<usize> {
        self.stream(slot).write(from)
    }

    fn shut_down_write(&mut self, slot: u32) {
        // The peer may have gone already; then there is nothing to shut down.
        let _ = self.stream(slot).shutdown(Shutdown::Write);
    }

    fn close(&mut self, slot: u32) {
        // Dropping the stream closes it, which also takes it out of the poll.
        self.streams[slot as usize] = None;
    }

    fn peer(&self, slot: u32) -> Option<SocketAddr> {
        self.streams[slot as usize].as_ref().map(|(_, peer)| *peer)
    }
}

impl Sockets {
    fn stream(&mut self, slot: u32) -> &mut TcpStream {
        let (stream, _) = self.streams[slot as usize].as_mut().expect("the reactor names open connections only");
        stream
    }
}

/// Runs the reactor until it has been told to stop and everything accepted is answered.
///
/// `spin_ns`: how long to look for work before sleeping.
pub fn run(reactor: &mut Reactor<Sockets>, bell: &Doorbell, clock: &Clock, spin_ns: u64) -> io::Result<()> {
    let mut events = Events::with_capacity(EVENTS_MAX);
    let mut pace = Pace::begin(reactor, clock.now_ns(), spin_ns);
    while !reactor.has_ended() {
        let timeout = pace.timeout(reactor, bell, clock.now_ns());
        reactor.network().wait(&mut events, timeout)?;
        bell.awake();
        let now_ns = clock.now_ns();
        let mut any = false;
        for event in &events {
            any = true;
            match event.token() {
                LISTENER => reactor.listener_ready(),
                DOORBELL => {}
                other => {
                    let happened = Event {
                        readable: event.is_readable() || event.is_read_closed() || event.is_error(),
                        writable: event.is_writable() || event.is_error(),
                        closed: event.is_read_closed() || event.is_error(),
                    };
                    reactor.socket_ready(connection(other), happened);
                }
            }
        }
        pace.woken(reactor, any, now_ns);
    }
    Ok(())
}
