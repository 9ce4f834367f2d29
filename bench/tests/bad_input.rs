//! Whatever is wrong with a target or a command is said at once, in one line, with exit code 2.

mod common;

use std::net::{SocketAddr, TcpListener};

use common::{Reply, answer, bench, file, right, serve};

/// A port on which nothing listens.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn refused(arguments: &[&str]) -> String {
    let outcome = bench(arguments);
    assert_eq!(outcome.code, Some(2), "{arguments:?}: {}{}", outcome.out, outcome.error);
    assert!(outcome.error.starts_with("error: "), "{}", outcome.error);
    assert!(!outcome.error.contains("panicked"), "{}", outcome.error);
    outcome.error
}

#[test]
fn wrong_targets() {
    let silent = serve(|_| Reply::Silence);
    let targets: Vec<(String, &str)> = vec![
        (format!("http://{}", nobody()), "connection refused"),
        ("https://127.0.0.1:1".into(), "plain HTTP alone"),
        ("http://".into(), "no host"),
        ("127.0.0.1:1".into(), "begins with http://"),
        ("http://no-such-host.invalid".into(), "no-such-host.invalid"),
        (url(|_| Reply::Bytes(answer(404, "{\"detail\":\"model m not found\"}"))), "answered 404: model m not found"),
        (url(|_| Reply::Bytes(answer(422, "{\"error\":{\"message\":\"no\\nway\"}}"))), "answered 422: no way"),
        (url(|_| Reply::Bytes(answer(200, "{\"embeddings\":[[1,2"))), "malformed JSON"),
        (url(|_| Reply::Bytes(answer(200, "{\"embeddings\":[[1],[2]]}"))), "2 results, not 1"),
        (url(|_| Reply::Bytes(answer(200, "{\"embeddings\":[[null]]}"))), "not a finite number"),
        (url(|_| Reply::Bytes(answer(200, "[[1]]"))), "an object expected"),
        (url(|_| Reply::Last(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec())), "closed mid-body"),
        (url(|_| Reply::Last(Vec::new())), "closed before the answer"),
        (url(|_| Reply::Bytes(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec())), "not HTTP/1"),
        (url(|_| Reply::Bytes(answer(500, "{\"detail\":\"\u{1b}[31mboom\"}"))), "\u{fffd}[31mboom"),
        (url(|_| Reply::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n".to_vec())), "length is malformed"),
        (url(|_| Reply::Bytes(chunked("0\r\n", "x: y\r\n"))), "trailers are larger than 64 KiB"),
        (url(|_| Reply::Bytes("HTTP/1.1 100 Continue\r\n\r\n".repeat(17).into())), "more than 16 interim answers"),
        (format!("http://{silent}"), "no answer within the timeout"),
    ];
    for (url, part) in targets {
        let error = refused(&["load", "--url", &url, "--model", "m", "--rate", "10", "--timeout", "300ms"]);
        assert!(error.contains(part), "{url}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
}

/// An answer that goes on without end, or nearly.
fn chunked(begin: &str, unit: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{begin}{}", unit.repeat(20_000)).into()
}

fn url(answer: impl Fn(&common::Request) -> Reply + Send + Sync + 'static) -> String {
    format!("http://{}", serve(answer))
}

#[test]
fn wrong_commands() {
    let url = url(|request| Reply::Bytes(right(request)));
    let load = |rest: &str| {
        let mut arguments = vec!["load", "--url", &url, "--model", "m"];
        arguments.extend(rest.split_whitespace());
        refused(&arguments)
    };
    assert!(load("").contains("the load is missing"));
    assert!(load("--rate 1 --duration 1ms --warmup 0s --requests 1 --texts /no/file").contains("/no/file"));
    assert!(load("--rate fast").contains("--rate"));
    assert!(load("--rate 10 --concurrency 2").contains("cannot be used with"));
    assert!(load("--rate 10 --api cohere").contains("serves reranking only"));
    assert!(load("--rate 10 --api raw").contains("--path is missing"));
    assert!(load("--concurrency 1 --requests 1 --warmup 0s --json /no/folder/x.json").contains("/no/folder/x.json"));
    assert!(load("--concurrency 1 --html /no/folder/x.html").contains("there is no folder /no/folder"));
    assert!(load("--concurrency 1 --hdr /tmp").contains("/tmp: is a folder"));
    let texts = file("texts.txt");
    std::fs::write(&texts, "a text\n").unwrap();
    let texts = texts.display();
    assert!(load(&format!("--concurrency 1 --texts {texts} --json {texts}")).contains("replace the file of --texts"));
    assert_eq!(std::fs::read_to_string(texts.to_string()).unwrap(), "a text\n");
    assert!(load(&format!("--concurrency 1 --json {texts}.json --html {texts}.json")).contains("the file of --json"));
    assert!(refused(&["report", &texts.to_string(), "--html", &texts.to_string()]).contains("the file of the record"));
    assert!(load("--concurrency 1 --requests 1 --warmup 0s --pin 4096").contains("--pin 4096"));
    assert!(load("--rate 1e7 --duration 1h").contains("more than one run may have"));
    assert!(load("--rate 0.001 --duration 1s").contains("no request falls into the measured part"));
    assert!(load("--concurrency 1 --interleave").contains("there is one"));
    assert!(refused(&["sweep", "--url", &url, "--model", "nli=m", "--timeout", "0s"]).contains("--timeout"));
    assert!(refused(&["sweep", "--url", &url, "--model", "m"]).contains("embedding=NAME"));
    assert!(refused(&["sweep", "--url", &url, "--model", "nli=m", "--sizes", "0"]).contains("--sizes"));
}

#[test]
fn more_connections_than_the_shell_allows() {
    let url = url(|request| Reply::Bytes(right(request)));
    let line = format!(
        "ulimit -n 400; exec {} load --url {url} --model m --concurrency 500",
        env!("CARGO_BIN_EXE_reactrt-bench")
    );
    let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("500 connections need 820 open files and this shell allows 400"), "{error}");
}

#[test]
fn wrong_scenarios() {
    let path = file("wrong.yaml");
    std::fs::write(&path, "url: http://127.0.0.1:1\nmodel: m\nconcurency: 3\n").unwrap();
    let path = path.to_str().unwrap();
    let error = refused(&["load", "--scenario", path]);
    assert!(error.contains(&format!("{path}:3: unknown key \"concurency\"; did you mean \"concurrency\"?")), "{error}");
    assert!(refused(&["load", "--scenario", "/no/such.yaml"]).contains("/no/such.yaml"));
}

#[test]
fn wrong_records() {
    let path = file("no-record.json");
    let path = path.to_str().unwrap();
    for (text, part) in [
        ("[1, 2]", "begins with `{`"),
        ("null", "begins with `{`"),
        ("", "not JSON"),
        ("{", "not JSON"),
        ("{}", "it has no `format`"),
        ("{\"format\": 999}", "format 999"),
    ] {
        std::fs::write(path, text).unwrap();
        for command in ["compare", "report"] {
            let error = refused(&[command, path]);
            assert!(error.contains(path) && error.contains(part), "{error}");
        }
    }
    assert!(refused(&["compare", "/no/such.json"]).contains("/no/such.json"));
    assert!(refused(&["compare"]).contains("<RECORD.json>"));
}

#[test]
fn every_command_shows_an_example() {
    for command in ["load", "sweep", "compare", "report"] {
        let help = bench(&[command, "--help"]);
        assert_eq!(help.code, Some(0));
        assert!(help.out.contains(&format!("Example: reactrt-bench {command} ")), "{}", help.out);
    }
}

#[test]
fn a_server_that_goes_away_after_the_probe() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        drop(listener);
        common::talk(stream, &|request| Reply::Last(right(request)), &Default::default());
    });
    for load in ["--rate 100", "--concurrency 4"] {
        // Whichever comes second meets nobody at all.
        let url = format!("http://{address}");
        let mut arguments = vec!["load", "--url", &url, "--model", "m", "--warmup", "0s", "--duration", "300ms"];
        arguments.extend(load.split(' '));
        let error = refused(&arguments);
        assert!(error.contains("connection refused"), "{error}");
    }
}
