//! Behind nginx with connections kept to the server and bodies passed on as they come: what the wire table says of good
//! requests, and of mistakes that are the request's own, holds there too. Passes over where nginx is not installed; under
//! `CI=true` that is a failure.

mod common;
#[path = "wire/table.rs"]
mod table;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Client, metric, start};
use table::Hop;

/// Rows that keep their connection when they meet the server, and that nginx answers itself or changes on their way.
const NOT_HERE: &[&str] = &[
    "fields in any case, blanks around values",
    "an empty Host",
    "OPTIONS of everything",
    "TRACE shows nobody's fields",
    "a method in small letters is another method",
    "no leave is needed without a body",
];

struct Nginx {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Nginx {
    fn start(upstream: SocketAddr) -> Option<Nginx> {
        let program = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        let Some(program) = program else {
            assert!(std::env::var_os("CI").is_none(), "nginx is not installed (Debian: nginx-light)");
            println!("passed over: nginx is not installed");
            return None;
        };
        // Free a moment ago; nobody else asks the system for ports in order.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nginx-{}", address.port()));
        std::fs::create_dir_all(&folder).expect("target/tmp can be written");
        let here = folder.display();
        let text = format!(
            "daemon off; master_process off; pid {here}/pid; error_log {here}/errors; events {{}}
             http {{
               access_log off; client_max_body_size 8m; client_body_temp_path {here}/body; proxy_temp_path {here}/proxy;
               fastcgi_temp_path {here}/f; uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;
               upstream reactrt {{ server {upstream}; keepalive 8; }}
               server {{
                 listen {address};
                 location / {{
                   proxy_pass http://reactrt; proxy_http_version 1.1; proxy_set_header Connection \"\";
                   proxy_request_buffering off;
                 }}
               }}
             }}"
        );
        std::fs::write(folder.join("nginx.conf"), text).expect("target/tmp can be written");
        let child = Command::new(program)
            .arg("-c")
            .arg(folder.join("nginx.conf"))
            .args(["-p", &folder.display().to_string()])
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx starts");
        let nginx = Nginx { child, address, folder };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(address).is_err() {
            let errors = std::fs::read_to_string(nginx.folder.join("errors")).unwrap_or_default();
            assert!(Instant::now() < deadline, "nginx does not listen: {errors}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn what_the_wire_table_says_of_whole_requests_holds_behind_nginx() {
    let server = start(table::named("plain"));
    let Some(nginx) = Nginx::start(server.address) else { return };
    let (_, rows) = table::sections().into_iter().find(|(name, _)| *name == "plain").expect("a section");
    let passed_on = |row: &&table::Row| row.keeps && !NOT_HERE.contains(&row.name.as_str());
    let rows: Vec<&table::Row> = rows.iter().filter(passed_on).collect();
    let failures: Vec<String> =
        rows.iter().filter_map(|row| table::play_all(nginx.address, row, Hop::Proxy).err()).collect();
    assert!(rows.len() > 60, "{} rows", rows.len());
    assert!(failures.is_empty(), "{} of {} rows differ:\n{}", failures.len(), rows.len(), failures.join("\n"));
    println!("{} rows of the wire table hold behind nginx", rows.len());
}

#[test]
fn nginx_keeps_its_connections_and_passes_chunks_on() {
    let server = start(table::named("plain"));
    let Some(nginx) = Nginx::start(server.address) else { return };
    let mut client = Client::connect(nginx.address);
    let before = metric(&server.get("/metrics"), "reactrt_connections_accepted_total");
    let body = "{\"documents\":[\"a\"]}";
    for _ in 0..200 {
        assert_eq!(client.post("/infer/embed", body).status, 200);
    }
    let after = metric(&server.get("/metrics"), "reactrt_connections_accepted_total");
    assert!(after - before <= 3, "{} connections for 200 requests", after - before);
    // Three megabytes in chunks of odd sizes.
    let text = format!("{{\"documents\":[\"short\"]{}}}", " ".repeat(3_000_000));
    client.send(b"POST /infer/embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    for chunk in text.as_bytes().chunks(77_777) {
        client.send(format!("{:x}\r\n", chunk.len()).as_bytes());
        client.send(chunk);
        client.send(b"\r\n");
    }
    client.send(b"0\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    // And an answer of megabytes.
    let many = format!("{{\"documents\":[{}]}}", vec!["\"text\""; 2_000].join(","));
    let answer = client.post("/infer/embed", &many);
    assert_eq!(answer.json()["embeddings"].as_array().map(Vec::len), Some(2_000));
}
