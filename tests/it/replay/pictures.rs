//! Pictures: well-formed whatever the traffic is.

use std::fs;
use std::path::PathBuf;

use super::{printed, run, said};

/// A file of this test alone, which goes when it is done.
struct Picture(PathBuf);

impl Picture {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("tollgate-{}-{name}.svg", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }

    fn read(&self) -> String {
        fs::read_to_string(&self.0).expect("a picture")
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_picture_is_well_formed_and_has_a_mark_for_each_request_whoever_the_client_is() {
    let picture = Picture::new("marks");
    for name in ["a", "<b>&'\u{ffff}\u{1}\u{1b}[31m", &"long ".repeat(1_000)] {
        let input: String = (0..15).map(|n| format!("{},\"{name}\"\n", n * 1_000_000)).collect();
        let output = run(&[("WINDOW", "10s")], &["--plot", picture.path()], input.as_bytes());
        assert_eq!(printed(&output), "");
        let text = picture.read();
        let document = roxmltree::Document::parse(&text).expect("well-formed XML");
        let marks = |class: &str, tag: &str| {
            let marks = document.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", tag)));
            marks.filter(|mark| mark.attribute("class") == Some(class)).count()
        };
        // Fifteen in each of four lanes, and one of each in the legend.
        assert_eq!(marks("in", "rect") + marks("out", "circle"), 4 * 15 + 2);
        // The bucket and the fixed window let in all, the log and the counter ten and a few.
        assert!(marks("out", "circle") > 1);
        assert!(text.contains("15 of 15 let in, at most 10 in a window"), "{text}");
    }
}

#[test]
fn a_picture_of_many_requests_has_bars_and_the_busiest_client_unless_another_is_named() {
    let picture = Picture::new("bars");
    let input: String =
        (0..5_000).map(|n| format!("{},{}\n", n * 10_000, if n % 3 == 0 { "few" } else { "many" })).collect();
    run(&[], &["--plot", picture.path()], input.as_bytes());
    let text = picture.read();
    roxmltree::Document::parse(&text).expect("well-formed XML");
    assert!(text.contains("many: 3333 requests"), "{text}");
    assert!(text.len() < 200_000, "a picture does not grow with the traffic");
    run(&[], &["--plot", picture.path(), "--client", "few"], input.as_bytes());
    assert!(picture.read().contains("few: 1667 requests"));
    let output = run(&[], &["--plot", picture.path(), "--client", "nobody"], input.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output), "tollgate: the input has no client 'nobody'\n");
    assert!(picture.read().contains("few: 1667 requests"), "a failure leaves the file alone");
}

#[test]
fn a_picture_ends_at_the_last_time_there_is_and_a_dash_is_standard_output() {
    for input in [format!("0,a\n{},a\n", u64::MAX), format!("{},a\n", u64::MAX), "0,a\n".to_owned()] {
        let output = run(&[], &["--plot", "-"], input.as_bytes());
        roxmltree::Document::parse(printed(&output)).expect("well-formed XML");
    }
}
