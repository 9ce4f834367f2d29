//! The life of a server: load, allocate, spawn, pin; then drain and join.
//!
//! Everything that can fail because of a file, a model, a number or an address fails here, before the first client is
//! answered. Every thread is a `step` of its own module with the shell at the end of this file around it, which decides
//! how to wait: spin, then sleep until its doorbell rings.
//!
//! Invariant: when [`Server::join`] returns, every thread has ended and every part is home, which its [`Account`] shows.

mod clerk;
mod gpu;
mod load;
mod signals;

use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use crate::api::gate::{Keys, Origins};
use crate::api::{Catalog, Entry};
use crate::clock::Clock;
use crate::config::{ApiKeys, DeviceName, Devices, Settings};
use crate::device::driver::{Driver, Ports};
use crate::device::gpu::GpuCounters;
use crate::http;
use crate::job::{Body, Buffers, Generations, Piece, PieceBounds, ToReactor};
use crate::journal;
use crate::log;
use crate::metrics::{DeviceCounters, Metrics};
use crate::plan;
use crate::reactor::{self, DevicePort, Network, Parts, Policy, Reactor, ReactorLimits, Sockets, WorkerPort};
use crate::ring::{Doorbell, Receiver, Sender, ring};
use crate::tokenize::{Served, Worker, WorkerLimits, WorkerState};

pub use load::{Loaded, LoadedDevice, LoadedModel, check_buckets, check_tokenizer, load_model, of_entry};

/// Why a server could not start or had to end: a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(pub String);

impl std::fmt::Display for Error {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// What was still out when everything had stopped: all zero, or a part was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub pieces_out: usize,
    pub bodies_out: usize,
    pub buffers_out: usize,
}

/// Pieces that one job may have between worker and devices: two of the largest batches, so that one is being cut while
/// the other executes.
const WINDOW_PIECES_MAX: usize = 32;

/// How long a client may take to read its last answer.
const LINGER_NS: u64 = 2_000_000_000;

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stopper: Stopper,
    reactor: JoinHandle<io::Result<Reactor<Sockets>>>,
    /// Told to end once the reactor has, the devices once the workers have: whoever sends outlives nobody who receives.
    workers: Threads,
    devices: Threads,
    /// Told last, when there is nothing more to be written.
    clerks: Threads,
    bodies_max: usize,
}

/// Threads of one kind, which end together.
#[derive(Debug, Default)]
struct Threads {
    quit: Arc<AtomicBool>,
    handles: Vec<JoinHandle<()>>,
    bells: Vec<Arc<Doorbell>>,
}

impl Threads {
    fn join(self) -> Result<(), Error> {
        self.quit.store(true, Ordering::Relaxed);
        for bell in &self.bells {
            bell.ring();
        }
        self.handles.iter().for_each(|handle| handle.thread().unpark());
        for handle in self.handles {
            handle.join().map_err(|_| Error("a thread ended by a panic".into()))?;
        }
        Ok(())
    }
}

/// Asks a server to stop: it answers what it has accepted and ends.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    bell: Arc<Doorbell>,
    /// A device was given up, and the settings want the process to end for that.
    gave_up: Arc<AtomicBool>,
}

impl Stopper {
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    /// What a device does in its last moment, where the process is to end with it.
    fn on_death(&self) -> Box<dyn FnOnce() + Send> {
        let stopper = self.clone();
        Box::new(move || {
            stopper.gave_up.store(true, Ordering::Relaxed);
            stopper.stop();
        })
    }
}

/// Serves until SIGTERM or SIGINT, then drains, no longer than `drain_ms`. A second signal ends the process at once.
/// `announce` is called once, when the first request can be answered, with the address.
pub fn run(settings: Settings, announce: impl FnOnce(SocketAddr)) -> Result<(), Error> {
    log::set_level(settings.server.log_level);
    let (drain_ms, access_log) = (settings.deadlines.drain_ms, settings.server.access_log.clone());
    let server = Server::start(settings)?;
    signals::watch(server.stopper(), drain_ms)?;
    announce(server.address());
    let listening = format!("listening on http://{}", server.address());
    // It serves, whether or not anybody reads this.
    let _ = match access_log {
        // The output is lines of JSON, and nothing else.
        Some(journal::Target::StandardOutput) => writeln!(io::stderr(), "{listening}"),
        Some(journal::Target::File(_)) | None => writeln!(io::stdout(), "{listening}"),
    };
    let gave_up = Arc::clone(&server.stopper.gave_up);
    let account = server.join()?;
    if gave_up.load(Ordering::Relaxed) {
        return Err(Error("a GPU was given up, and gpu.exit_when_dead says to end then".into()));
    }
    if account != Account::default() {
        log::warn(format_args!("not everything came home: {account:?}"));
    }
    Ok(())
}

/// The keys of the settings and of the file that they name.
///
/// # Errors
/// The file cannot be read or is none, in a sentence without a key.
pub fn api_keys(settings: &Settings) -> Result<ApiKeys, String> {
    let keys = &settings.server.api_keys;
    settings.server.api_keys_file.as_ref().map_or_else(|| Ok(keys.clone()), |path| keys.with_file(path))
}

/// Whether this binary can use the devices that the settings name, as far as no device has to be asked.
///
/// # Errors
/// Which it cannot, and what would help.
pub fn check_devices(settings: &Settings) -> Result<(), Error> {
    let Devices::List(names) = &settings.devices else { return Ok(()) };
    names.iter().try_for_each(|name| match name {
        DeviceName::Cuda(index) => gpu::check(*index),
        DeviceName::Cpu | DeviceName::Sim => Ok(()),
    })
}

impl Server {
    /// Loads all models, binds the address and starts every thread. Returns when the first request can be answered.
    pub fn start(settings: Settings) -> Result<Server, Error> {
        let clock = Clock::real();
        let address = address(&settings)?;
        let keys = api_keys(&settings).map_err(Error)?;
        let sockets = Sockets::bind(address, settings.limits.connections_max)
            .map_err(|error| Error(format!("cannot listen on {address}: {error}{}", port_hint(&error, address))))?;
        let address = sockets.address();
        if !address.ip().is_loopback() && keys.list().is_empty() {
            log::warn(format_args!(
                "listening on {address} without server.api_keys: whoever reaches this port may use every model"
            ));
        }
        raise_descriptor_limit(settings.limits.connections_max);
        let mut device_bells: Vec<ThreadBell> = Vec::new();
        let loaded = load::load(&settings, &mut || {
            let bell = ThreadBell::new();
            let rung = Arc::clone(&bell.bell);
            device_bells.push(bell);
            rung
        })?;
        Build { settings, keys, clock, sockets, loaded, device_bells }.start(address)
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits until the server has been stopped and everything has ended.
    pub fn join(self) -> Result<Account, Error> {
        let Server { reactor, workers, devices, clerks, bodies_max, .. } = self;
        let ended = reactor.join();
        workers.join()?;
        devices.join()?;
        let reactor = ended
            .map_err(|_| Error("the reactor ended by a panic".into()))
            .and_then(|ended| ended.map_err(|error| Error(format!("waiting for sockets failed: {error}"))));
        clerks.join()?;
        Ok(reactor?.account(bodies_max))
    }
}

fn address(settings: &Settings) -> Result<SocketAddr, Error> {
    let (host, port) = (settings.server.host.as_str(), settings.server.port);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (host, port)
        .to_socket_addrs()
        .map_err(|error| Error(format!("server.host `{host}` is no address: {error}")))?
        .next()
        .ok_or_else(|| Error(format!("server.host `{host}` has no address")))
}

fn port_hint(error: &io::Error, address: SocketAddr) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("; another program uses port {}: stop it, or choose another with --port", address.port())
        }
        io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege".into(),
        _ => String::new(),
    }
}

/// Connections need file descriptors: asks for as many as there may be, up to the hard limit.
#[allow(unsafe_code)]
fn raise_descriptor_limit(connections_max: usize) {
    let wanted = connections_max as libc::rlim_t + 256;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write only the struct they are given.
    let raised = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_cur.max(wanted.min(limit.rlim_max));
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0
        }
    };
    if !raised || limit.rlim_cur < wanted {
        log::warn(format_args!(
            "only {} file descriptors for up to {connections_max} connections (limits.connections_max)",
            limit.rlim_cur
        ));
    }
}

/// A doorbell that unparks a thread which does not exist yet.
struct ThreadBell {
    bell: Arc<Doorbell>,
    thread: Arc<OnceLock<Thread>>,
}

impl ThreadBell {
    fn new() -> ThreadBell {
        let thread = Arc::new(OnceLock::<Thread>::new());
        let sleeper = Arc::clone(&thread);
        let wake = move || {
            // A thread that has not said who it is looks for work before its first sleep.
            if let Some(thread) = sleeper.get() {
                thread.unpark();
            }
        };
        ThreadBell { bell: Arc::new(Doorbell::new(Box::new(wake))), thread }
    }
}

/// Everything that is needed to start the threads.
struct Build {
    settings: Settings,
    keys: ApiKeys,
    clock: Clock,
    sockets: Sockets,
    loaded: Loaded,
    device_bells: Vec<ThreadBell>,
}

/// The rings of one device: from each worker, and home.
struct DeviceRings {
    inboxes: Vec<Receiver<Box<Piece>>>,
    home: Sender<ToReactor>,
}

/// The doorbell of each thread that sleeps.
#[derive(Debug)]
pub struct Bells {
    pub reactor: Arc<Doorbell>,
    pub workers: Vec<Arc<Doorbell>>,
    pub devices: Vec<Arc<Doorbell>>,
}

/// A server whose threads do not run yet: what each of them will own, connected by rings. [`Server`] gives each a thread;
/// a simulation steps them itself.
#[derive(Debug)]
pub struct Wired<N> {
    pub reactor: Reactor<N>,
    pub workers: Vec<Worker>,
    pub drivers: Vec<Driver>,
    pub stopper: Stopper,
    gpus: Vec<(String, Arc<GpuCounters>)>,
}

/// Allocates everything and connects it: as many workers and devices as there are bells.
///
/// # Errors
/// The memory bound is too small for these models.
pub fn wire<N: Network>(
    settings: &Settings,
    clock: &Clock,
    loaded: Loaded,
    network: N,
    policy: Policy,
    bells: &Bells,
) -> Result<Wired<N>, Error> {
    let limits = &settings.limits;
    let bounds = piece_bounds(settings, &loaded);
    let width_max = width_max(&loaded);
    settings.check_memory(bounds, width_max).map_err(|(_, message)| Error(message))?;
    let (pieces_max, bodies_max) = (limits.pieces_max, limits.jobs_max);
    let generations = Generations::new(limits.jobs_max);
    let catalog = Arc::new(Catalog::new(entries(&loaded)));
    let served: Arc<[Served]> = served(&loaded);
    let (stop, gave_up) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let stopper = Stopper { stop: Arc::clone(&stop), bell: Arc::clone(&bells.reactor), gave_up };

    let mut device_rings = Vec::new();
    let mut device_ports = Vec::new();
    let (mut counters, mut gpus) = (Vec::new(), Vec::new());
    let mut loads = Vec::new();
    for device in &loaded.devices {
        let (home, receiver) = ring(pieces_max, &bells.reactor);
        device_rings.push(DeviceRings { inboxes: Vec::new(), home });
        device_ports.push(DevicePort { receiver, ready: Arc::new(AtomicBool::new(true)) });
        let name = device.device.name().to_string();
        gpus.extend(device.device.gpu().map(|counters| (name.clone(), counters)));
        counters.push((name, Arc::new(DeviceCounters::default())));
        loads.push(Arc::new(AtomicU64::new(0)));
    }

    let (mut workers, mut drivers) = (Vec::new(), Vec::new());
    let mut worker_ports = Vec::new();
    let mut worker_panics = Vec::new();
    for bell in &bells.workers {
        // Behind each body may wait the end of its job, and before it that of the job whose body it was until just now.
        let (sender, inbox) = ring(3 * bodies_max + pieces_max, bell);
        let (home, receiver) = ring(bodies_max + pieces_max, &bells.reactor);
        worker_ports.push(WorkerPort::new(sender, receiver));
        let mut devices = Vec::new();
        for (rings, bell) in device_rings.iter_mut().zip(&bells.devices) {
            let (sender, receiver) = ring(pieces_max, bell);
            devices.push(sender);
            rings.inboxes.push(receiver);
        }
        let worker_limits = WorkerLimits { api: limits.clone(), piece: bounds, bodies_max };
        let panics = Arc::new(AtomicU64::new(0));
        worker_panics.push(Arc::clone(&panics));
        workers.push(Worker {
            inbox,
            home,
            devices,
            load: loads.clone(),
            ready: device_ports.iter().map(|port| Arc::clone(&port.ready)).collect(),
            catalog: Arc::clone(&catalog),
            models: Arc::clone(&served),
            generations: generations.clone(),
            clock: clock.clone(),
            panics,
            state: WorkerState::new(&worker_limits),
            limits: worker_limits,
        });
    }

    let planner_bounds = plan::Bounds {
        sequences_max: settings.batching.sequences_max,
        tokens_max: settings.batching.tokens_max,
        linger_ns: settings.batching.linger_us * 1000,
        age_ns_max: settings.batching.age_us_max * 1000,
        pieces_max,
        piece_sequences_max: bounds.sequences_max as usize,
        models_max: loaded.models.len().max(1),
    };
    for (index, (device, rings)) in loaded.devices.into_iter().zip(device_rings).enumerate() {
        let ports = Ports {
            inboxes: rings.inboxes,
            home: rings.home,
            generations: generations.clone(),
            load: Arc::clone(&loads[index]),
            ready: Arc::clone(&device_ports[index].ready),
            counters: Arc::clone(&counters[index].1),
            on_death: settings.gpu.exit_when_dead.then(|| stopper.on_death()),
        };
        drivers.push(Driver::new(device.device, device.offers, planner_bounds, ports));
    }

    let names = catalog.entries().iter().map(|entry| entry.name.clone());
    let metrics = Metrics::new(names, counters, gpus.clone(), worker_panics);
    let parts = Parts {
        catalog,
        generations,
        buffers: Buffers::new(settings.buffer_bytes(bounds, width_max)),
        pieces: (0..pieces_max).map(|_| Box::new(Piece::with_bounds(bounds, width_max))).collect(),
        bodies: (0..bodies_max).map(|_| Box::new(Body::new(WINDOW_PIECES_MAX))).collect(),
        workers: worker_ports,
        devices: device_ports,
        metrics,
        stop,
        policy,
    };
    let reactor = Reactor::new(network, reactor_limits(settings), parts, clock.clone());
    Ok(Wired { reactor, workers, drivers, stopper, gpus })
}

impl Build {
    fn start(self, address: SocketAddr) -> Result<Server, Error> {
        let Build { settings, keys, clock, sockets, loaded, device_bells } = self;
        let suffice = cores_suffice(&settings, loaded.devices.len());
        let pins = Pins::new(&settings, suffice);
        let worker_bells: Vec<ThreadBell> = (0..settings.threads.workers).map(|_| ThreadBell::new()).collect();
        let rung = |bells: &[ThreadBell]| bells.iter().map(|bell| Arc::clone(&bell.bell)).collect::<Vec<_>>();
        let reactor_bell = sockets.doorbell();
        let bells =
            Bells { reactor: Arc::clone(&reactor_bell), workers: rung(&worker_bells), devices: rung(&device_bells) };
        let mut clerks = Threads::default();
        let policy = policy(&settings, &keys, &loaded, &mut clerks)?;
        let wired = wire(&settings, &clock, loaded, sockets, policy, &bells)?;
        let Wired { mut reactor, workers: idle_workers, drivers: idle_drivers, stopper, gpus } = wired;

        let spin_ns = settings.threads.spin_us * 1000;
        let shell =
            |quit: &Arc<AtomicBool>, bell| Shell { clock: clock.clone(), quit: Arc::clone(quit), spin_ns, bell };
        let mut workers = Threads { bells: bells.workers, ..Threads::default() };
        for (index, (mut worker, bell)) in idle_workers.into_iter().zip(worker_bells).enumerate() {
            let shell = shell(&workers.quit, bell);
            workers.handles.push(spawn(format!("worker-{index}"), pins.worker(index), move || {
                shell.run(&mut worker, |worker, _| (worker.step(), None), |worker, _| worker.has_work());
                worker.drain();
            })?);
        }
        let polls = settings.gpu.poll.holds(suffice);
        let mut devices = Threads { bells: bells.devices, ..Threads::default() };
        for (index, (mut driver, bell)) in idle_drivers.into_iter().zip(device_bells).enumerate() {
            if polls && driver.is_gpu() {
                driver.poll_while_busy();
            }
            let shell = shell(&devices.quit, bell);
            devices.handles.push(spawn(format!("device-{index}"), pins.device(index), move || {
                shell.run(&mut driver, step_driver, |driver, now_ns| driver.has_work(now_ns));
                driver.drain(&shell.clock);
            })?);
        }
        devices.handles.extend(gpu::watch(&gpus, &devices.quit));
        let bodies_max = settings.limits.jobs_max;
        let reactor = spawn("reactor".into(), pins.reactor(), move || {
            reactor::run(&mut reactor, &reactor_bell, &clock, spin_ns).map(|()| reactor)
        })?;
        Ok(Server { address, stopper, reactor, workers, devices, clerks, bodies_max })
    }
}

/// Who may ask, and where that is written down, with the thread that does.
fn policy(settings: &Settings, keys: &ApiKeys, loaded: &Loaded, clerks: &mut Threads) -> Result<Policy, Error> {
    let server = &settings.server;
    let open = |target| {
        let models = loaded.models.iter().map(|model| model.model.name.as_str());
        journal::open(target, settings.limits.connections_max, models).map_err(Error)
    };
    let (journal, scribe) = server.access_log.as_ref().map(open).transpose()?.unzip();
    Ok(Policy {
        keys: Keys::new(keys.list().to_vec()),
        origins: Origins::new(&server.cors_origins),
        request_ms: settings.deadlines.request_ms,
        journal,
        on_exhaustion: Some(clerk::start(scribe, clerks)?),
    })
}

/// What a device's thread steps: whether anything was done, and when to step again even if nobody rings.
pub fn step_driver(driver: &mut Driver, now_ns: u64) -> (bool, Option<u64>) {
    match driver.step(now_ns) {
        crate::device::driver::Rest::No => (true, None),
        crate::device::driver::Rest::Until(wake_at_ns) => (false, wake_at_ns),
    }
}

fn entries(loaded: &Loaded) -> Vec<Entry> {
    loaded.models.iter().map(|model| Entry::new(&model.model, model.width, model.vocabulary)).collect()
}

fn served(loaded: &Loaded) -> Arc<[Served]> {
    let served = loaded.models.iter().map(|model| Served {
        key: model.key,
        tokenizer: model.tokenizer.clone(),
        max_length: model.model.max_length,
        vocabulary: model.vocabulary,
        prompts: model.model.prompts.iter().map(|prompt| prompt.text.clone()).collect(),
        devices: model.devices.clone(),
    });
    served.collect()
}

/// A piece holds the longest sequence of any model, and otherwise what the settings say.
fn piece_bounds(settings: &Settings, loaded: &Loaded) -> PieceBounds {
    let longest = loaded.models.iter().map(|model| model.model.max_length as u32).max().unwrap_or(1);
    let bounds = settings.piece_bounds();
    PieceBounds { tokens_max: bounds.tokens_max.max(longest), ..bounds }
}

/// Output values of one sequence of the widest model.
fn width_max(loaded: &Loaded) -> usize {
    loaded.models.iter().map(|model| model.width as usize).max().unwrap_or(1)
}

fn reactor_limits(settings: &Settings) -> ReactorLimits {
    let ns = |ms: u64| ms * 1_000_000;
    let limits = &settings.limits;
    let deadlines = &settings.deadlines;
    ReactorLimits {
        http: http::Limits {
            head_bytes_max: limits.head_bytes_max,
            target_bytes_max: limits.head_bytes_max / 2,
            headers_max: 100,
            body_bytes_max: limits.body_bytes_max,
            chunk_extra_bytes_max: limits.head_bytes_max,
        },
        connections_max: limits.connections_max,
        jobs_max: limits.jobs_max,
        queue_tokens_max: settings.batching.queue_tokens_max,
        window_pieces_max: WINDOW_PIECES_MAX,
        deadlines_ns: [
            ns(deadlines.idle_ms),
            ns(deadlines.head_ms),
            ns(deadlines.body_ms),
            ns(deadlines.write_ms),
            LINGER_NS,
        ],
        drain_ns: ns(deadlines.drain_ms),
    }
}

/// Whether there is a core for each busy thread, and one more, so that the rest of the system has somewhere to run.
fn cores_suffice(settings: &Settings, devices: usize) -> bool {
    let available = core_affinity::get_core_ids().unwrap_or_default().len();
    let usable = thread::available_parallelism().map_or(1, std::num::NonZero::get).min(available);
    usable > 1 + settings.threads.workers + devices
}

/// Which core each thread is bound to, if any: reactor, workers, devices, in this order.
struct Pins {
    cores: Vec<core_affinity::CoreId>,
    workers: usize,
}

impl Pins {
    fn new(settings: &Settings, suffice: bool) -> Pins {
        let available = core_affinity::get_core_ids().unwrap_or_default();
        let cores = if settings.threads.pin.holds(suffice) { available } else { Vec::new() };
        Pins { cores, workers: settings.threads.workers }
    }

    fn core(&self, index: usize) -> Option<core_affinity::CoreId> {
        if self.cores.is_empty() { None } else { Some(self.cores[index % self.cores.len()]) }
    }

    fn reactor(&self) -> Option<core_affinity::CoreId> {
        self.core(0)
    }

    fn worker(&self, index: usize) -> Option<core_affinity::CoreId> {
        self.core(1 + index)
    }

    fn device(&self, index: usize) -> Option<core_affinity::CoreId> {
        self.core(1 + self.workers + index)
    }
}

fn spawn<T: Send + 'static>(
    name: String,
    core: Option<core_affinity::CoreId>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let pinned = move || {
        if let Some(core) = core {
            core_affinity::set_for_current(core);
        }
        work()
    };
    let failed = |error| Error(format!("thread {name} cannot be started: {error}"));
    thread::Builder::new().name(name.clone()).spawn(pinned).map_err(failed)
}

/// How a thread waits for work.
struct Shell {
    clock: Clock,
    quit: Arc<AtomicBool>,
    spin_ns: u64,
    bell: ThreadBell,
}

impl Shell {
    /// Steps until told to quit. `step` says whether it did anything, and when it must be called again even if nobody
    /// rings.
    fn run<T>(
        &self,
        state: &mut T,
        step: impl Fn(&mut T, u64) -> (bool, Option<u64>),
        has_work: impl Fn(&mut T, u64) -> bool,
    ) {
        let _ = self.bell.thread.set(thread::current());
        let mut spin_until_ns = 0;
        while !self.quit.load(Ordering::Relaxed) {
            let now_ns = self.clock.now_ns();
            let (worked, wake_at_ns) = step(state, now_ns);
            if worked {
                spin_until_ns = now_ns + self.spin_ns;
            }
            match Pause::after((worked, wake_at_ns), now_ns, spin_until_ns) {
                Pause::None => {}
                Pause::Spin => std::hint::spin_loop(),
                Pause::Sleep(wake_at_ns) => {
                    let rested = || has_work(state, now_ns) || self.quit.load(Ordering::Relaxed);
                    if self.bell.bell.may_sleep(rested) {
                        match wake_at_ns {
                            Some(wake_at_ns) => thread::park_timeout(Duration::from_nanos(wake_at_ns - now_ns)),
                            None => thread::park(),
                        }
                        self.bell.bell.awake();
                    }
                }
            }
        }
    }
}

/// What a thread does between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    None,
    Spin,
    /// It may sleep if [`Doorbell::may_sleep`] says so, until it is rung or, if given, until this time, which lies ahead.
    Sleep(Option<u64>),
}

impl Pause {
    /// After a step at `now_ns` that did something or did not, and wants to be called again at a time or does not.
    pub fn after((worked, wake_at_ns): (bool, Option<u64>), now_ns: u64, spin_until_ns: u64) -> Pause {
        if worked {
            return Pause::None;
        }
        if now_ns < spin_until_ns || wake_at_ns.is_some_and(|wake_at_ns| wake_at_ns <= now_ns) {
            return Pause::Spin;
        }
        Pause::Sleep(wake_at_ns)
    }
}
