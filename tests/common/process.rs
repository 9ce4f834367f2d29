//! The server as a process of its own: what only a process has (signals, limits, exit codes, memory of its own).

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::{Answer, Client, fixture};

/// Long enough for a busy machine; nothing waits so long unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file with three small models on the simulated device; `more` is further YAML.
pub fn configuration(name: &str, more: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.yaml", std::process::id()));
    let (embed, rank, nli) = (fixture("bert-embedding-mean"), fixture("bert-reranker"), fixture("bert-nli"));
    let text = format!(
        "devices: [sim]\nembedding_models:\n  embed: {{model_path: {embed}}}\nreranking_models:\n  rank: {{model_path: \
         {rank}}}\nnli_models:\n  nli: {{model_path: {nli}}}\n{more}\n"
    );
    std::fs::write(&path, text).expect("target/tmp can be written");
    path
}

pub struct Process {
    child: Child,
    pub address: SocketAddr,
    /// What it writes to its output after the line that says where it listens.
    output: BufReader<std::process::ChildStdout>,
    /// What it writes to its error stream.
    errors: BufReader<std::process::ChildStderr>,
}

impl Process {
    /// Starts the server with these settings and waits until it listens.
    pub fn start(name: &str, more: &str, flags: &[&str]) -> Process {
        Process::start_under("", name, more, flags)
    }

    /// The same behind a shell's word, such as `ulimit -n 64`.
    pub fn start_under(word: &str, name: &str, more: &str, flags: &[&str]) -> Process {
        let config = configuration(name, more);
        let script = format!("{}exec \"$0\" \"$@\"", if word.is_empty() { String::new() } else { format!("{word}; ") });
        let mut command = super::command::unset(Command::new("sh"));
        command.args(["-c", &script, env!("CARGO_BIN_EXE_reactrt"), "serve", "--config"]).arg(config);
        if !flags.contains(&"--port") {
            command.args(["--port", "0"]);
        }
        command.args(flags).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().expect("the binary starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        // Where the output is the access log's, it says among its messages where it listens.
        let read = if flags.contains(&"-") { errors.read_line(&mut line) } else { output.read_line(&mut line) };
        read.expect("it can be read");
        let Some(address) = line.trim().strip_prefix("listening on http://").and_then(|text| text.parse().ok()) else {
            let mut said = String::new();
            let _ = errors.read_to_string(&mut said);
            panic!("the server did not start: {line}{said}");
        };
        Process { child, address, output, errors }
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    pub fn get(&self, path: &str) -> Answer {
        let mut client = self.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes());
        client.answer()
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> u64 {
        super::metric(&self.get("/metrics"), name)
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status();
        assert!(sent.expect("kill runs").success(), "the process is there to be sent SIG{name}");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The value of a line of `/proc/PID/status` in bytes.
    pub fn memory_bytes(&self, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("the process is there");
        let value = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':')).expect("a known line");
        value.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// Processor time used so far, in ticks of 10 ms.
    pub fn processor_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).expect("the process is there");
        // Behind the name in brackets; utime and stime are the 14th and 15th field of all.
        let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
        fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
    }

    /// Waits for the end, and returns how it ended, its output and its messages.
    pub fn wait(mut self) -> (ExitStatus, String, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break status,
                None if Instant::now() > deadline => panic!("the process does not end"),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let (mut output, mut errors) = (String::new(), String::new());
        self.output.read_to_string(&mut output).expect("text");
        self.errors.read_to_string(&mut errors).expect("text");
        (status, output, errors)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ended already, most often.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
