//! Hosts to listen on and origins of web pages, as far as their spelling tells whether they can be right.
//!
//! Nothing is looked up: a name that is spelled well may still be nobody's, which is found out when the server binds.
//!
//! Invariants: a host is an IPv4 address, an IPv6 address without brackets, or a name; an origin is, byte by byte, what a
//! browser puts into the header field `Origin`, or `*`.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::tree::shown;

/// The labels of a name, and a name in all (RFC 1035, 2.3.4).
const LABEL_BYTES_MAX: usize = 63;
const NAME_BYTES_MAX: usize = 253;

/// What fits into an answer's head beside everything else.
const ORIGIN_BYTES_MAX: usize = 200;

/// The host to listen on; the error is a sentence.
pub(super) fn host(text: &str) -> Result<String, String> {
    let refuse = |words: &str| Err(format!("{} {words}", shown(text)));
    if text == "*" {
        return refuse("is no address; write 0.0.0.0 for all IPv4 addresses of this machine, :: for those of IPv6 too");
    }
    if text.contains("://") {
        return refuse("is a URL; write its host alone, and its port under server.port");
    }
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let bare = inner.unwrap_or(text);
    if inner.is_some() || bare.contains(':') {
        return match is_ipv6(bare) {
            true => Ok(bare.to_owned()),
            false if has_port(text) => refuse("has a port in it; write the host alone, and its port under server.port"),
            false => refuse("is no IPv6 address, which is what a colon or a bracket stands for"),
        };
    }
    // As in browsers: what ends in a number is an address. The short forms of old (127.1) mean different things to different
    // readers.
    let last = bare.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let hexadecimal = last.strip_prefix("0x").or(last.strip_prefix("0X"));
    let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit())
        || hexadecimal.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if is_number {
        return match bare.parse::<Ipv4Addr>() {
            Ok(_) => Ok(bare.to_owned()),
            Err(_) => refuse("is no IPv4 address, which has four numbers from 0 to 255 without leading zeros"),
        };
    }
    if is_name(bare) {
        return Ok(bare.to_owned());
    }
    match bare.is_ascii() {
        true => refuse("is neither an address nor a name of letters, digits, hyphens and dots"),
        false => refuse("is no name as it is looked up; write letters beyond ASCII in their xn-- form"),
    }
}

/// Also with a zone, as link-local addresses have: `fe80::1%eth0`.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    address.parse::<Ipv6Addr>().is_ok() && !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_graphic())
}

/// `127.0.0.1:80`, `[::1]:80`
fn has_port(text: &str) -> bool {
    let is_host = |host: &str| !host.is_empty() && (!host.contains(':') || host.ends_with(']'));
    text.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A name that can be looked up. `_` is in no host's name by the book, and in many that containers get.
fn is_name(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)
}

/// An origin that some browser can send, or `*`; the error is a sentence.
pub(super) fn origin(text: &str) -> Result<String, String> {
    if text == "*" {
        return Ok(text.to_owned());
    }
    let refuse = |words: &str| Err(format!("{} {words}", shown(text)));
    if text.eq_ignore_ascii_case("null") {
        return refuse(
            "is the origin of every sandboxed page and of every local file, whoever wrote it; list the origins of your own pages, or \"*\" for all",
        );
    }
    if text.len() > ORIGIN_BYTES_MAX {
        return refuse(&format!("has {} bytes, an origin may have {ORIGIN_BYTES_MAX}", text.len()));
    }
    if text.contains('*') {
        return refuse(
            "has a wildcard, which stands for nothing in an origin; list each origin, or \"*\" alone for all",
        );
    }
    let sent = match sent(text) {
        Ok(sent) => sent,
        Err(reason) => return refuse(&format!("is no origin such as https://app.example{reason}")),
    };
    match sent == text {
        true => Ok(sent),
        false => refuse(&format!("is not what browsers send, which is {sent:?}; write that")),
    }
}

/// What the page of such an address sends. The error is empty or goes on in the sentence.
fn sent(text: &str) -> Result<String, String> {
    let (scheme, rest) = text.split_once("://").filter(|(_, rest)| !rest.is_empty()).ok_or("")?;
    let scheme = scheme.to_ascii_lowercase();
    match scheme.as_str() {
        "http" | "https" => {
            let url = url::Url::parse(text).map_err(|error| format!(": {error}"))?;
            match url.port() {
                Some(0) => Err(": no page has port 0".to_owned()),
                Some(_) | None => Ok(url.origin().ascii_serialization()),
            }
        }
        "ws" | "wss" | "ftp" => Err(format!(": no page is of {scheme}")),
        "about" | "blob" | "data" | "file" | "javascript" => {
            Err(format!(": a page of {scheme} has none of its own, it has to come over http or https"))
        }
        _ => of_an_application(&scheme, rest).map(|host| format!("{scheme}://{host}")),
    }
}

/// Host and port of pages that extensions and programs bring with them: `chrome-extension://abc`, `capacitor://localhost`.
fn of_an_application(scheme: &str, rest: &str) -> Result<String, String> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    if !scheme.starts_with(|first: char| first.is_ascii_alphabetic()) || !scheme.bytes().all(is_letter) {
        return Err(String::new());
    }
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default().to_ascii_lowercase();
    if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(String::new());
    }
    let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
    match port.map(str::parse::<u16>) {
        None => Ok(host),
        Some(Ok(number)) if number > 0 && port == Some(&number.to_string()) => Ok(host),
        Some(Ok(_) | Err(_)) => Err(": invalid port number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_or_names() {
        let long = format!("{}.example", "a".repeat(63));
        let right =
            ["0.0.0.0", "127.0.0.1", "::", "::1", "fe80::1%eth0", "::ffff:10.0.0.1", "localhost", "a-b.Example."];
        for text in right.into_iter().chain(["my_service", "xn--mller-kva.example", "1a.b2", long.as_str()]) {
            assert_eq!(host(text).as_deref(), Ok(text));
        }
        assert_eq!(host("[::1]").as_deref(), Ok("::1"));
        let (label, name) = ("a".repeat(64), ["a"; 128].join("."));
        let wrong = [
            ("*", "write 0.0.0.0"),
            ("http://0.0.0.0", "is a URL"),
            ("256.1.1.1", "no IPv4 address"),
            ("0x7f000001", "no IPv4 address"),
            ("127.0x1", "no IPv4 address"),
            ("127.1", "no IPv4 address"),
            ("127.0.0.01", "no IPv4 address"),
            ("0", "no IPv4 address"),
            ("a.b.1", "no IPv4 address"),
            ("127.0.0.1.", "no IPv4 address"),
            ("127.0.0.1:80", "has a port in it"),
            ("localhost:", "has a port in it"),
            ("[::1]:80", "has a port in it"),
            ("::1::", "no IPv6 address"),
            ("[127.0.0.1]", "no IPv6 address"),
            ("fe80::1%", "no IPv6 address"),
            ("unix:/run/x", "no IPv6 address"),
            ("[::1", "no IPv6 address"),
            ("a b", "neither an address nor a name"),
            ("-a", "neither an address nor a name"),
            ("a..b", "neither an address nor a name"),
            (".", "neither an address nor a name"),
            ("/run/x", "neither an address nor a name"),
            (" localhost", "neither an address nor a name"),
            (&label, "neither an address nor a name"),
            (&name, "neither an address nor a name"),
            ("müller.example", "xn--"),
        ];
        for (text, words) in wrong {
            let error = host(text).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn origins_are_what_browsers_send() {
        let right = ["*", "https://a.example", "http://localhost:3000", "http://127.0.0.1:1", "http://[::1]:65535"];
        let others = ["https://xn--mller-kva.example", "chrome-extension://abc", "capacitor://localhost", "app://a:80"];
        for text in right.into_iter().chain(others) {
            assert_eq!(origin(text).as_deref(), Ok(text));
        }
        let corrected = [
            ("https://a.example:443", "https://a.example"),
            ("http://a.example:80", "http://a.example"),
            ("http://a.example:080", "http://a.example"),
            ("https://a.example:08443", "https://a.example:8443"),
            ("https://a.example:", "https://a.example"),
            ("HTTPS://a.example", "https://a.example"),
            ("https://A.example", "https://a.example"),
            ("https://a.example/", "https://a.example"),
            ("https://a.example/page?q#f", "https://a.example"),
            ("https://user:word@a.example", "https://a.example"),
            ("https://müller.example", "https://xn--mller-kva.example"),
            ("http://127.1", "http://127.0.0.1"),
            ("http://[0:0::1]", "http://[::1]"),
            ("https://a.exa\tmple", "https://a.example"),
            ("Capacitor://Localhost/", "capacitor://localhost"),
        ];
        for (text, sent) in corrected {
            let error = origin(text).expect_err(text);
            assert!(error.ends_with(&format!("is not what browsers send, which is {sent:?}; write that")), "{error}");
        }
        let long = format!("https://{}.example", "a".repeat(200));
        let wrong = [
            ("null", "every sandboxed page"),
            ("NULL", "every sandboxed page"),
            ("https://*.example.com", "has a wildcard"),
            ("**", "has a wildcard"),
            ("https://a.example:99999", "invalid port number"),
            ("https://a.example:0", "no page has port 0"),
            ("app://a:0", "invalid port number"),
            ("app://a:080", "invalid port number"),
            ("https://256.1.1.1", "invalid IPv4 address"),
            ("https://", "is no origin such as"),
            ("https://:80", "empty host"),
            ("a.example", "is no origin such as"),
            ("//a.example", "is no origin such as"),
            ("1a://b", "is no origin such as"),
            ("app://a b", "is no origin such as"),
            ("", "is no origin such as"),
            ("file:///home/me/page.html", "has to come over http"),
            ("wss://a.example", "no page is of wss"),
            (&long, "an origin may have 200"),
        ];
        for (text, words) in wrong {
            let error = origin(text).expect_err(text);
            assert!(error.contains(words) && !error.contains(char::is_control), "{error}");
        }
    }
}
