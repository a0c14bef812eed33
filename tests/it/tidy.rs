//! The rules of the house that a compiler does not check.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::service::command;

/// The rooms from the ground up: a room uses only what stands before it. Those of one line do not know each other.
const ROOMS: &[&[&str]] = &[
    &["clock"],
    &["policy", "decision", "client"],
    &["algorithm"],
    &["store"],
    &["limiter"],
    &["http", "replay"],
    &["config"],
];

/// The only places that name these crates.
const FOREIGN: &[(&str, &str)] = &[("tiny_http", "src/http/server"), ("use redis::", "src/store/redis")];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn room_of(path: &Path) -> String {
    let inside = path.strip_prefix(root().join("src")).expect("below src");
    let first = inside.components().next().expect("a file or folder").as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

fn rank(room: &str) -> Option<usize> {
    ROOMS.iter().position(|rooms| rooms.contains(&room))
}

#[test]
fn a_room_uses_only_the_rooms_above_it() {
    let mut wrong = Vec::new();
    for path in sources(&root().join("src")) {
        let room = room_of(&path);
        let Some(own) = rank(&room) else {
            assert!(matches!(&*room, "lib" | "main"), "{} is in no room: add it to the list", path.display());
            continue;
        };
        let text = fs::read_to_string(&path).expect("a source");
        for used in text.split("crate::").skip(1) {
            let used: String = used.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            if rank(&used).is_some_and(|other| used != room && other > own) {
                wrong.push(format!("{} uses {used}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn only_one_room_names_each_foreign_crate_and_only_main_ends_the_process() {
    let mut wrong = Vec::new();
    for path in sources(&root().join("src")) {
        let text = fs::read_to_string(&path).expect("a source");
        let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for (name, place) in FOREIGN {
            if code.contains(name) && !path.starts_with(root().join(place)) && !path.ends_with(format!("{place}.rs")) {
                wrong.push(format!("{} names {name}", path.display()));
            }
        }
        if code.contains("process::exit") && !path.ends_with("src/main.rs") {
            wrong.push(format!("{} ends the process", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_algorithm_has_its_file_its_script_and_its_histories() {
    for stem in ["token_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter"] {
        assert!(root().join(format!("src/algorithm/{stem}.rs")).exists(), "{stem}");
        assert!(root().join(format!("src/store/redis/lua/{stem}.lua")).exists(), "{stem}");
        let prefix = stem.replace('_', "-");
        let histories = fs::read_dir(root().join("tests/vectors"))
            .expect("the histories")
            .filter(|file| file.as_ref().is_ok_and(|file| file.file_name().to_string_lossy().starts_with(&*prefix)));
        assert!(histories.count() > 0, "no history of {prefix}");
    }
}

#[test]
fn the_settings_of_the_readme_are_those_of_the_help() {
    let readme = fs::read_to_string(root().join("README.md")).expect("a README");
    let mut told = BTreeMap::new();
    for row in readme.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].trim_matches('`');
        if name.chars().all(|c| matches!(c, 'A'..='Z' | '0'..='9' | '_')) && cells.len() == 3 {
            let default = cells[1].strip_prefix('`').and_then(|cell| cell.strip_suffix('`'));
            told.insert(name.to_owned(), default.map(str::to_owned));
        }
    }
    let help = command(&[]).arg("--help").output().expect("the program runs");
    let help = String::from_utf8(help.stdout).expect("text");
    let mut real = BTreeMap::new();
    for line in help.lines() {
        let Some((_, rest)) = line.split_once("[env: ") else { continue };
        let name = rest.split(']').next().expect("a name").to_owned();
        let default = line.split_once("[default: ").and_then(|(_, rest)| rest.strip_suffix(']'));
        assert!(line.contains(&format!("--{}", name.to_lowercase().replace('_', "-"))), "{line}");
        real.insert(name, default.map(str::to_owned));
    }
    assert!(real.len() > 5, "{help}");
    assert_eq!(told, real);
}
