//! Where a request ends, judged anew: the HTTP crate takes almost anything for a length, and its idea of where the next
//! request begins must not differ from that of a proxy in front (RFC 9112, section 6.3; request smuggling).

use tiny_http::Header;

/// A body up to this long was read by the crate before the request was handed over, unless `Expect` was sent.
pub(super) const READ_AHEAD: u64 = 1024;

/// What follows the head on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Nothing that is still to be read: the next byte is the next request.
    Clean,
    /// This many bytes of body are declared and may still be on the way.
    Length(u64),
    /// A chunked body of unknown length may still be on the way.
    Chunked,
    /// Nobody can say where the next request begins.
    Unusable(&'static str),
}

impl Framing {
    pub(super) fn of(headers: &[Header]) -> Self {
        let mut length = None;
        let mut coding = None;
        let mut expects = false;
        for header in headers {
            let name = header.field.as_str().as_str();
            let value = header.value.as_str();
            if name.is_empty() || name.bytes().any(|byte| !is_token(byte)) {
                return Self::Unusable("a header line with a name that is none, or a folded line");
            }
            if value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
                return Self::Unusable("a bare line end or NUL in a header line");
            }
            if name.eq_ignore_ascii_case("Content-Length") {
                if length.is_some() {
                    return Self::Unusable("more than one Content-Length");
                }
                length = Some(value);
            } else if name.eq_ignore_ascii_case("Transfer-Encoding") {
                if coding.is_some() {
                    return Self::Unusable("more than one Transfer-Encoding");
                }
                coding = Some(value);
            } else if name.eq_ignore_ascii_case("Expect") {
                expects = true;
            }
        }
        match (length, coding) {
            (Some(_), Some(_)) => Self::Unusable("both Content-Length and Transfer-Encoding"),
            (None, Some(coding)) if coding.eq_ignore_ascii_case("chunked") => Self::Chunked,
            (None, Some(_)) => Self::Unusable("a Transfer-Encoding other than chunked"),
            (Some(length), None) => match digits(length) {
                None => Self::Unusable("a Content-Length that is no number"),
                Some(0) => Self::Clean,
                Some(length) if length <= READ_AHEAD && !expects => Self::Clean,
                Some(length) => Self::Length(length),
            },
            (None, None) => Self::Clean,
        }
    }
}

/// A number written in digits alone; the standard parser would take a plus sign.
fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::Framing::{self, Chunked, Clean, Length, Unusable};

    fn framing(lines: &[&str]) -> Framing {
        let headers: Vec<tiny_http::Header> = lines.iter().map(|line| line.parse().expect("a header line")).collect();
        Framing::of(&headers)
    }

    #[test]
    fn what_follows_a_head_is_told_by_plain_lengths_and_plain_chunked_only() {
        for (lines, expected) in [
            (&["Host: a"][..], Clean),
            (&["Content-Length: 0"], Clean),
            (&["Content-Length: 1024"], Clean),
            (&["Content-Length: 1025"], Length(1025)),
            (&["content-length: 3", "Expect: 100-continue"], Length(3)),
            (&["Content-Length: 18446744073709551615"], Length(u64::MAX)),
            (&["Transfer-Encoding: Chunked"], Chunked),
        ] {
            assert_eq!(framing(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn whatever_two_readers_could_read_in_two_ways_is_unusable() {
        for lines in [
            &["Content-Length: abc"][..],
            &["Content-Length: -1"],
            &["Content-Length: +5"],
            &["Content-Length: 5, 5"],
            &["Content-Length: 18446744073709551616"],
            &["Content-Length: 0x5"],
            &["Content-Length: 5", "Content-Length: 5"],
            &["Content-Length: 5", "Transfer-Encoding: chunked"],
            &["Transfer-Encoding: identity"],
            &["Transfer-Encoding: chunked, gzip"],
            &["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"],
            &["X: a\rTransfer-Encoding: chunked"],
            &["X: a\nContent-Length: 5"],
            &[": nameless"],
        ] {
            assert!(matches!(framing(lines), Unusable(_)), "{lines:?}");
        }
    }
}
