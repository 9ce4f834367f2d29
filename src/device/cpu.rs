//! The CPU device: embedding, reranker and NLI models from Hugging Face folders, on our own encoder.
//!
//! It needs no library and no padding, runs everywhere, and is the oracle against which other devices are tested. A lane is a
//! thread (with helpers, if `threads_per_lane` says so) that runs one plan at a time; the device itself only copies token
//! ids in and vectors out. Its buckets are bounds: one row, as long as a plan may be.
//!
//! Invariant: whatever a plan holds, a lane computes only what its model knows; a plan with a token, type or length beyond
//! that is refused whole. A lane's panic is a fault of that plan, and the device stays ready.
//!
//! `cpu/` in the order of a run: [`lane`] (the thread), [`encoder`] (the model and its schedule), [`team`] (threads that share
//! a run), [`matrix`] (blocks and products), [`kernels`] (rows).

mod encoder;
mod kernels;
mod lane;
mod matrix;
mod team;

use std::sync::Arc;

use self::encoder::Encoder;
use self::lane::State;
use super::{Bucket, Device, Fault, Health, Lane, Layout, LoadError, Offer, Pieces, Plan};
use crate::config;
use crate::job::ModelKey;
use crate::model::Model;

/// Sequences in one plan at most: bounds the outputs, and with texts of eight tokens still fills 4,096.
const SEQUENCES_MAX: u32 = 512;

/// A loaded model and the bounds that were offered for it.
#[derive(Debug)]
struct Loaded {
    generation: u32,
    encoder: Arc<Encoder>,
    bucket: Bucket,
}

#[derive(Debug)]
pub struct Cpu {
    lanes: Vec<lane::Lane>,
    threads_per_lane: usize,
    tokens_max: u32,
    /// By [`ModelKey::index`].
    models: Vec<Option<Loaded>>,
}

impl Cpu {
    /// Starts the lanes' threads. `notify` is called, from a lane's thread, whenever a lane becomes [`Lane::Done`].
    pub fn new(settings: &config::Cpu, notify: Arc<dyn Fn() + Send + Sync>) -> Cpu {
        let threads_per_lane = settings.threads_per_lane.max(1);
        let lane = |index| lane::Lane::new(index, threads_per_lane, notify.clone());
        Cpu {
            lanes: (0..settings.lanes.max(1)).map(lane).collect(),
            threads_per_lane,
            tokens_max: settings.tokens_max,
            models: Vec::new(),
        }
    }

    fn loaded(&self, key: ModelKey) -> Option<&Loaded> {
        let loaded = self.models.get(key.index as usize)?.as_ref()?;
        (loaded.generation == key.generation).then_some(loaded)
    }
}

impl Device for Cpu {
    fn load(&mut self, key: ModelKey, model: &Arc<Model>) -> Result<Offer, LoadError> {
        let encoder = Encoder::load(model)?;
        let width = encoder.width() as u32;
        let length = self.tokens_max.max(encoder.length_max() as u32);
        let bucket = Bucket { rows: 1, length, sequences_max: SEQUENCES_MAX.min(length) };
        let needs = encoder.needs(length as usize, bucket.sequences_max as usize);
        for lane in &mut self.lanes {
            // A lane that is away makes room itself when it first meets the model.
            if let Some(work) = lane.idle_work() {
                work.scratch.reserve(needs, self.threads_per_lane);
                work.batch.reserve(length as usize, bucket.sequences_max as usize);
            }
        }
        let index = key.index as usize;
        if self.models.len() <= index {
            self.models.resize_with(index + 1, || None);
        }
        self.models[index] = Some(Loaded { generation: key.generation, encoder: Arc::new(encoder), bucket });
        Ok(Offer { layout: Layout::Packed, buckets: vec![bucket], width })
    }

    fn unload(&mut self, key: ModelKey) {
        if self.loaded(key).is_some() {
            self.models[key.index as usize] = None;
        }
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn submit(&mut self, lane: usize, plan: &Plan, pieces: &Pieces, _now_ns: u64) -> Result<(), Fault> {
        let loaded = self.loaded(plan.model).ok_or(Fault::Refused)?;
        let (encoder, bucket) = (loaded.encoder.clone(), loaded.bucket);
        let lane = &mut self.lanes[lane];
        let work = lane.idle_work().ok_or(Fault::Refused)?;
        work.batch.clear();
        let fits = plan.tokens <= bucket.tokens() && plan.placements.len() <= bucket.sequences_max as usize;
        if plan.bucket != 0 || plan.placements.is_empty() || !fits {
            return Err(Fault::Refused);
        }
        for placement in &plan.placements {
            let piece = pieces.get(placement.piece);
            let range = piece.range(placement.sequence as usize);
            let room = bucket.tokens() as usize - work.batch.tokens();
            if range.is_empty() || range.len() > encoder.length_max().min(room) {
                return Err(Fault::Refused);
            }
            let (ids, types) = (&piece.ids[range.clone()], &piece.types[range]);
            if !ids.iter().zip(types).all(|(&id, &token_type)| encoder.knows(id, token_type)) {
                return Err(Fault::Refused);
            }
            work.batch.push(ids, types);
        }
        work.width = encoder.width();
        work.encoder = Some(encoder);
        lane.start();
        Ok(())
    }

    fn poll(&mut self, lane: usize, _now_ns: u64) -> Lane {
        match self.lanes[lane].state() {
            State::Idle => Lane::Idle,
            State::Away => Lane::Busy,
            State::Done => Lane::Done,
        }
    }

    fn collect(&mut self, lane: usize, output: &mut dyn FnMut(usize, &[f32])) -> Result<u64, Fault> {
        let work = self.lanes[lane].finish().ok_or(Fault::Refused)?;
        work.result?;
        let vectors = work.scratch.outputs().chunks_exact(work.width);
        for (index, vector) in vectors.take(work.batch.sequences()).enumerate() {
            output(index, vector);
        }
        Ok(work.busy_ns)
    }

    fn health(&self) -> Health {
        Health::Ready
    }

    fn name(&self) -> &str {
        "cpu"
    }
}
