//! What the server adds to the device's time, for one client with one text, request by request: the latency that the client
//! measures less the `device` share of the same answer's `Server-Timing`. And what the idle server keeps in memory.
//!
//! `cargo bench --bench overhead [-- MODEL_FOLDER [REQUESTS]]`; by default the demo's embedding model, 4,000 requests. A
//! relative folder counts from the repository's root, wherever cargo is called. The CPU device and the simulated one of zero
//! time take turns, so that both meet the same machine. Every answer is checked.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use reactrt::config::{DeviceName, Devices, ModelSettings, Settings};
use reactrt::model::Task;
use reactrt::serve::Server;

const TEXT: &str = r#"{"documents":["The weather is lovely today."]}"#;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with("--"));
    let folder = words.next().unwrap_or_else(|| "engines/demo/all-MiniLM-L6-v2".into());
    // Cargo runs benchmarks in their package's folder.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder).display().to_string();
    let requests: usize = match words.next() {
        Some(word) => word.parse().map_err(|_| format!("{word:?} is no number of requests"))?,
        None => 4_000,
    };
    for spin_us in [0, 200] {
        let idle = |device| {
            let before = resident_bytes();
            let server = start(device, &folder, spin_us)?;
            let more = resident_bytes().saturating_sub(before);
            println!("spin_us {spin_us}, {device:?}: {:.1} MB more resident", more as f64 / 1e6);
            Ok((device, server))
        };
        let servers: Vec<_> =
            [DeviceName::Sim, DeviceName::Cpu].map(idle).into_iter().collect::<Result<_, String>>()?;
        let mut clients: Vec<_> = servers
            .iter()
            .map(|(device, server)| (device, TcpStream::connect(server.address()).unwrap(), Vec::new(), Vec::new()))
            .collect();
        for round in 0..requests + 100 {
            for (_, stream, overheads, latencies) in &mut clients {
                let (latency_us, device_us) = ask(stream);
                // The first hundred warm caches and buffers.
                if round >= 100 {
                    overheads.push(latency_us - device_us);
                    latencies.push(latency_us);
                }
            }
        }
        println!("  device   requests   latency − device, µs: p50      p90      p99   | latency, µs: p50      p99");
        for (device, _, overheads, latencies) in &mut clients {
            overheads.sort_by(f64::total_cmp);
            latencies.sort_by(f64::total_cmp);
            let at = |values: &[f64], share: f64| values[((values.len() - 1) as f64 * share) as usize];
            println!(
                "  {:<8} {:>8} {:>30.1} {:>8.1} {:>8.1}   | {:>17.1} {:>8.1}",
                format!("{device:?}"),
                overheads.len(),
                at(overheads, 0.5),
                at(overheads, 0.9),
                at(overheads, 0.99),
                at(latencies, 0.5),
                at(latencies, 0.99),
            );
        }
        drop(clients);
        for (_, server) in servers {
            server.stopper().stop();
            assert_eq!(server.join().expect("the server ends well"), Default::default());
        }
    }
    Ok(())
}

fn start(device: DeviceName, folder: &str, spin_us: u64) -> Result<Server, String> {
    let mut settings = Settings::default();
    settings.server.port = 0;
    settings.devices = Devices::List(vec![device]);
    settings.threads.spin_us = spin_us;
    (settings.sim.base_us, settings.sim.us_per_1k_tokens) = (0, 0);
    settings.models = vec![ModelSettings::new(Task::Embedding, "model", folder, "the benchmark")];
    Server::start(settings).map_err(|error| format!("{error}\n`reactrt demo` fetches the default model"))
}

/// One request: its latency and its device time, in microseconds.
fn ask(stream: &mut TcpStream) -> (f64, f64) {
    let request = format!("POST /infer/model HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{TEXT}", TEXT.len());
    let mut answer = [0; 64 << 10];
    let start = Instant::now();
    stream.write_all(request.as_bytes()).expect("the server reads");
    let mut filled = 0;
    let head_end = loop {
        filled += read(stream, &mut answer[filled..]);
        if let Some(end) = answer[..filled].windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = std::str::from_utf8(&answer[..head_end]).expect("heads are ASCII").to_owned();
    let after = |name: &str| head.split(name).nth(1).expect("every answer has this").to_owned();
    let length: usize = after("content-length: ").lines().next().unwrap().parse().expect("a length");
    while filled < head_end + length {
        filled += read(stream, &mut answer[filled..]);
    }
    let latency_us = start.elapsed().as_secs_f64() * 1e6;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let body = std::str::from_utf8(&answer[head_end..filled]).expect("answers are UTF-8");
    assert!(body.starts_with("{\"embeddings\":[[") && body.matches(',').count() >= 384, "not a vector: {body}");
    let device = after("device;dur=");
    let device_ms: f64 = device.split([',', '\r']).next().unwrap().parse().expect("a duration");
    (latency_us, device_ms * 1000.0)
}

fn read(stream: &mut TcpStream, into: &mut [u8]) -> usize {
    let read = stream.read(into).expect("the server answers");
    assert!(read > 0, "closed inside an answer");
    read
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("with its resident memory");
    line.split_whitespace().nth(1).expect("a number of kB").parse::<u64>().expect("a number") * 1024
}
