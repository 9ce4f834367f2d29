//! Who may ask: API keys, the origins of web pages, and what a body may say that it is.
//!
//! Pure checks of header fields against what the configuration lists. May not show a key: neither [`Keys`] nor a refusal
//! holds one that a client sent, and the debug form of [`Keys`] is their number.
//!
//! Invariant: how long [`Keys::check`] takes depends on the lengths of the keys, not on how much of one was right. Without
//! keys and origins nothing is looked at.

use subtle::{Choice, ConstantTimeEq};

use super::{Reject, Words};
use crate::planted::{self, Bug};

/// The keys of which a request must show one; none: everybody may ask.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keys(Vec<String>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} keys", self.0.len())
    }
}

impl Keys {
    pub fn new(keys: Vec<String>) -> Keys {
        Keys(keys)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request for `path` with these header fields may pass. Health is everybody's: those who ask for it are load
    /// balancers.
    pub fn check(&self, path: &[u8], authorization: Option<&[u8]>, api_key: Option<&[u8]>) -> Result<(), Reject> {
        if self.is_empty() || path == b"/health" || path.starts_with(b"/health/") {
            return Ok(());
        }
        let shown = [authorization.map(bearer), api_key];
        let known = shown.into_iter().flatten().fold(Choice::from(0), |known, shown| known | self.holds(shown));
        match bool::from(known) {
            true => Ok(()),
            false => Err(Reject::Unauthorized { given: authorization.is_some() || api_key.is_some() }),
        }
    }

    /// Compares with every key to its end.
    fn holds(&self, shown: &[u8]) -> Choice {
        let is_begun = planted::is(Bug::TakesPrefixes) && self.0.iter().any(|key| key.as_bytes().starts_with(shown));
        let known = Choice::from(u8::from(is_begun));
        self.0.iter().fold(known, |known, key| known | key.as_bytes().ct_eq(shown))
    }
}

/// What follows `Bearer` (RFC 6750, 2.1); empty, which no key is, under another scheme.
fn bearer(authorization: &[u8]) -> &[u8] {
    match authorization.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
        Some(_) | None => b"",
    }
}

/// The web pages that may read answers, by their origins (`https://example.com`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    any: bool,
    listed: Vec<String>,
}

/// What an answer says of the page that asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permit {
    /// Nothing: there is no page, or it is none of those.
    #[default]
    None,
    /// Every page may read it.
    Any,
    /// This one may, by its place in the list.
    Listed(u32),
}

impl Origins {
    /// `*` among them stands for all.
    pub fn new(origins: &[String]) -> Origins {
        let any = origins.iter().any(|origin| origin == "*");
        Origins { any, listed: if any { Vec::new() } else { origins.to_vec() } }
    }

    pub fn permit(&self, origin: Option<&[u8]>) -> Permit {
        let Some(origin) = origin else { return Permit::None };
        if self.any {
            return Permit::Any;
        }
        let place = self.listed.iter().position(|listed| listed.as_bytes() == origin);
        place.map_or(Permit::None, |place| Permit::Listed(place as u32))
    }

    /// Whether answers differ by the page that asks.
    pub fn distinguish(&self) -> bool {
        !self.listed.is_empty()
    }

    /// The value of `access-control-allow-origin`.
    pub fn value(&self, permit: Permit) -> Option<&str> {
        match permit {
            Permit::None => None,
            Permit::Any => Some("*"),
            Permit::Listed(place) => Some(&self.listed[place as usize]),
        }
    }
}

/// Refuses a body that says it is something else than JSON. What the common clients send unasked (curl's form, a text) passes:
/// whether it is JSON its bytes will show.
pub fn check_content_type(content_type: Option<&[u8]>) -> Result<(), Reject> {
    let Some(said) = content_type else { return Ok(()) };
    let kind = said.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let is = |known: &str| kind.eq_ignore_ascii_case(known.as_bytes());
    let is_json = is("application/json") || kind.len() > 5 && kind[kind.len() - 5..].eq_ignore_ascii_case(b"+json");
    let says_nothing = ["", "application/x-www-form-urlencoded", "text/plain", "text/json", "application/octet-stream"];
    if is_json || says_nothing.into_iter().any(is) {
        return Ok(());
    }
    Err(Reject::NotJson { found: Words::new(kind) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new(vec!["first-key".into(), "second".into()])
    }

    #[test]
    fn a_key_is_taken_from_either_field_and_from_no_other_scheme() {
        let check = |authorization: Option<&str>, api_key: Option<&str>| {
            keys().check(b"/models", authorization.map(str::as_bytes), api_key.map(str::as_bytes))
        };
        for right in ["Bearer first-key", "bearer second", "BEARER   second  "] {
            assert_eq!(check(Some(right), None), Ok(()), "{right}");
        }
        assert_eq!(check(None, Some("second")), Ok(()));
        assert_eq!(check(Some("Basic abc"), Some("second")), Ok(()));
        assert_eq!(check(None, None), Err(Reject::Unauthorized { given: false }));
        for wrong in ["Bearer", "Bearer ", "", "Bearer first-ke", "Bearer first-key2", "Basic first-key", "first-key"] {
            assert_eq!(check(Some(wrong), None), Err(Reject::Unauthorized { given: true }), "{wrong}");
            assert_eq!(check(None, Some(wrong)).is_ok(), wrong == "first-key", "{wrong}");
        }
    }

    #[test]
    fn health_is_open_and_without_keys_everything_is() {
        for path in ["/health", "/health/live", "/health/ready"] {
            assert_eq!(keys().check(path.as_bytes(), None, None), Ok(()));
        }
        for path in ["/healthy", "/metrics", "/", "/infer/health", "/%68ealth"] {
            assert!(keys().check(path.as_bytes(), None, None).is_err(), "{path}");
        }
        assert_eq!(Keys::default().check(b"/metrics", None, None), Ok(()));
        assert_eq!(Keys::default().check(b"/metrics", Some(b"Bearer x"), None), Ok(()));
        assert_eq!(format!("{:?}", keys()), "2 keys", "keys are not shown");
    }

    #[test]
    fn origins_are_permitted_as_they_are_listed() {
        let listed = Origins::new(&["https://a.example".into(), "http://localhost:3000".into()]);
        assert_eq!(listed.permit(Some(b"http://localhost:3000")), Permit::Listed(1));
        assert_eq!(listed.value(Permit::Listed(1)), Some("http://localhost:3000"));
        for other in ["https://a.example.evil", "http://a.example", "https://A.example", "null", ""] {
            assert_eq!(listed.permit(Some(other.as_bytes())), Permit::None, "{other}");
        }
        assert_eq!(listed.permit(None), Permit::None);
        assert!(listed.distinguish());
        let any = Origins::new(&["https://a.example".into(), "*".into()]);
        assert_eq!(any.value(any.permit(Some(b"https://else.example"))), Some("*"));
        assert!(!any.distinguish() && !Origins::default().distinguish());
        assert_eq!(Origins::default().permit(Some(b"https://a.example")), Permit::None);
    }

    #[test]
    fn what_says_that_it_is_no_json_is_refused() {
        for taken in ["", "application/json", "Application/JSON; charset=utf-8", "text/plain", "application/vnd.x+json"]
        {
            assert_eq!(check_content_type(Some(taken.as_bytes())), Ok(()), "{taken}");
        }
        assert_eq!(check_content_type(None), Ok(()));
        assert_eq!(check_content_type(Some(b"application/x-www-form-urlencoded")), Ok(()), "curl -d says so");
        for refused in ["multipart/form-data; boundary=x", "text/html", "application/xml", "json", "+json"] {
            assert!(check_content_type(Some(refused.as_bytes())).is_err(), "{refused}");
        }
    }
}
