//! Lines of bytes: of any encoding, of bounded length, packed or not. What they say is not known here.

use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

/// Longer than any line that a server writes (nginx and Apache take request lines of 8 KiB), short enough that a file
/// without newlines costs nothing.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// Read at once. Above [`MAX_LINE`], so that a line of that length always fits.
const BUFFER: usize = 256 * 1024;

/// The first two bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The bytes of `file`, unpacked if they are packed, whatever the file is called.
///
/// # Errors
/// When the file cannot be read.
pub fn unpacked<'a>(mut file: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut start = Vec::new();
    file.by_ref().take(GZIP.len() as u64).read_to_end(&mut start)?;
    let packed = start == GZIP;
    let file = io::Cursor::new(start).chain(file);
    // Lines have a buffer of their own, which is where plain bytes go at once.
    Ok(if packed { Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, file))) } else { Box::new(file) })
}

/// The lines of a source, one at a time, from a buffer that does not grow.
pub(super) struct Lines<R> {
    source: R,
    buffer: Box<[u8]>,
    /// What was read and not yet given out.
    start: usize,
    end: usize,
    /// The line that was given out last.
    line: std::ops::Range<usize>,
    too_long: bool,
    number: u64,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(source: R) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Self { source, buffer, start: 0, end: 0, line: 0..0, too_long: false, number: 0 }
    }

    /// Goes to the next line; false at the end.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        self.too_long = false;
        let mut searched = self.start;
        loop {
            if let Some(offset) = memchr::memchr(b'\n', &self.buffer[searched..self.end]) {
                let newline = searched + offset;
                self.take(newline, newline + 1);
                return Ok(true);
            }
            if self.end - self.start > MAX_LINE {
                // The rest of the line is read over.
                self.too_long = true;
                self.start = self.end;
            }
            searched = self.end;
            if self.end == self.buffer.len() {
                self.buffer.copy_within(self.start..self.end, 0);
                (searched, self.start, self.end) = (self.end - self.start, 0, self.end - self.start);
            }
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    let last = self.too_long || self.end > self.start;
                    if last {
                        self.take(self.end, self.end);
                    }
                    return Ok(last);
                }
                Ok(length) => self.end += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self, end: usize, next: usize) {
        self.too_long |= end - self.start > MAX_LINE;
        self.line = self.start..end;
        self.start = next;
        self.number += 1;
    }

    /// The line without its end; `None` when it was too long to keep.
    pub(super) fn line(&self) -> Option<&[u8]> {
        let line = &self.buffer[self.line.clone()];
        (!self.too_long).then(|| line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// The number of the line, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lines(source: impl Read) -> Vec<(u64, Option<Vec<u8>>)> {
        let mut lines = Lines::new(source);
        let mut all = Vec::new();
        while lines.advance().expect("a source that can be read") {
            all.push((lines.number(), lines.line().map(<[u8]>::to_vec)));
        }
        all
    }

    /// Gives one byte at a time, as a slow pipe may.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = buffer.len().min(1);
            (&mut self.0).take(1).read(&mut buffer[..length])
        }
    }

    #[test]
    fn the_last_line_needs_no_newline_and_a_carriage_return_is_part_of_the_end() {
        let expected = vec![(1, Some(b"a".to_vec())), (2, Some(b"".to_vec())), (3, Some(b"b\rc".to_vec()))];
        assert_eq!(lines(&b"a\r\n\nb\rc"[..]), expected);
        assert_eq!(lines(&b"a\r\n\nb\rc\n"[..]), expected);
        assert_eq!(lines(Slow(b"a\r\n\nb\rc")), expected);
        assert_eq!(lines(&b""[..]), []);
    }

    #[test]
    fn a_line_longer_than_the_bound_is_told_and_the_next_one_is_whole() {
        for length in [MAX_LINE - 1, MAX_LINE, MAX_LINE + 1, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER + 7] {
            let mut text = b"first\n".to_vec();
            text.resize(text.len() + length, b'x');
            text.extend_from_slice(b"\nlast");
            let all = lines(&text[..]);
            assert_eq!(all.len(), 3, "{length}");
            assert_eq!(all[0], (1, Some(b"first".to_vec())));
            assert_eq!(all[1].1.as_ref().map(Vec::len), (length <= MAX_LINE).then_some(length), "{length}");
            assert_eq!(all[2], (3, Some(b"last".to_vec())));
        }
        assert_eq!(lines(&vec![b'x'; 2 * BUFFER][..]), [(1, None)]);
    }

    #[test]
    fn packed_files_are_told_by_their_first_bytes_and_may_have_several_members() {
        let pack = |text: &[u8]| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(text).expect("memory takes it");
            packer.finish().expect("memory takes it")
        };
        let packed = [pack(b"a\nb"), pack(b"c\nd\n")].concat();
        let expected = vec![(1, Some(b"a".to_vec())), (2, Some(b"bc".to_vec())), (3, Some(b"d".to_vec()))];
        assert_eq!(lines(unpacked(&packed[..]).expect("readable")), expected);
        assert_eq!(lines(unpacked(Slow(&packed)).expect("readable")), expected);
        for plain in ["", "x", "\u{1f}", "xy\nz"] {
            let mut text = String::new();
            unpacked(plain.as_bytes()).expect("readable").read_to_string(&mut text).expect("readable");
            assert_eq!(text, plain);
        }
        let cut = &packed[..packed.len() - 5];
        let mut lines = Lines::new(unpacked(cut).expect("the start is there"));
        let error = loop {
            match lines.advance() {
                Ok(more) => assert!(more, "a file that was cut has no end"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
