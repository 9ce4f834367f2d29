//! What an engine takes by itself: each bucket's captured graph, replayed back to back on one to four lanes, and alone. All
//! that a server adds is measured against this; the ladder of buckets is chosen by it.
//!
//! ```text
//! cargo bench --features tensorrt-rtx --bench replay -- ENGINE… [--lanes 1,2,3,4] [--seconds 0.4] [--gpu 0] [--json FILE]
//! ```
//!
//! Every engine needs its manifest beside it. Rows are full of texts of 32 tokens where the layout packs, of one text where it
//! does not. Columns: `alone`, the median of one replay waited for; `lanes`, wall time a batch when replays follow one another
//! on so many lanes; `device`, the same with uploads, downloads and vectors collected, as the server does it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reactrt::config::ModelSettings;
use reactrt::device::cuda::Cuda;
use reactrt::device::gpu::{Gpu, Settings};
use reactrt::device::tensorrt::Library;
use reactrt::device::{Bucket, Device, Lane, Layout, Offer, Pieces, Placement, Plan};
use reactrt::job::{ModelKey, Piece};
use reactrt::model::manifest::Manifest;
use reactrt::model::{Task, manifest};

const KEY: ModelKey = ModelKey { index: 0, generation: 1 };

/// Tokens of a text in a packed row.
const TEXT_TOKENS: u32 = 32;

type Failure = Box<dyn std::error::Error>;

struct Asked {
    engines: Vec<PathBuf>,
    lanes: Vec<usize>,
    duration: Duration,
    gpu: u32,
    json: Option<std::fs::File>,
}

fn main() -> ExitCode {
    match read_arguments()
        .and_then(|mut asked| asked.engines.clone().iter().try_for_each(|path| measure(&mut asked, path)))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn read_arguments() -> Result<Asked, Failure> {
    let mut asked = Asked {
        engines: Vec::new(),
        lanes: vec![1, 2, 3, 4],
        duration: Duration::from_millis(400),
        gpu: 0,
        json: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--lanes" => asked.lanes = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--seconds" => asked.duration = Duration::try_from_secs_f64(value()?.parse()?)?,
            "--gpu" => asked.gpu = value()?.parse()?,
            "--json" => asked.json = Some(std::fs::File::create(value()?)?),
            // What cargo itself passes to a benchmark.
            "--bench" => {}
            // Cargo runs benchmarks in their package's folder; the path is one of the folder above.
            _ => asked.engines.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(word)),
        }
    }
    if asked.engines.is_empty() || asked.lanes.iter().any(|lanes| !(1..=4).contains(lanes)) {
        return Err("an engine is needed, and 1 to 4 lanes; the first lines of bench/replay.rs say how".into());
    }
    Ok(asked)
}

fn measure(asked: &mut Asked, path: &Path) -> Result<(), Failure> {
    let told = Manifest::beside(path)?.ok_or_else(|| format!("{} has no manifest", path.display()))?;
    let task = told.model.as_ref().map_or(Task::Embedding, |model| model.task);
    let settings = ModelSettings::new(task, "measured", &path.display().to_string(), "the command line");
    let (model, _) = manifest::read_engine(path, None, &settings)?;
    let lanes = asked.lanes.iter().copied().max().unwrap_or(1);
    let begin = Instant::now();
    let cuda = Cuda::open(asked.gpu, &Library::open()?, Arc::new(|| ()))?;
    let settings = Settings { lanes, slots_max: 64, hang_ns: 60_000_000_000, sequences_max: None };
    let mut gpu = Gpu::new(cuda, settings)?;
    let opened = begin.elapsed();
    let offer = gpu.load(KEY, &Arc::new(model))?;
    println!(
        "{}: opened in {:.2} s, loaded in {:.2} s, {} lanes",
        path.display(),
        opened.as_secs_f64(),
        (begin.elapsed() - opened).as_secs_f64(),
        lanes
    );
    print!("{:<14}{:>8}{:>10}", "bucket", "tokens", "alone ms");
    asked.lanes.iter().for_each(|lanes| print!("{:>9} lane{}", lanes, if *lanes == 1 { " " } else { "s" }));
    println!("{:>13}", "device ms");
    for bucket in 0..offer.buckets.len() {
        let row = Row::measure(asked, &mut gpu, &offer, bucket)?;
        row.print();
        if let Some(file) = &mut asked.json {
            writeln!(file, "{}", row.json(path))?;
        }
    }
    Ok(())
}

/// One bucket's times, in milliseconds a batch.
struct Row {
    bucket: Bucket,
    tokens: u32,
    alone_ms: f64,
    by_lanes: Vec<(usize, f64)>,
    device_ms: f64,
}

impl Row {
    fn measure(asked: &Asked, gpu: &mut Gpu<Cuda>, offer: &Offer, index: usize) -> Result<Row, Failure> {
        let bucket = offer.buckets[index];
        let (plan, pieces) = full(offer, index);
        // Real tokens lie on every lane before its graph is replayed.
        for lane in 0..gpu.lanes() {
            submit(gpu, lane, &plan, &pieces)?;
            collect(gpu, lane)?;
        }
        let said = |failure| format!("{bucket:?}: {failure}");
        let mut alone = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < asked.duration || alone.len() < 10 {
            let start = Instant::now();
            gpu.replay(KEY, index, 1, 1).map_err(said)?;
            alone.push(start.elapsed().as_secs_f64() * 1e3);
        }
        alone.sort_by(f64::total_cmp);
        let alone_ms = alone[alone.len() / 2];
        let mut by_lanes = Vec::new();
        for &lanes in &asked.lanes {
            let count = ((asked.duration.as_secs_f64() * 1e3 / alone_ms) as usize).clamp(4, 400);
            let start = Instant::now();
            gpu.replay(KEY, index, lanes, count).map_err(said)?;
            by_lanes.push((lanes, start.elapsed().as_secs_f64() * 1e3 / (count * lanes) as f64));
        }
        let device_ms = through_the_device(asked, gpu, &plan, &pieces)?;
        Ok(Row { bucket, tokens: plan.tokens, alone_ms, by_lanes, device_ms })
    }

    fn name(&self) -> String {
        let Bucket { rows, length, sequences_max } = self.bucket;
        format!("{rows}x{length}:{sequences_max}")
    }

    fn print(&self) {
        print!("{:<14}{:>8}{:>10.3}", self.name(), self.bucket.tokens(), self.alone_ms);
        self.by_lanes.iter().for_each(|(_, ms)| print!("{ms:>15.3}"));
        println!("{:>13.3}", self.device_ms);
    }

    fn json(&self, path: &Path) -> serde_json::Value {
        serde_json::json!({
            "engine": path.file_name().unwrap_or_default().to_string_lossy(), "bucket": self.name(),
            "tokens": self.bucket.tokens(), "useful_tokens": self.tokens, "alone_ms": self.alone_ms,
            "batch_ms_by_lanes": self.by_lanes, "device_two_lanes_ms": self.device_ms,
        })
    }
}

/// Back to back on two lanes with all that the server does for a batch.
fn through_the_device(asked: &Asked, gpu: &mut Gpu<Cuda>, plan: &Plan, pieces: &Pieces) -> Result<f64, Failure> {
    let lanes = gpu.lanes().min(2);
    for lane in 0..lanes {
        submit(gpu, lane, plan, pieces)?;
    }
    let (mut batches, begin) = (0, Instant::now());
    while begin.elapsed() < asked.duration || batches < 10 {
        for lane in 0..lanes {
            if gpu.poll(lane, 0) == Lane::Done {
                collect(gpu, lane)?;
                submit(gpu, lane, plan, pieces)?;
                batches += 1;
            }
        }
    }
    let batch_ms = begin.elapsed().as_secs_f64() * 1e3 / f64::from(batches);
    (0..lanes).try_for_each(|lane| collect(gpu, lane))?;
    Ok(batch_ms)
}

fn submit(gpu: &mut Gpu<Cuda>, lane: usize, plan: &Plan, pieces: &Pieces) -> Result<(), Failure> {
    gpu.submit(lane, plan, pieces, 0).map_err(|fault| format!("submit: {fault:?}").into())
}

fn collect(gpu: &mut Gpu<Cuda>, lane: usize) -> Result<(), Failure> {
    while gpu.poll(lane, 0) != Lane::Done {
        std::hint::spin_loop();
    }
    gpu.collect(lane, &mut |_, vector| {
        std::hint::black_box(vector);
    })
    .map(|_| ())
    .map_err(|fault| format!("collect: {fault:?}").into())
}

/// A plan that fills the bucket.
fn full(offer: &Offer, bucket: usize) -> (Plan, Pieces) {
    let Bucket { rows, length, sequences_max } = offer.buckets[bucket];
    let (mut placements, mut piece) = (Vec::new(), Piece { model: KEY, ..Piece::default() });
    // As many as there may be, of equal lengths.
    let in_row = match offer.layout {
        Layout::Padded => 1,
        Layout::Packed => (sequences_max / rows).min(length / TEXT_TOKENS.min(length)).max(1),
    };
    for row in 0..rows {
        for index in 0..in_row {
            let count = length / in_row;
            let sequence = placements.len() as u32;
            placements.push(Placement { piece: 0, sequence, row, offset: index * count, length: count });
            piece.ids.extend((0..count).map(|token| 1_000 + (row * 31 + index * 7 + token * 13) % 20_000));
            piece.types.extend((0..count).map(|_| 0));
            piece.ends.push(piece.ids.len() as u32);
        }
    }
    let tokens = piece.ids.len() as u32;
    let mut pieces = Pieces::with_capacity(1);
    pieces.insert(Box::new(piece));
    (Plan { model: KEY, bucket: bucket as u32, placements, tokens }, pieces)
}
