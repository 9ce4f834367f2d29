//! What seeds have found once, said directly: a reactor over the simulated network, turned by hand.

use std::sync::Arc;

use reactrt::clock::Clock;
use reactrt::metrics::Gauges;
use reactrt::ring::Doorbell;
use reactrt::serve::{Bells, Stopper, Wired, wire};

use super::network::{End, SimNetwork};
use super::plan::{Setting, bound_memory};
use super::random::Random;

/// A server of which only the reactor is ever stepped.
struct Alone {
    wired: Wired<SimNetwork>,
    clock: Clock,
}

impl Alone {
    fn new(seed: u64, clients: usize) -> Alone {
        let mut random = Random::new(seed);
        let mut setting = Setting::new(&mut random, seed);
        let limits = &mut setting.settings.limits;
        (limits.connections_max, limits.jobs_max, limits.head_bytes_max) = (clients, 4, 600);
        bound_memory(&mut setting.settings, 0);
        let clock = Clock::manual();
        let (loaded, _) = super::world::load(&setting, &clock);
        let bells = |count| (0..count).map(|_| Arc::new(Doorbell::new(Box::new(|| ())))).collect::<Vec<_>>();
        let bells = Bells {
            reactor: bells(1).remove(0),
            workers: bells(setting.settings.threads.workers),
            devices: bells(setting.devices.len()),
        };
        let network = SimNetwork::new(clients, clients, random, clock.clone());
        Alone {
            wired: wire(&setting.settings, &clock, loaded, network, reactrt::reactor::Policy::default(), &bells)
                .expect("sound settings"),
            clock,
        }
    }

    fn network(&mut self) -> &mut SimNetwork {
        self.wired.reactor.network()
    }

    fn stopper(&self) -> &Stopper {
        &self.wired.stopper
    }

    /// Turns until nothing more is to be done without new events or time.
    fn settle(&mut self) {
        let now_ns = self.clock.now_ns();
        let mut events = Vec::new();
        for _ in 0..50 {
            if self.network().fetch(&mut events) {
                self.wired.reactor.listener_ready();
            }
            for (id, event) in &events {
                self.wired.reactor.socket_ready(*id, *event);
            }
            self.wired.reactor.turn(now_ns);
            self.wired.reactor.check_invariants();
        }
    }

    fn receive_all(&mut self, client: usize) -> (String, Option<End>) {
        let mut all = Vec::new();
        loop {
            let (bytes, end) = self.network().receive(client, 1 << 20);
            all.extend_from_slice(&bytes);
            if bytes.is_empty() {
                return (String::from_utf8(all).expect("answers are text"), end);
            }
            self.settle();
        }
    }
}

const LIVE: &[u8] = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n";

#[test]
fn a_client_that_was_just_answered_can_read_it_although_the_server_stops() {
    for seed in 0..20 {
        let mut alone = Alone::new(seed, 1);
        alone.network().connect(0);
        let mut sent = 0;
        while sent < LIVE.len() {
            sent += alone.network().send(0, &LIVE[sent..]);
            alone.settle();
        }
        alone.stopper().stop();
        alone.settle();
        // It has not read yet, and sends ahead.
        alone.network().send(0, LIVE);
        alone.settle();
        let (text, end) = alone.receive_all(0);
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("{\"status\":\"live\"}"), "seed {seed}: {text:?}");
        assert_eq!(end, Some(End::Finished), "seed {seed}");
    }
}

#[test]
fn a_client_that_has_asked_for_nothing_is_told_nothing_when_memory_is_out() {
    let mut alone = Alone::new(1, 60);
    for client in 0..59 {
        alone.network().connect(client);
        alone.network().send(client, b"GET /");
    }
    alone.settle();
    // The others hold all that there is: a refusal finds no memory, and needs none where the network takes it at once.
    let answers: Vec<(String, Option<End>)> = (0..59).map(|client| alone.receive_all(client)).collect();
    let told = answers.iter().filter(|(text, _)| text.starts_with("HTTP/1.1 503") && text.ends_with('}')).count();
    let ended = answers.iter().filter(|(_, end)| end.is_some()).count();
    assert!(told > 0 && told <= ended, "{told} were told, {ended} ended");
    assert!(answers.iter().all(|(_, end)| *end != Some(End::Reset)), "what was written arrives");
    alone.network().connect(59);
    alone.settle();
    assert_eq!(alone.receive_all(59), (String::new(), None), "it has asked for nothing");
    // When some of it has come back it is served like any other.
    for client in 0..59 {
        alone.network().reset(client);
    }
    alone.settle();
    let mut sent = 0;
    while sent < LIVE.len() {
        sent += alone.network().send(59, &LIVE[sent..]);
        alone.settle();
    }
    let (text, end) = alone.receive_all(59);
    assert!(text.starts_with("HTTP/1.1 200") && end.is_none(), "{text:?}");
}

#[test]
fn answers_that_nobody_reads_are_not_made() {
    let mut alone = Alone::new(1, 2);
    alone.network().connect(0);
    let asks = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(400);
    let mut sent = 0;
    let mut metrics = Vec::new();
    for _ in 0..400 {
        sent += alone.network().send(0, &asks[sent..]);
        alone.settle();
    }
    alone.wired.reactor.metrics().write(Gauges::default(), &mut metrics);
    let text = String::from_utf8(metrics).expect("metrics are text");
    let answered =
        text.lines().find_map(|line| line.strip_prefix("reactrt_requests_total{model=\"\",status=\"200\"} "));
    let answered: usize = answered.expect("some are").parse().expect("a count");
    // What the network holds, and one buffer.
    let bytes = answered * text.len();
    assert!((1..400 << 10).contains(&bytes), "{answered} answers of {} bytes were made for nobody", text.len());
}
