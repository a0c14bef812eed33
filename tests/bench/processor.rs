//! Which processor a contender is measured on.

/// Keeps this thread on the processor of this number.
#[cfg(target_os = "linux")]
pub(crate) fn stay_on(number: u32) {
    use nix::sched::{CpuSet, sched_setaffinity};
    use nix::unistd::Pid;

    let mut processor = CpuSet::new();
    let chosen = processor.set(number as usize).and_then(|()| sched_setaffinity(Pid::from_raw(0), &processor));
    if let Err(error) = chosen {
        eprintln!("a thread cannot be kept on processor {number}: {error}");
    }
}

/// The other systems place threads as they like.
#[cfg(not(target_os = "linux"))]
pub(crate) fn stay_on(_number: u32) {}
