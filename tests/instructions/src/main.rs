//! Counts the instructions of the steps of a request by callgrind, and compares them with `instructions.json`. See
//! `tests/bench/instructions`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a program for people"
)]

mod comparison;
mod measured;

use std::{
    collections::BTreeMap,
    env, fs,
    num::NonZeroUsize,
    path::Path,
    process::{Command, ExitCode},
    thread,
};

use comparison::Instructions;
use measured::{Measured, TENANTS};

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => compare(),
        ["--update"] => update(),
        [COUNT, name] => count(name),
        _ => panic!("usage: instructions [--update]"),
    }
}

/// Runs one operation for each tenant. callgrind counts this function.
#[inline(never)]
fn counted_operations(operation: &mut dyn FnMut(usize)) {
    (0..TENANTS).for_each(operation);
}

/// The argument of the process that runs under callgrind.
const COUNT: &str = "--count";

fn count(name: &str) -> ExitCode {
    let measured = measured::ALL.into_iter().find(|measured| measured.name == name).unwrap();
    counted_operations(&mut (measured.prepare)());
    ExitCode::SUCCESS
}

/// Instructions of one operation.
fn instructions(measured: &Measured) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*{}*", "counted_operations"))
        .arg(env::current_exe().unwrap())
        .args([COUNT, measured.name])
        .output()
        .unwrap();
    let output_text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{output_text}");
    let collected = output_text.lines().find_map(|line| line.split_once("Collected : "));
    let collected: u64 = collected.unwrap().1.parse().unwrap();
    assert!(collected > 0, "callgrind has counted nothing");
    collected / u64::try_from(TENANTS).unwrap()
}

/// The counts of this machine.
fn measure() -> Instructions {
    let output_text = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        String::from_utf8(output.stdout).unwrap()
    };
    let compiler = output_text("rustc", "-vV");
    let compiler = |start: &str| compiler.lines().find(|line| line.starts_with(start)).unwrap();
    let at_once = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut counts = BTreeMap::new();
    for some in measured::ALL.chunks(at_once) {
        thread::scope(|scope| {
            let counting: Vec<_> =
                some.iter().map(|it| (it.name, scope.spawn(|| instructions(it)))).collect();
            let counted = counting.into_iter();
            counts.extend(counted.map(|(name, count)| (name.to_owned(), count.join().unwrap())));
        });
    }
    Instructions {
        compiler: format!("{}, {}", compiler("rustc"), compiler("host")),
        valgrind: output_text("valgrind", "--version").trim().to_owned(),
        counts,
    }
}

fn update() -> ExitCode {
    let text = format!("{:#}\n", measure().json());
    fs::write(committed(), &text).unwrap();
    print!("{text}");
    ExitCode::SUCCESS
}

fn compare() -> ExitCode {
    let committed = fs::read_to_string(committed()).unwrap();
    let committed = Instructions::parse(&committed).unwrap();
    let measured = measure();
    let comparison = committed.compare(&measured);
    print!("{comparison}");
    if comparison.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn committed() -> impl AsRef<Path> {
    concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.json")
}
