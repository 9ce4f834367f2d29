//! A GPU made of vectors, as literal-minded as a real one.
//!
//! Work is queued on streams and done later, a few steps whenever somebody looks; copies read and write what lies there at
//! that moment; a graph replays the shapes and addresses of its capture. What a real GPU would leave undefined panics: memory
//! that is gone, an unset shape or address, a graph whose context has changed since, two streams in one memory, a run that
//! reads what nobody wrote. Its engines compute [`sim::vector`] of whatever tokens they find.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use super::super::backend::{Backend, Bell, Failure, Free, Slices};
use crate::device::ports::{Kind, Pool, Ports, Role};
use crate::device::sim;
use crate::device::{Layout, LoadError};
use crate::model::engine::{Description, ElementType};

/// What the tests look at and meddle with.
#[derive(Default)]
pub struct World {
    memories: HashMap<u64, Vec<Option<u8>>>,
    /// Which stream used a memory.
    users: HashMap<u64, u64>,
    streams: HashMap<u64, VecDeque<Op>>,
    capturing: HashMap<u64, Vec<Op>>,
    /// When each event was reached.
    reached: HashMap<u64, Option<u64>>,
    /// How often a context's shapes or addresses were set.
    versions: HashMap<u64, u64>,
    next: u64,
    clock: u64,
    /// Steps of a stream that one look at an event lets happen.
    pub pace: usize,
    /// Bytes that may be in use together, and those that are.
    pub capacity: usize,
    pub used: usize,
    pub contexts_made: usize,
    pub captured: usize,
    pub launched: usize,
    /// Calls that fail: by name, after so many that succeed.
    pub faults: Vec<(&'static str, usize, Failure)>,
    /// No stream goes on.
    pub is_stuck: bool,
}

#[derive(Clone)]
enum Op {
    Upload { to: u64, from: usize, bytes: usize },
    Download { to: usize, from: u64, slices: Slices },
    Run(Run),
    Record(u64),
    Wait(u64),
    Ring,
    Free(u64),
}

/// A context as it is at one moment.
#[derive(Clone)]
struct Run {
    engine: Arc<FakeEngine>,
    context: u64,
    version: u64,
    shapes: HashMap<CString, Vec<i64>>,
    addresses: HashMap<CString, (u64, usize)>,
    scratch: u64,
}

pub struct FakeEngine {
    pub description: Description,
    pub ports: Ports,
    /// Scratch bytes for one token.
    pub scratch: usize,
    pub unpositioned: Option<(u32, u32)>,
}

#[derive(Clone)]
pub struct Fake {
    pub world: Arc<Mutex<World>>,
    pub engines: Arc<Mutex<HashMap<String, Arc<FakeEngine>>>>,
    pub bell: Bell,
}

pub struct Context {
    world: Arc<Mutex<World>>,
    run: Run,
    stream: u64,
}

pub struct Memory {
    world: Arc<Mutex<World>>,
    id: u64,
    bytes: usize,
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut world = self.world.lock().unwrap();
        world.memories.remove(&self.id);
        world.used -= self.bytes;
    }
}

pub struct Graph(Vec<Op>);

impl Fake {
    pub fn new(bell: Bell) -> Fake {
        let world = World { pace: 2, capacity: 1 << 30, ..World::default() };
        Fake { world: Arc::new(Mutex::new(world)), engines: Arc::default(), bell }
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn call(&self, call: &'static str) -> Result<MutexGuard<'_, World>, Failure> {
        let mut world = self.world();
        if let Some(index) = world.faults.iter().position(|(name, ..)| *name == call) {
            if world.faults[index].1 == 0 {
                return Err(world.faults.swap_remove(index).2);
            }
            world.faults[index].1 -= 1;
        }
        Ok(world)
    }

    fn make_memory(&self, call: &'static str, bytes: usize) -> Result<Memory, Failure> {
        let mut world = self.call(call)?;
        if world.used + bytes > world.capacity {
            return Err(Failure { call, code: 2, is_sticky: false });
        }
        let id = world.id();
        world.used += bytes;
        world.memories.insert(id, vec![None; bytes]);
        drop(world);
        Ok(Memory { world: Arc::clone(&self.world), id, bytes })
    }

    fn push(&self, call: &'static str, stream: u64, op: Op) -> Result<(), Failure> {
        let mut world = self.call(call)?;
        match world.capturing.get_mut(&stream) {
            Some(ops) => ops.push(op),
            None => world.streams.get_mut(&stream).expect("the stream lives").push_back(op),
        }
        Ok(())
    }

    /// Lets a stream do some of what waits on it.
    fn go_on(&self, stream: u64, steps: usize) {
        for _ in 0..steps {
            let mut world = self.world();
            if world.is_stuck {
                return;
            }
            let waits = |op: &Op| matches!(op, Op::Wait(event) if world.reached[event].is_none());
            if world.streams[&stream].front().is_some_and(waits) {
                return;
            }
            let Some(op) = world.streams.get_mut(&stream).expect("the stream lives").pop_front() else { return };
            let rings = world.perform(stream, op);
            drop(world);
            if rings {
                (self.bell)();
            }
        }
    }

    /// Lets every stream but one go on that has waited for an event.
    fn go_on_waiting(&self, but: u64) {
        let is_waiting = |ops: &VecDeque<Op>| matches!(ops.front(), Some(Op::Wait(_) | Op::Ring));
        let waiting: Vec<u64> = {
            let world = self.world();
            world.streams.iter().filter(|(id, ops)| **id != but && is_waiting(ops)).map(|(id, _)| *id).collect()
        };
        for stream in waiting {
            self.go_on(stream, 2);
        }
    }
}

impl World {
    /// Streams on which something waits.
    pub fn busy_streams(&self) -> Vec<u64> {
        self.streams.iter().filter(|(_, ops)| !ops.is_empty()).map(|(id, _)| *id).collect()
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn uses(&mut self, stream: u64, memory: u64) -> &mut Vec<Option<u8>> {
        assert!(self.memories.contains_key(&memory), "memory is used after it was freed");
        let user = *self.users.entry(memory).or_insert(stream);
        assert_eq!(user, stream, "two streams work in one memory");
        self.memories.get_mut(&memory).unwrap()
    }

    fn perform(&mut self, stream: u64, op: Op) -> bool {
        self.clock += 10;
        match op {
            Op::Upload { to, from, bytes } => {
                // SAFETY: host memory outlives what is queued on it: lanes synchronize before they let go.
                let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
                for (to, byte) in self.uses(stream, to).iter_mut().zip(bytes) {
                    *to = Some(*byte);
                }
            }
            Op::Download { to, from, slices } => {
                let source = self.uses(stream, from);
                for slice in 0..slices.count {
                    for byte in 0..slices.bytes {
                        let value = source[slice * slices.distance + byte].expect("only what was computed is read");
                        // SAFETY: as above, and the block has room for all slices.
                        unsafe { *((to + slice * slices.bytes + byte) as *mut u8) = value };
                    }
                }
            }
            Op::Run(run) => self.run(stream, &run),
            Op::Record(event) => {
                self.reached.insert(event, Some(self.clock));
            }
            Op::Wait(event) => assert!(self.reached[&event].is_some()),
            Op::Ring => return true,
            Op::Free(memory) => {
                let bytes = self.memories.remove(&memory).expect("freed once").len();
                self.used -= bytes;
            }
        }
        false
    }

    fn integers(&mut self, stream: u64, run: &Run, role: Role) -> Option<Vec<u32>> {
        let input = run.engine.ports.inputs.iter().find(|input| input.role == role)?.clone();
        let name = CString::new(input.name).unwrap();
        let (memory, offset) = *run.addresses.get(&name).expect("every input has an address");
        let count = run.shapes[&name].iter().product::<i64>() as usize;
        let width = if input.is_wide { 8 } else { 4 };
        let bytes = self.uses(stream, memory)[offset..offset + count * width].to_vec();
        let bytes: Vec<u8> = bytes.into_iter().map(|byte| byte.expect("a run reads what was uploaded")).collect();
        let value = |bytes: &[u8]| match bytes {
            [a, b, c, d, 0, 0, 0, 0] | [a, b, c, d] => u32::from_le_bytes([*a, *b, *c, *d]),
            _ => panic!("a value beyond 32 bits"),
        };
        Some(bytes.chunks(width).map(value).collect())
    }

    fn run(&mut self, stream: u64, run: &Run) {
        let current = self.versions[&run.context];
        assert_eq!(current, run.version, "a graph is replayed whose context has changed since");
        let engine = Arc::clone(&run.engine);
        let ports = &engine.ports;
        let ids_name = CString::new(ports.inputs.iter().find(|input| input.role == Role::Ids).unwrap().name.clone());
        let grid = run.shapes[&ids_name.unwrap()].clone();
        let (rows, length) = (grid[0] as usize, grid[1] as usize);
        assert!(self.uses(stream, run.scratch).len() >= engine.scratch * rows * length, "scratch memory is too small");
        let ids = self.integers(stream, run, Role::Ids).unwrap();
        let types = self.integers(stream, run, Role::Types);
        let types = types.unwrap_or_else(|| vec![0; ids.len()]).iter().map(|&kind| kind as u8).collect::<Vec<_>>();
        let width = ports.output.width;
        let mut out = Vec::new();
        match ports.layout {
            Layout::Padded => {
                let mask = self.integers(stream, run, Role::Mask).unwrap();
                for row in 0..rows {
                    let start = row * length;
                    let count = mask[start..start + length].iter().take_while(|&&mask| mask == 1).count();
                    assert!(
                        mask[start + count..start + length].iter().all(|&mask| mask == 0),
                        "padding is on the right"
                    );
                    let tokens = start..start + count;
                    match ports.output.kind {
                        Kind::Hidden(_) => {
                            for at in start..start + length {
                                out.extend(token_vector(ids[at], types[at], width));
                            }
                        }
                        Kind::Pooled | Kind::Column => out.extend(vector(&ids[tokens.clone()], &types[tokens], width)),
                    }
                }
            }
            Layout::Packed => {
                let segments = self.integers(stream, run, Role::Segments).unwrap();
                let positions = self.integers(stream, run, Role::Positions).unwrap();
                for first in self.integers(stream, run, Role::Firsts).unwrap() {
                    let first = first as usize;
                    let end = (first / length + 1) * length;
                    let mine = |at: &usize| segments[*at] == segments[first];
                    let tokens: Vec<usize> = (first..end).take_while(mine).collect();
                    let mut next = 0;
                    for &at in tokens.iter().filter(|_| segments[first] != 0) {
                        match engine.unpositioned {
                            Some((token, row)) if ids[at] == token => assert_eq!(positions[at], row),
                            Some(_) | None => {
                                assert_eq!(positions[at], next, "positions count within the text");
                                next += 1;
                            }
                        }
                    }
                    let ids: Vec<u32> = tokens.iter().map(|&at| ids[at]).collect();
                    let types: Vec<u8> = tokens.iter().map(|&at| types[at]).collect();
                    out.extend(vector(&ids, &types, width));
                }
            }
        }
        let (memory, offset) = run.addresses[&CString::new(ports.output.name.clone()).unwrap()];
        let bytes = encode(&out, ports.output.element);
        for (to, byte) in self.uses(stream, memory)[offset..].iter_mut().zip(&bytes) {
            *to = Some(*byte);
        }
    }
}

pub fn vector(ids: &[u32], types: &[u8], width: usize) -> Vec<f32> {
    let mut out = Vec::new();
    sim::vector(ids, types, width, &mut out);
    out
}

fn token_vector(id: u32, kind: u8, width: usize) -> Vec<f32> {
    vector(&[id], &[kind], width)
}

/// What the engine's answer for one sequence is, after everything that a device does to it.
pub fn expected(ports: &Ports, ids: &[u32], types: &[u8]) -> Vec<f32> {
    let has_types = ports.inputs.iter().any(|input| input.role == Role::Types);
    let zeros = vec![0; types.len()];
    let types = if has_types { types } else { &zeros };
    let width = ports.output.width;
    let rounded = |values: Vec<f32>| round(&values, ports.output.element);
    let mut answer = match ports.output.kind {
        Kind::Pooled | Kind::Column => rounded(vector(ids, types, width)),
        Kind::Hidden(pool) => {
            let count = if pool == Pool::First { 1 } else { ids.len() };
            let tokens: Vec<f32> =
                (0..count).flat_map(|token| rounded(token_vector(ids[token], types[token], width))).collect();
            let mut pooled = Vec::new();
            pool.append(&tokens, width, &mut pooled);
            pooled
        }
    };
    if ports.output.normalize {
        crate::device::ports::normalize(&mut answer);
    }
    answer
}

fn encode(values: &[f32], element: ElementType) -> Vec<u8> {
    match element {
        ElementType::F16 => values.iter().flat_map(|&value| half::f16::from_f32(value).to_le_bytes()).collect(),
        ElementType::Bf16 => values.iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

fn round(values: &[f32], element: ElementType) -> Vec<f32> {
    let round = |&value: &f32| match element {
        ElementType::F16 => half::f16::from_f32(value).to_f32(),
        ElementType::Bf16 => half::bf16::from_f32(value).to_f32(),
        _ => value,
    };
    values.iter().map(round).collect()
}

impl Backend for Fake {
    type Engine = Arc<FakeEngine>;
    type Context = Context;
    type Stream = u64;
    type Event = (u64, Cell<u64>);
    type Graph = Graph;
    type Host = Box<[u8]>;
    type Memory = Memory;

    fn enter(&self) -> Result<(), Failure> {
        self.call("enter").map(drop)
    }

    fn free(&self) -> Result<Free, Failure> {
        let world = self.call("free")?;
        Ok(Free { free: (world.capacity - world.used) as u64, total: world.capacity as u64 })
    }

    fn stream(&self) -> Result<u64, Failure> {
        let mut world = self.call("stream")?;
        let id = world.id();
        world.streams.insert(id, VecDeque::new());
        Ok(id)
    }

    fn event(&self) -> Result<(u64, Cell<u64>), Failure> {
        let mut world = self.call("event")?;
        let id = world.id();
        world.reached.insert(id, None);
        Ok((id, Cell::new(0)))
    }

    fn host(&self, bytes: usize) -> Result<Box<[u8]>, Failure> {
        drop(self.call("host")?);
        Ok(vec![0xAA; bytes].into())
    }

    fn memory(&self, bytes: usize) -> Result<Memory, Failure> {
        self.make_memory("memory", bytes)
    }

    fn engine(&self, path: &Path) -> Result<Arc<FakeEngine>, LoadError> {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let found = self.engines.lock().unwrap().get(&name).cloned();
        found.ok_or_else(|| LoadError(format!("{name}: no such engine")))
    }

    fn description(&self, engine: &Arc<FakeEngine>) -> Description {
        engine.description.clone()
    }

    fn context(&self, engine: &Arc<FakeEngine>, profile: usize, stream: &u64) -> Result<Context, LoadError> {
        assert!(profile < engine.description.profiles);
        let mut world = self.call("context").map_err(|failure| LoadError(failure.to_string()))?;
        let context = world.id();
        world.versions.insert(context, 0);
        world.contexts_made += 1;
        let (shapes, addresses) = (HashMap::new(), HashMap::new());
        let run = Run { engine: Arc::clone(engine), context, version: 0, shapes, addresses, scratch: 0 };
        Ok(Context { world: Arc::clone(&self.world), run, stream: *stream })
    }

    fn keep(&self, _engine: &Arc<FakeEngine>) {}

    fn set_shape(&self, context: &mut Context, tensor: &CStr, shape: &[i64]) -> Result<(), LoadError> {
        let refused = |_| LoadError("setInputShape".into());
        self.call("set_shape").map(drop).map_err(refused)?;
        context.change();
        context.run.shapes.insert(tensor.to_owned(), shape.to_vec());
        Ok(())
    }

    fn shape(&self, context: &Context, tensor: &CStr) -> Vec<i64> {
        let ports = &context.run.engine.ports;
        assert_eq!(tensor.to_str().unwrap(), ports.output.name);
        let of = |role| {
            let input = ports.inputs.iter().find(|input| input.role == role).unwrap();
            context.run.shapes[&CString::new(input.name.clone()).unwrap()].clone()
        };
        let (grid, width) = (of(Role::Ids), ports.output.width as i64);
        let lines = if ports.layout == Layout::Packed { of(Role::Firsts)[0] } else { grid[0] };
        match ports.output.kind {
            Kind::Column => vec![lines],
            Kind::Pooled => vec![lines, width],
            Kind::Hidden(_) => vec![grid[0], grid[1], width],
        }
    }

    fn scratch_bytes(&self, context: &mut Context) -> Result<usize, LoadError> {
        let engine = &context.run.engine;
        let ids = engine.ports.inputs.iter().find(|input| input.role == Role::Ids).unwrap();
        let grid = &context.run.shapes[&CString::new(ids.name.clone()).unwrap()];
        Ok(engine.scratch * grid.iter().product::<i64>() as usize)
    }

    fn set_scratch(&self, context: &mut Context, memory: &Memory) {
        context.change();
        context.run.scratch = memory.id;
    }

    fn set_address(
        &self,
        context: &mut Context,
        tensor: &CStr,
        memory: &Memory,
        offset: usize,
    ) -> Result<(), LoadError> {
        context.change();
        context.run.addresses.insert(tensor.to_owned(), (memory.id, offset));
        Ok(())
    }

    fn enqueue(&self, context: &mut Context, stream: &u64) -> Result<(), Failure> {
        assert_eq!(context.stream, *stream, "a context belongs to one stream");
        let ports = &context.run.engine.ports;
        for input in &ports.inputs {
            let name = CString::new(input.name.clone()).unwrap();
            assert!(context.run.shapes.contains_key(&name) && context.run.addresses.contains_key(&name), "{name:?}");
        }
        self.push("enqueue", *stream, Op::Run(context.run.clone()))
    }

    fn begin_capture(&self, stream: &u64) -> Result<(), Failure> {
        let mut world = self.call("begin_capture")?;
        assert!(world.capturing.insert(*stream, Vec::new()).is_none(), "a capture at a time");
        Ok(())
    }

    fn end_capture(&self, stream: &u64) -> Result<Graph, Failure> {
        let ops = self.world().capturing.remove(stream).expect("a capture was begun");
        let mut world = self.call("end_capture")?;
        world.captured += 1;
        Ok(Graph(ops))
    }

    fn launch(&self, graph: &Graph, stream: &u64) -> Result<(), Failure> {
        assert!(!graph.0.is_empty(), "a graph of nothing would leave what an earlier run wrote");
        let mut world = self.call("launch")?;
        world.launched += 1;
        let queue = world.streams.get_mut(stream).expect("the stream lives");
        queue.extend(graph.0.iter().cloned());
        Ok(())
    }

    fn upload(&self, stream: &u64, to: &mut Memory, from: &Box<[u8]>, bytes: usize) -> Result<(), Failure> {
        assert!(bytes <= to.bytes && bytes <= from.len());
        self.push("upload", *stream, Op::Upload { to: to.id, from: from.as_ptr() as usize, bytes })
    }

    fn download(&self, stream: &u64, to: &mut Box<[u8]>, from: &Memory, slices: Slices) -> Result<(), Failure> {
        assert!(slices.total_bytes() <= to.len() && slices.total_bytes() > 0);
        self.push("download", *stream, Op::Download { to: to.as_mut_ptr() as usize, from: from.id, slices })
    }

    fn record(&self, event: &(u64, Cell<u64>), stream: &u64) -> Result<(), Failure> {
        event.1.set(*stream);
        self.push("record", *stream, Op::Record(event.0))?;
        self.world().reached.insert(event.0, None);
        Ok(())
    }

    fn is_done(&self, event: &(u64, Cell<u64>)) -> Result<bool, Failure> {
        let pace = self.call("is_done")?.pace;
        self.go_on(event.1.get(), pace);
        self.go_on_waiting(event.1.get());
        Ok(self.world().reached[&event.0].is_some())
    }

    fn elapsed_ns(&self, from: &(u64, Cell<u64>), to: &(u64, Cell<u64>)) -> Result<u64, Failure> {
        let world = self.call("elapsed_ns")?;
        let time = |event: u64| world.reached[&event].expect("times are asked of events that are done");
        Ok(time(to.0) - time(from.0))
    }

    fn wait(&self, stream: &u64, event: &(u64, Cell<u64>)) -> Result<(), Failure> {
        self.push("wait", *stream, Op::Wait(event.0))
    }

    fn ring(&self, stream: &u64) -> Result<(), Failure> {
        self.push("ring", *stream, Op::Ring)
    }

    fn synchronize(&self, stream: &u64) -> Result<(), Failure> {
        drop(self.call("synchronize")?);
        while !self.world().is_stuck && !self.world().streams[stream].is_empty() {
            self.go_on(*stream, 1);
        }
        Ok(())
    }

    fn take(&self, _stream: &u64, bytes: usize) -> Result<Memory, Failure> {
        self.make_memory("take", bytes)
    }

    fn give_back(&self, stream: &u64, memory: Memory) -> Result<(), Failure> {
        let op = Op::Free(memory.id);
        // The stream frees it when it gets there.
        let _kept = std::mem::ManuallyDrop::new(memory);
        self.push("give_back", *stream, op)
    }

    fn name(&self) -> &str {
        "fake:0"
    }
}

impl Context {
    fn change(&mut self) {
        self.run.version += 1;
        self.world.lock().unwrap().versions.insert(self.run.context, self.run.version);
    }
}
