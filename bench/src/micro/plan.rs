//! Planning: pieces pushed into an empty planner, and plans made of them until nothing waits.

use std::collections::BTreeSet;

use reactrt::device::{Bucket, Layout, Offer, Placement, Plan};
use reactrt::job::{JobKey, ModelKey, Piece};
use reactrt::plan::{Bounds, Dropped, Next, Planner};

use super::{Amount, Case, Row};

const BOUNDS: Bounds = Bounds {
    sequences_max: None,
    tokens_max: None,
    linger_ns: 0,
    age_ns_max: 50_000_000,
    pieces_max: 1_024,
    piece_sequences_max: 16,
    models_max: 4,
};

const LENGTH_MAX: u32 = 256;

pub fn rows() -> Vec<Row> {
    let one = || vec![piece(0, &[16])];
    // One job of 16 full pieces, as a request of 256 texts is cut.
    let many = || lengths(256).chunks(16).map(|lengths| piece(0, lengths)).collect::<Vec<Piece>>();
    let jobs = || lengths(1_024).chunks(16).zip(0..).map(|(lengths, job)| piece(job, lengths)).collect::<Vec<Piece>>();
    vec![
        Queue::row("1 sequence, packed", Layout::Packed, one()),
        Queue::row("1 sequence, padded", Layout::Padded, one()),
        Queue::row("256 sequences of one job, packed", Layout::Packed, many()),
        Queue::row("256 sequences of one job, padded", Layout::Padded, many()),
        Queue::row("64 jobs of 16 sequences, packed", Layout::Packed, jobs()),
        Queue::row("64 jobs of 16 sequences, padded", Layout::Padded, jobs()),
    ]
}

/// 4 to 254 tokens, half of them below 36, in a fixed shuffle.
fn lengths(count: usize) -> Vec<u32> {
    let place = |index: usize| (index * 13 % count) as f64 / count as f64;
    (0..count).map(|index| 4 + (250.0 * place(index).powi(3)) as u32).collect()
}

fn piece(job: u32, lengths: &[u32]) -> Piece {
    let ends: Vec<u32> = lengths
        .iter()
        .scan(0, |end, length| {
            *end += length;
            Some(*end)
        })
        .collect();
    let tokens = lengths.iter().sum::<u32>() as usize;
    let job = JobKey { slot: job, generation: 0 };
    Piece { job, ids: vec![7; tokens], types: vec![0; tokens], ends, ..Piece::default() }
}

/// What a device with one kind of engine offers.
fn offer(layout: Layout) -> Offer {
    let bucket = |rows: u32, length: u32| {
        let sequences_max = match layout {
            Layout::Packed => rows * length.div_ceil(8),
            Layout::Padded => rows,
        };
        Bucket { rows, length, sequences_max }
    };
    let lengths = [32, 64, 128, LENGTH_MAX];
    let mut buckets: Vec<Bucket> = match layout {
        Layout::Packed => lengths[..3]
            .iter()
            .map(|&length| bucket(1, length))
            .chain([1, 4, 16, 32].map(|rows| bucket(rows, 256)))
            .collect(),
        Layout::Padded => {
            lengths.iter().flat_map(|&length| [1, 4, 8, 16, 32].map(|rows| bucket(rows, length))).collect()
        }
    };
    buckets.sort_by_key(|bucket| (bucket.tokens(), bucket.rows));
    Offer { layout, buckets, width: 384, costs_ns: Vec::new() }
}

#[derive(Debug)]
struct Queue {
    planner: Planner,
    offer: Offer,
    pieces: Vec<Piece>,
    plan: Plan,
    dropped: Vec<Dropped>,
}

impl Queue {
    fn row(what: &str, layout: Layout, pieces: Vec<Piece>) -> Row {
        let mut planner = Planner::new(BOUNDS);
        let offer = offer(layout);
        planner.offer(ModelKey::default(), &offer);
        let plan = planner.empty_plan();
        let amount = Amount::Items(pieces.iter().map(|piece| piece.sequences() as u64).sum());
        let dropped = Vec::with_capacity(Planner::dropped_max(&BOUNDS));
        Row::new(format!("plan/{what}"), amount, Queue { planner, offer, pieces, plan, dropped })
    }

    fn push_all(&mut self) {
        for (index, piece) in (0..).zip(&self.pieces) {
            self.planner.push(index, piece);
        }
    }

    /// False when nothing waits any more.
    fn next(&mut self) -> bool {
        match self.planner.next(0, &|_| true, &mut self.plan, &mut self.dropped) {
            Next::Plan => true,
            Next::Empty => false,
            Next::WaitUntil(until_ns) => panic!("nothing lingers, but it waits until {until_ns}"),
        }
    }

    /// Whether each placement lies within the bucket and in nobody's way.
    fn check_plan(&self) {
        let bucket = self.offer.buckets[self.plan.bucket as usize];
        let mut end = (0, 0);
        for placement in &self.plan.placements {
            let Placement { piece, sequence, row, offset, length } = *placement;
            assert_eq!(self.pieces[piece as usize].length(sequence as usize), length);
            assert!((row, offset) >= end, "{placement:?} begins before {end:?}");
            end = (row, offset + length);
            assert!(row < bucket.rows && offset + length <= bucket.length, "{placement:?} in {bucket:?}");
        }
        assert!(self.plan.placements.len() <= bucket.sequences_max as usize);
        assert_eq!(self.plan.tokens, self.plan.placements.iter().map(|placement| placement.length).sum::<u32>());
    }
}

impl Case for Queue {
    fn run(&mut self, _slot: usize) -> u64 {
        self.push_all();
        let mut placed = 0;
        while self.next() {
            placed += self.plan.placements.len() as u64;
        }
        placed
    }

    fn check(&mut self, returned: u64) {
        let all: BTreeSet<(u32, u32)> = (0..)
            .zip(&self.pieces)
            .flat_map(|(index, piece)| (0..piece.sequences() as u32).map(move |sequence| (index, sequence)))
            .collect();
        assert_eq!(returned, all.len() as u64);
        self.push_all();
        let jobs_count = self.pieces.iter().map(|piece| piece.job).collect::<BTreeSet<_>>().len();
        let (mut placed, mut begun) = (BTreeSet::new(), BTreeSet::new());
        while self.next() {
            assert!(self.dropped.is_empty());
            self.check_plan();
            for placement in &self.plan.placements {
                assert!(placed.insert((placement.piece, placement.sequence)), "{placement:?} twice");
                begun.insert(self.pieces[placement.piece as usize].job);
            }
            // Turns are taken: one job after another, the last would begin when nearly all is done.
            let early = placed.len() * 4 < all.len() * 3;
            assert!(early || begun.len() == jobs_count, "{} of {jobs_count} jobs have begun", begun.len());
        }
        assert_eq!(placed, all);
        assert_eq!(self.planner.waiting_sequences(), 0);
    }
}
