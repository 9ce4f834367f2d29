//! A whole server in one thread: its own reactor, workers and drivers over a simulated network and simulated devices, under
//! a clock moved by hand, stepped in an order that a seed decides.
//!
//! A thread that would sleep here sleeps: it is stepped again only when its doorbell was rung or its time has come. After
//! every step what must always hold is checked, and whenever everything sleeps what must hold at rest.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reactrt::api::gate::{Keys, Origins};
use reactrt::clock::Clock;
use reactrt::config::Settings;
use reactrt::device::driver::Driver;
use reactrt::job::{Census, ModelKey};
use reactrt::journal::{self, Journal, Lines};
use reactrt::metrics::Gauges;
use reactrt::reactor::{ConnectionId, Event, Pace, Policy, Reactor};
use reactrt::ring::Doorbell;
use reactrt::serve::{Account, Bells, Loaded, LoadedDevice, LoadedModel, Pause, Stopper, Wired, step_driver, wire};
use reactrt::tokenize::Worker;

use super::asks::{self, Excuses};
use super::client::{Client, Did};
use super::device::{Facts, Notice, Watched};
use super::network::{Place, SimNetwork};
use super::plan::{DRAIN_MS, Setting};
use super::random::Random;
use super::trace::{Step, Trace};

/// A world that has not come to its end by then never will.
const STEPS_MAX: u64 = 400_000;

/// Where a thread stands between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Running,
    /// It found nothing to do at this time, and has not yet looked once more.
    Drowsy {
        looked_ns: u64,
        wake_at_ns: Option<u64>,
    },
    Asleep {
        wake_at_ns: Option<u64>,
    },
}

#[derive(Debug)]
struct Sleeper {
    bell: Arc<Doorbell>,
    /// What the bell's ringing leaves behind: the next sleep ends at once.
    rung: Arc<AtomicBool>,
    mode: Mode,
    spin_until_ns: u64,
}

impl Sleeper {
    fn new() -> Sleeper {
        let rung = Arc::new(AtomicBool::new(false));
        let wakes = Arc::clone(&rung);
        let bell = Arc::new(Doorbell::new(Box::new(move || wakes.store(true, Ordering::Relaxed))));
        Sleeper { bell, rung, mode: Mode::Running, spin_until_ns: 0 }
    }

    fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed)
    }

    fn can_step(&self, now_ns: u64) -> bool {
        match self.mode {
            Mode::Running | Mode::Drowsy { .. } => true,
            Mode::Asleep { wake_at_ns } => self.is_rung() || wake_at_ns.is_some_and(|at_ns| at_ns <= now_ns),
        }
    }

    fn wakes_at_ns(&self) -> Option<u64> {
        match self.mode {
            Mode::Running | Mode::Drowsy { .. } => None,
            Mode::Asleep { wake_at_ns } => wake_at_ns,
        }
    }

    /// What the thread's shell does next, one thing at a time.
    fn go_on<T>(
        &mut self,
        thread: &mut T,
        (now_ns, spin_ns): (u64, u64),
        step: impl Fn(&mut T, u64) -> (bool, Option<u64>),
        has_work: impl Fn(&mut T, u64) -> bool,
    ) -> Shelled {
        match self.mode {
            Mode::Running => {
                let (worked, wake_at_ns) = step(thread, now_ns);
                if worked {
                    self.spin_until_ns = now_ns + spin_ns;
                }
                if let Pause::Sleep(wake_at_ns) = Pause::after((worked, wake_at_ns), now_ns, self.spin_until_ns) {
                    self.mode = Mode::Drowsy { looked_ns: now_ns, wake_at_ns };
                }
                if worked { Shelled::Worked } else { Shelled::Idled }
            }
            Mode::Drowsy { looked_ns, wake_at_ns } => {
                let sleeps = self.bell.may_sleep(|| has_work(thread, looked_ns));
                self.mode = if sleeps { Mode::Asleep { wake_at_ns } } else { Mode::Running };
                if sleeps { Shelled::FellAsleep } else { Shelled::LookedAgain }
            }
            Mode::Asleep { .. } => {
                self.rung.store(false, Ordering::Relaxed);
                self.bell.awake();
                self.mode = Mode::Running;
                Shelled::Woke
            }
        }
    }
}

/// What one step of a thread's shell was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shelled {
    Worked,
    Idled,
    LookedAgain,
    FellAsleep,
    Woke,
}

/// Who can be stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    Reactor,
    Worker(usize),
    Driver(usize),
    /// A device whose run has ended, ringing its owner.
    Completion(usize),
    Client(usize),
}

/// A reactor's thread: about to wait, or waiting until a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    NotYet,
    Until(Option<u64>),
}

pub struct World {
    setting: Setting,
    random: Random,
    clock: Clock,
    reactor: Reactor<SimNetwork>,
    pace: Pace,
    waiting: Waiting,
    reactor_bell: Sleeper,
    workers: Vec<(Worker, Sleeper)>,
    drivers: Vec<(Driver, Sleeper)>,
    facts: Vec<Arc<Mutex<Facts>>>,
    /// For which run each device has rung last.
    completed: Vec<Option<(u64, u64)>>,
    clients: Vec<Client>,
    stopper: Stopper,
    stopped_at_ns: Option<u64>,
    excuses: Excuses,
    /// What all pools have.
    pools: Census,
    events: Vec<(ConnectionId, Event)>,
    enabled: Vec<Actor>,
    /// Who is not stepped for a while, and for how many steps.
    held_back: Option<(Actor, usize)>,
    seen: BTreeMap<&'static str, u64>,
    /// Where the access log is read, and what has been read of it.
    lines: Option<Lines>,
    log: Vec<u8>,
    /// Times that the server was told that it has no file descriptor left.
    exhaustions: Arc<AtomicU64>,
    pub trace: Trace,
}

/// What a world that ended well has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub steps: u64,
    pub hash: u64,
    pub virtual_ns: u64,
    /// What has happened, and how often: answers by status, and what is rare.
    pub seen: BTreeMap<&'static str, u64>,
}

fn name_of(status: u16) -> &'static str {
    match status {
        200 => "200",
        400 => "400",
        401 => "401",
        404 => "404",
        405 => "405",
        408 => "408",
        413 => "413",
        429 => "429",
        500 => "500",
        503 => "503",
        504 => "504",
        _ => "other statuses",
    }
}

pub fn load(setting: &Setting, clock: &Clock) -> (Loaded, Vec<Arc<Mutex<Facts>>>) {
    let known = asks::models();
    let key = |index: usize| ModelKey { index: index as u32, generation: 0 };
    let (mut devices, mut facts) = (Vec::new(), Vec::new());
    for device in &setting.devices {
        let (mut watched, fact) = Watched::new(device.options.clone(), device.notice, clock.clone());
        let mut offers = Vec::new();
        for model in &device.models {
            let offer = reactrt::device::Device::load(&mut watched, key(*model), &known[*model].model);
            offers.push((key(*model), offer.expect("it loads each model once")));
        }
        devices.push(LoadedDevice { device: Box::new(watched), offers });
        facts.push(fact);
    }
    let models = known.iter().enumerate().map(|(index, known)| LoadedModel {
        key: key(index),
        model: Arc::clone(&known.model),
        tokenizer: known.tokenizer.clone(),
        width: known.width as u32,
        vocabulary: known.vocabulary,
        devices: (0..setting.devices.len()).filter(|device| setting.devices[*device].models.contains(&index)).collect(),
    });
    (Loaded { models: models.collect(), devices }, facts)
}

/// Who may ask, for how long, and where that is written down.
fn policy(setting: &Setting, exhaustions: &Arc<AtomicU64>) -> (Policy, Option<Lines>) {
    let connect = |records_max| -> (Journal, Lines) {
        let models = asks::models().iter().map(|known| known.model.name.as_str());
        journal::connect(records_max, setting.settings.limits.connections_max, models)
    };
    let (journal, lines) = setting.journal.map(|journal| connect(journal.records_max)).unzip();
    let told = Arc::clone(exhaustions);
    let policy = Policy {
        keys: Keys::new(setting.house.keys.clone()),
        origins: Origins::new(&setting.house.origins),
        request_ms: setting.house.request_ms,
        journal,
        on_exhaustion: Some(Box::new(move || {
            told.fetch_add(1, Ordering::Relaxed);
        })),
    };
    (policy, lines)
}

impl World {
    pub fn new(seed: u64, keeps_trace: bool) -> World {
        let mut random = Random::new(seed);
        let setting = Setting::new(&mut random, seed);
        let settings: &Settings = &setting.settings;
        let clock = Clock::manual();
        let (loaded, facts) = load(&setting, &clock);
        let reactor_bell = Sleeper::new();
        let sleepers = |count: usize| (0..count).map(|_| Sleeper::new()).collect::<Vec<_>>();
        let (worker_sleepers, driver_sleepers) = (sleepers(settings.threads.workers), sleepers(setting.devices.len()));
        let rung = |sleepers: &[Sleeper]| sleepers.iter().map(|sleeper| Arc::clone(&sleeper.bell)).collect();
        let bells = Bells {
            reactor: Arc::clone(&reactor_bell.bell),
            workers: rung(&worker_sleepers),
            devices: rung(&driver_sleepers),
        };
        let mut network =
            SimNetwork::new(setting.clients.len(), settings.limits.connections_max, random.fork(), clock.clone());
        network.runs_out_of_descriptors = setting.runs_out_of_descriptors;
        let exhaustions = Arc::default();
        let (policy, lines) = policy(&setting, &exhaustions);
        let wired = wire(settings, &clock, loaded, network, policy, &bells).expect("the settings are sound");
        let Wired { mut reactor, workers, mut drivers, stopper, .. } = wired;
        let polled = setting.devices.iter().zip(&mut drivers).filter(|(device, _)| device.is_polled);
        polled.for_each(|(_, driver)| driver.poll_while_busy());
        let pools = Census { pieces: settings.limits.pieces_max, bodies: settings.limits.jobs_max, buffers: 0 };
        let clients = setting.clients.clone().into_iter().enumerate();
        let clients = clients.map(|(index, (style, asks))| Client::new(index, style, setting.patience, asks)).collect();
        World {
            pace: Pace::begin(&mut reactor, 0, settings.threads.spin_us * 1000),
            reactor,
            waiting: Waiting::NotYet,
            reactor_bell,
            workers: workers.into_iter().zip(worker_sleepers).collect(),
            drivers: drivers.into_iter().zip(driver_sleepers).collect(),
            completed: vec![None; facts.len()],
            facts,
            clients,
            stopper,
            stopped_at_ns: None,
            excuses: setting.excuses.clone(),
            pools,
            events: Vec::new(),
            enabled: Vec::new(),
            held_back: None,
            seen: BTreeMap::new(),
            lines,
            log: Vec::new(),
            exhaustions,
            trace: Trace::new(keeps_trace),
            random,
            clock,
            setting,
        }
    }

    /// Steps until the server has ended.
    ///
    /// # Panics
    /// When anything is not as it must be.
    pub fn run(&mut self) -> Outcome {
        while !self.reactor.has_ended() {
            assert!(self.trace.steps() < STEPS_MAX, "no end after {STEPS_MAX} steps");
            self.step();
            self.check_always();
            let gives_up = self.setting.settings.gpu.exit_when_dead && self.stopped_at_ns.is_none();
            if gives_up && self.facts.iter().any(|facts| facts.lock().expect("nobody panics with it").is_dead) {
                // Its driver stops the server, now or in its next step.
                self.note_stop();
            }
        }
        self.end()
    }

    /// The setting in words, clients aside.
    pub fn in_words(&self) -> String {
        let Setting { settings, devices, clients, excuses, house, journal, .. } = &self.setting;
        let (limits, batching) = (&settings.limits, &settings.batching);
        format!(
            "{} clients; {limits:?}; {batching:?}; {:?}; {:?}; {devices:?}; {excuses:?}; {house:?}; {journal:?}; {:?}",
            clients.len(),
            settings.deadlines,
            settings.threads,
            self.setting.has_little_memory
        )
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn step(&mut self) {
        let stop_due = self.setting.stops_after_steps.is_some_and(|steps| self.trace.steps() >= steps);
        if self.stopped_at_ns.is_none() && (stop_due || self.clients.iter().all(Client::is_gone)) {
            return self.stop();
        }
        if self.setting.tick_ns_max > 0 && self.random.one_in(4) {
            let now_ns = self.now_ns() + self.random.between(1, self.setting.tick_ns_max as usize) as u64;
            self.clock.advance_to(now_ns);
        }
        if self.random.one_in(400) {
            self.wake_for_nothing();
        }
        self.take_lines();
        self.find_enabled();
        // Who looks all the time does so while time passes.
        if self.enabled.iter().all(|actor| self.only_polls(*actor))
            && (self.enabled.is_empty() || self.random.one_in(3))
        {
            return self.rest();
        }
        let Some(actor) = self.choose() else { return self.rest() };
        match actor {
            Actor::Reactor => self.step_reactor(),
            Actor::Worker(index) => {
                let times = (self.now_ns(), self.setting.settings.threads.spin_us * 1000);
                let (worker, sleeper) = &mut self.workers[index];
                let did =
                    sleeper.go_on(worker, times, |worker, _| (worker.step(), None), |worker, _| worker.has_work());
                self.trace.add(Step::Shell(actor, did), times.0);
            }
            Actor::Driver(index) => {
                let times = (self.now_ns(), self.setting.settings.threads.spin_us * 1000);
                let (driver, sleeper) = &mut self.drivers[index];
                let did = sleeper.go_on(driver, times, step_driver, |driver, now_ns| driver.has_work(now_ns));
                self.trace.add(Step::Shell(actor, did), times.0);
            }
            Actor::Completion(index) => {
                self.completed[index] = self.completion(index);
                self.drivers[index].1.bell.ring();
                self.trace.add(Step::Completed(index), self.now_ns());
            }
            Actor::Client(index) => self.step_client(index),
        }
    }

    /// A thread's sleep may end although nobody rang.
    fn wake_for_nothing(&mut self) {
        let workers = self.workers.iter().map(|(_, sleeper)| sleeper);
        let sleepers: Vec<&Sleeper> = workers.chain(self.drivers.iter().map(|(_, sleeper)| sleeper)).collect();
        sleepers[self.random.below(sleepers.len())].rung.store(true, Ordering::Relaxed);
    }

    fn step_reactor(&mut self) {
        let now_ns = self.now_ns();
        match self.waiting {
            Waiting::NotYet => {
                let timeout = self.pace.timeout(&self.reactor, &self.reactor_bell.bell, now_ns);
                let until_ns = timeout.map(|timeout: Duration| now_ns + timeout.as_nanos() as u64);
                self.waiting = Waiting::Until(until_ns);
                self.trace.add(Step::ReactorWaits(until_ns), now_ns);
            }
            Waiting::Until(_) => {
                self.waiting = Waiting::NotYet;
                let mut any = self.reactor_bell.rung.swap(false, Ordering::Relaxed);
                self.reactor_bell.bell.awake();
                let mut events = std::mem::take(&mut self.events);
                if self.reactor.network().fetch(&mut events) {
                    any = true;
                    self.reactor.listener_ready();
                }
                for (id, event) in &events {
                    any = true;
                    self.reactor.socket_ready(*id, *event);
                }
                let turns = self.reactor.metrics().turns;
                self.pace.woken(&mut self.reactor, any, now_ns);
                let counts = self.reactor.counts();
                if self.reactor.metrics().turns > turns {
                    self.reactor.network().turn_before_ns = now_ns;
                    let overdue = counts.gives_up_at_ns.is_some_and(|at_ns| at_ns <= now_ns);
                    assert!(!overdue, "a turn leaves a request whose time is up");
                }
                self.trace.add(Step::Reactor { events: events.len(), jobs: counts.jobs }, now_ns);
                self.events = events;
            }
        }
    }

    fn step_client(&mut self, index: usize) {
        let now_ns = self.now_ns();
        let client = &mut self.clients[index];
        let did = client.act(self.reactor.network(), &mut self.random, now_ns, &self.excuses);
        let did = did.unwrap_or_else(|words| panic!("client {index}: {words}"));
        let answer = client.answers.last().copied();
        self.trace.add(Step::Client(index, did, answer), now_ns);
        let is_over = matches!(did, Did::SawEnd(_));
        if is_over && let Some(id) = self.clients[index].unanswered().filter(|_| !self.may_drop(index)) {
            panic!("client {index}: the connection is over and request {id} is not answered");
        }
    }

    /// Whether the server was in the right to end this client's connection without an answer.
    fn may_drop(&self, index: usize) -> bool {
        self.setting.has_little_memory || self.stopped_at_ns.is_some() && !self.clients[index].owed_at_stop
    }

    fn stop(&mut self) {
        self.note_stop();
        self.stopper.stop();
        self.trace.add(Step::Stop, self.now_ns());
    }

    /// Its step finds only that the device is still busy.
    fn only_polls(&self, actor: Actor) -> bool {
        let Actor::Driver(index) = actor else { return false };
        let is_running = self.drivers[index].1.mode == Mode::Running;
        is_running && self.setting.devices[index].is_polled && self.ends_at_ns(index).is_some()
    }

    fn is_busy(&self, index: usize) -> bool {
        self.facts[index].lock().expect("nobody panics with it").busy_until_ns.is_some()
    }

    /// When the run of a device ends, if that is yet to come.
    fn ends_at_ns(&self, index: usize) -> Option<u64> {
        let facts = self.facts[index].lock().expect("nobody panics with it");
        facts.busy_until_ns.filter(|until_ns| *until_ns > self.now_ns())
    }

    /// Whoever writes the access log reads some of it.
    fn take_lines(&mut self) {
        let Some(lines) = &mut self.lines else { return };
        let due = self.setting.journal.and_then(|journal| journal.taken_one_in);
        if due.is_some_and(|steps| self.random.one_in(steps)) {
            for _ in 0..self.random.between(1, 30) {
                lines.take(&mut self.log);
            }
        }
    }

    fn see(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn note_stop(&mut self) {
        if self.reactor.counts().jobs > 0 {
            self.see("stops with jobs");
        }
        self.stopped_at_ns = Some(self.now_ns());
        self.excuses.words.insert(asks::DRAINING);
        for client in &mut self.clients {
            client.owed_at_stop = client.is_being_served(self.reactor.network());
        }
    }

    /// The run that a device has ended and not rung for: which, and when it ended.
    fn completion(&self, index: usize) -> Option<(u64, u64)> {
        let facts = self.facts[index].lock().expect("nobody panics with it");
        let rings = match self.setting.devices[index].notice {
            Notice::Clock => false,
            Notice::Bell => true,
            Notice::ArmedBell => facts.armed == Some(facts.submissions),
        };
        facts.busy_until_ns.filter(|_| rings).map(|until_ns| (facts.submissions, until_ns))
    }

    fn find_enabled(&mut self) {
        let now_ns = self.now_ns();
        let mut enabled = std::mem::take(&mut self.enabled);
        enabled.clear();
        let reactor_can = match self.waiting {
            Waiting::NotYet => true,
            Waiting::Until(until_ns) => {
                let is_due = until_ns.is_some_and(|until_ns| until_ns <= now_ns);
                is_due || self.reactor_bell.is_rung() || self.reactor.network().has_events()
            }
        };
        if reactor_can {
            enabled.push(Actor::Reactor);
        }
        let workers = self.workers.iter().enumerate().filter(|(_, (_, sleeper))| sleeper.can_step(now_ns));
        enabled.extend(workers.map(|(index, _)| Actor::Worker(index)));
        let drivers = self.drivers.iter().enumerate().filter(|(_, (_, sleeper))| sleeper.can_step(now_ns));
        enabled.extend(drivers.map(|(index, _)| Actor::Driver(index)));
        for index in 0..self.facts.len() {
            let completion = self.completion(index);
            if completion.is_some_and(|(_, at_ns)| at_ns <= now_ns) && completion != self.completed[index] {
                enabled.push(Actor::Completion(index));
            }
        }
        let network = self.reactor.network();
        let clients = self.clients.iter().filter(|client| client.can_act(network, now_ns));
        enabled.extend(clients.map(|client| Actor::Client(client.index)));
        self.enabled = enabled;
    }

    /// One of the enabled by their weights; `None` if there is none. Now and then one is held back for a while, however
    /// often its turn would have come.
    fn choose(&mut self) -> Option<Actor> {
        if self.enabled.is_empty() {
            return None;
        }
        if let Some((_, steps)) = &mut self.held_back {
            *steps -= 1;
            if *steps == 0 {
                self.held_back = None;
            }
        } else if self.random.one_in(150) {
            let actor = self.random.pick(&self.enabled);
            self.held_back = Some((actor, self.random.between(5, 250)));
        }
        let held_back = self.held_back.map(|(actor, _)| actor).filter(|_| self.enabled.len() > 1);
        let weight = |actor: &Actor| match actor {
            _ if held_back == Some(*actor) => 0,
            Actor::Reactor => self.setting.weights.reactor,
            Actor::Worker(_) => self.setting.weights.worker,
            Actor::Driver(_) | Actor::Completion(_) => self.setting.weights.driver,
            Actor::Client(_) => self.setting.weights.client,
        };
        let total: usize = self.enabled.iter().map(weight).sum();
        let mut left = self.random.below(total);
        for actor in &self.enabled {
            let weight = weight(actor);
            if left < weight {
                return Some(*actor);
            }
            left -= weight;
        }
        unreachable!("the weights add up to their total")
    }

    /// Nobody can do anything now: time passes until somebody can.
    fn rest(&mut self) {
        let now_ns = self.now_ns();
        self.check_rest();
        let waits_until = match self.waiting {
            Waiting::Until(until_ns) => until_ns,
            Waiting::NotYet => None,
        };
        let sleepers = self.workers.iter().map(|(_, sleeper)| sleeper).chain(self.drivers.iter().map(|(_, s)| s));
        let completions = (0..self.facts.len()).filter_map(|index| self.completion(index)).map(|(_, at_ns)| at_ns);
        let polled = (0..self.facts.len()).filter(|index| self.only_polls(Actor::Driver(*index)));
        let times = sleepers
            .filter_map(Sleeper::wakes_at_ns)
            .chain(waits_until)
            .chain(polled.filter_map(|index| self.ends_at_ns(index)))
            .chain(completions.filter(|at_ns| *at_ns > now_ns))
            .chain(self.clients.iter().filter_map(|client| client.wakes_at_ns(now_ns)));
        let Some(next_ns) = times.min() else {
            panic!("everybody sleeps and nothing will wake anybody: {}", self.state())
        };
        assert!(next_ns > now_ns, "somebody could have gone on");
        self.clock.advance_to(next_ns);
        self.trace.add(Step::Rest, next_ns);
    }

    fn state(&mut self) -> String {
        let counts = self.reactor.counts();
        let held: Vec<usize> = self.drivers.iter().map(|(driver, _)| driver.held()).collect();
        let waiting: Vec<usize> =
            self.clients.iter().filter(|client| client.is_waiting()).map(|client| client.index).collect();
        format!("{counts:?}, {} pieces out, devices hold {held:?}, clients {waiting:?} wait", self.reactor.pieces_out())
    }

    fn check_always(&mut self) {
        self.reactor.check_invariants();
        let mut census = self.reactor.census();
        self.workers.iter_mut().for_each(|(worker, _)| census += worker.census());
        self.drivers.iter_mut().for_each(|(driver, _)| census += driver.census());
        let counts = self.reactor.counts();
        self.pools.buffers = counts.buffers_out;
        let full = counts.connections == self.setting.settings.limits.connections_max;
        let many = counts.jobs == self.setting.settings.limits.jobs_max;
        let none_left = self.reactor.pieces_out() == self.setting.settings.limits.pieces_max;
        let rare = [
            ("steps with starved jobs", counts.starved > 0),
            ("steps with all connections taken", full),
            ("steps with all jobs taken", many),
            ("steps with all pieces out", none_left),
            ("steps with answers at workers", counts.encoding > 0),
        ];
        for (what, _) in rare.into_iter().filter(|(_, happens)| *happens) {
            self.see(what);
        }
        assert_eq!(census, self.pools, "what all hold together is what the pools have");
        for facts in &self.facts {
            let facts = facts.lock().expect("nobody panics with it");
            assert_eq!(facts.panic_untold, None, "a device was asked what it must not be asked");
        }
        for (index, (worker, sleeper)) in self.workers.iter().enumerate() {
            let sleeps = matches!(sleeper.mode, Mode::Asleep { .. }) && !sleeper.is_rung();
            let is_needed = worker.has_work() && !self.reactor.has_ended();
            assert!(!(sleeps && is_needed), "worker {index} sleeps beside its work");
        }
    }

    /// Everybody sleeps.
    fn check_rest(&mut self) {
        if let (Waiting::Until(until_ns), Some(at_ns)) = (self.waiting, self.reactor.counts().gives_up_at_ns) {
            // Its poll counts in milliseconds.
            let in_time = until_ns.is_some_and(|until_ns| until_ns < at_ns + 1_000_000);
            assert!(in_time, "the reactor oversleeps the end of a request's time");
        }
        for (index, (driver, _)) in self.drivers.iter().enumerate() {
            let has_ended = self.ends_at_ns(index).is_none() && self.is_busy(index);
            assert!(!has_ended || driver.held() == 0, "device {index} has a result and its thread sleeps");
        }
        let busy = (0..self.facts.len()).any(|index| self.is_busy(index));
        let lingers = self.drivers.iter().any(|(_, sleeper)| sleeper.wakes_at_ns().is_some());
        if busy || lingers {
            return;
        }
        let counts = self.reactor.counts();
        assert_eq!(counts.jobs, counts.starved, "a job waits for nobody: {}", self.state());
        if counts.jobs == 0 {
            assert_eq!(counts.queue_tokens, 0, "tokens are queued of no job");
            assert_eq!(self.reactor.pieces_out(), 0, "pieces are out for no job: {}", self.state());
            for (driver, _) in &self.drivers {
                assert_eq!(driver.load_tokens(), 0, "a device without pieces has a load");
            }
        }
        let has_room = counts.connections < self.setting.settings.limits.connections_max;
        let network = self.reactor.network();
        // Without a file descriptor it is tried again soon.
        let soon_ns = self.clock.now_ns() + 110_000_000;
        let is_tried = matches!(self.waiting, Waiting::Until(Some(until_ns)) if until_ns <= soon_ns);
        let is_stuck = network.has_backlog() && has_room && !is_tried && self.stopped_at_ns.is_none();
        assert!(!is_stuck, "a connection waits although there is room");
        for client in self.clients.iter().filter(|client| client.is_waiting()) {
            let wire = &network.wires[client.index];
            let accepted = matches!(wire.place, Place::Accepted(_));
            let forgotten = accepted && counts.starved == 0 && !wire.has_unread_by_client();
            assert!(!forgotten, "client {} waits for an answer and nobody works on it", client.index);
        }
    }

    /// The server's other threads end, as [`reactrt::serve::Server::join`] ends them.
    fn end(&mut self) -> Outcome {
        for (worker, _) in &mut self.workers {
            worker.drain();
        }
        for index in 0..self.drivers.len() {
            self.drain_driver(index);
        }
        for index in 0..self.clients.len() {
            let now_ns = self.now_ns();
            let client = &mut self.clients[index];
            let left = client.hear_out(self.reactor.network(), &mut self.random, now_ns, &self.excuses);
            let left = left.unwrap_or_else(|words| panic!("client {index}: {words}"));
            let left = left.map(str::to_owned);
            if let Some(id) = left.filter(|_| !self.may_drop(index)) {
                panic!("client {index}: the server is over and request {id} is not answered");
            }
        }
        let drain_ms = self.setting.settings.deadlines.drain_ms;
        let drained_ns = self.now_ns() - self.stopped_at_ns.expect("only a stop ends a world");
        if drained_ns >= drain_ms * 1_000_000 {
            self.see("drains that were cut off");
            assert!(drain_ms < DRAIN_MS, "what was accepted is not finished after {drain_ms} ms");
        }
        let account = self.reactor.account(self.setting.settings.limits.jobs_max);
        assert_eq!(account, Account::default(), "everything is home when all has ended");
        assert!(self.drivers.iter().all(|(driver, _)| driver.load_tokens() == 0), "an ended device has a load");
        let counts = self.reactor.counts();
        assert_eq!((counts.connections, counts.jobs, counts.queue_tokens), (0, 0, 0), "nothing is left");
        self.check_metrics();
        if self.setting.devices.iter().any(|device| device.is_polled) {
            self.see("worlds with a polled device");
        }
        let is_dead = |facts: &Arc<Mutex<Facts>>| facts.lock().expect("nobody panics with it").is_dead;
        if self.facts.iter().any(is_dead) {
            self.see("worlds with a dead device");
        }
        for (status, _) in self.clients.iter().flat_map(|client| &client.answers) {
            *self.seen.entry(name_of(*status)).or_default() += 1;
        }
        let virtual_ns = self.now_ns();
        Outcome { steps: self.trace.steps(), hash: self.trace.hash(), virtual_ns, seen: std::mem::take(&mut self.seen) }
    }

    fn drain_driver(&mut self, index: usize) {
        // Its own way to drain watches the real passing of time; what executes is brought to its end here.
        let (driver, _) = &mut self.drivers[index];
        for _ in 0..10_000 {
            let (worked, _) = step_driver(driver, self.clock.now_ns());
            if !worked && driver.held() == 0 {
                break;
            }
            let until_ns = self.facts[index].lock().expect("nobody panics with it").busy_until_ns;
            self.clock.advance_to(until_ns.unwrap_or(0).max(self.clock.now_ns() + 1_000));
        }
        assert_eq!(driver.held(), 0, "a device does not let go");
        driver.drain(&self.clock);
    }

    /// Each request that ended has its line, or is counted as one without.
    fn check_log(&mut self, answered: &BTreeMap<u16, u64>, cancelled: u64) {
        let Some(lines) = &mut self.lines else { return };
        while lines.take(&mut self.log) {}
        let text = std::str::from_utf8(&self.log).expect("lines are text");
        let (mut statuses, mut told) = (BTreeMap::<u16, u64>::new(), BTreeMap::<(String, u16), u64>::new());
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
            let status = line["status"].as_u64().expect("a line has a status") as u16;
            let id = line["request_id"].as_str().expect("a line has a request's id").to_owned();
            *statuses.entry(status).or_default() += 1;
            *told.entry((id, status)).or_default() += 1;
        }
        let (written, dropped) = (statuses.values().sum::<u64>(), self.reactor.counts().lines_dropped);
        let ended = answered.values().sum::<u64>() + cancelled;
        assert_eq!(written + dropped, ended, "lines written and dropped are requests ended");
        for (status, lines) in &statuses {
            let happened = if *status == 499 { cancelled } else { answered.get(status).copied().unwrap_or_default() };
            assert!(*lines <= happened, "{lines} lines of {status}, which happened {happened} times");
        }
        *self.seen.entry("lines of the access log").or_default() += written;
        *self.seen.entry("lines of the access log dropped").or_default() += dropped;
        for client in self.clients.iter().filter(|_| dropped == 0) {
            for (id, (status, _)) in client.ids.iter().zip(&client.answers) {
                let left = told.get_mut(&(id.clone(), *status)).filter(|left| **left > 0);
                *left.unwrap_or_else(|| panic!("no line of {id}, answered {status}")) -= 1;
            }
        }
    }

    /// The numbers that are shown add up, and agree with what clients have seen.
    fn check_metrics(&mut self) {
        let mut text = Vec::new();
        self.reactor.metrics().write(Gauges::default(), &mut text);
        let text = String::from_utf8(text).expect("metrics are text");
        let sum = |name: &str| -> u64 {
            let lines =
                text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
            lines
                .map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok()).expect("a count"))
                .sum()
        };
        let closed = self.reactor.network().closed;
        assert_eq!(sum("reactrt_connections_accepted_total"), closed, "connections accepted and closed");
        assert_eq!(sum("reactrt_connections_closed_total"), closed, "connections closed");
        let (started, ended) = (
            sum("reactrt_jobs_started_total"),
            sum("reactrt_jobs_answered_total") + sum("reactrt_jobs_cancelled_total"),
        );
        assert_eq!(started, ended, "jobs started, and answered or cancelled");
        let seen: u64 = self.clients.iter().map(|client| client.answers.len() as u64).sum();
        let mut answered = BTreeMap::<u16, u64>::new();
        for line in text.lines().filter(|line| line.starts_with("reactrt_requests_total{")) {
            let (labels, count) = line.rsplit_once(' ').expect("a number has a name");
            let status = labels.rsplit_once("status=\"").and_then(|(_, status)| status.get(..3));
            let status = status.and_then(|status| status.parse().ok()).expect("answers are counted by status");
            *answered.entry(status).or_default() += count.parse::<u64>().expect("a count");
        }
        let told: u64 = answered.values().sum();
        assert!(seen <= told, "{seen} answers were received, {told} counted");
        let (told, expired) = (answered.get(&504).copied().unwrap_or_default(), sum("reactrt_requests_expired_total"));
        // Without memory for the answer nobody is told.
        let is_sound = if self.setting.has_little_memory { told <= expired } else { told == expired };
        assert!(is_sound, "{expired} given up, {told} told so");
        let exhaustions = self.exhaustions.load(Ordering::Relaxed);
        assert_eq!(sum("reactrt_accept_failures_total"), exhaustions, "the lack of descriptors is told each time");
        assert_eq!(sum("reactrt_worker_panics_total"), 0, "a worker panicked");
        let panics: u64 = self.facts.iter().map(|facts| facts.lock().expect("nobody panics with it").panics_told).sum();
        assert_eq!(sum("reactrt_device_panics_total"), panics, "panics of devices");
        let cancelled = sum("reactrt_jobs_cancelled_total");
        self.check_log(&answered, cancelled);
    }
}
