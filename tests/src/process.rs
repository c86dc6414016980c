//! Child processes that do not outlive their test.

use std::{
    future::Future,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use nix::{sys::signal::Signal, time::ClockId, unistd::Pid};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    task::JoinHandle,
};

/// Timeout of conditions and of processes. Long, because machines are shared.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until `condition` returns a value.
///
/// # Panics
/// The condition returns none within a minute. `what` names it in the message.
pub async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) -> T {
    let started = Instant::now();
    loop {
        if let Some(it) = condition().await {
            return it;
        }
        assert!(started.elapsed() < TIMEOUT, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A running child process and its output.
#[derive(Debug)]
pub struct Process {
    child: Child,
    output: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    /// Starts the command and collects its standard output and standard error.
    ///
    /// # Panics
    /// The command cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = Arc::new(Mutex::new(String::new()));
        let readers = vec![
            collect(child.stdout.take().unwrap(), &output),
            collect(child.stderr.take().unwrap(), &output),
        ];
        Self { child, output, readers }
    }

    /// The output so far.
    #[must_use]
    pub fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until a text was printed this many times, for example in log lines that are written after the event.
    /// Returns the whole output.
    ///
    /// # Panics
    /// The wait takes too long.
    pub async fn printed(&self, text: &str, times: usize) -> String {
        until(&format!("{text} to be printed"), async || {
            let output = self.output();
            (output.matches(text).count() >= times).then_some(output)
        })
        .await
    }

    /// Waits until `find` returns a value for a printed line.
    ///
    /// # Panics
    /// The process ends without such a line, or takes too long.
    pub async fn line<T>(&mut self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        let line = self.line_unless_ended(what, find).await;
        line.unwrap_or_else(|| panic!("ended before {what}\n{}", self.output()))
    }

    /// Waits until `find` returns a value for a printed line, or the process has ended without such a line.
    ///
    /// # Panics
    /// The wait takes too long.
    pub async fn line_unless_ended<T>(
        &mut self,
        what: &str,
        find: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let started = Instant::now();
        loop {
            let ended = self.child.try_wait().unwrap().is_some();
            if ended {
                // The last lines may still be in the pipe.
                futures::future::join_all(self.readers.drain(..)).await;
            }
            let output = self.output();
            if let Some(it) = output.lines().find_map(&find) {
                return Some(it);
            }
            if ended {
                return None;
            }
            assert!(started.elapsed() < TIMEOUT, "waited in vain for {what}\n{output}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Checks that the process has not ended.
    ///
    /// # Panics
    /// The process has ended.
    pub fn assert_running(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "ended: {ended:?}\n{}", self.output());
    }

    /// Its process id.
    ///
    /// # Panics
    /// The process has ended.
    #[must_use]
    pub fn id(&self) -> Pid {
        Pid::from_raw(self.child.id().expect("the process has ended").cast_signed())
    }

    /// CPU time that the process has used so far, in all its threads, including ended ones.
    ///
    /// # Panics
    /// The process has ended.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        let clock = ClockId::pid_cpu_clock_id(self.id()).unwrap();
        Duration::from(clock.now().unwrap())
    }

    /// Resident memory in bytes.
    ///
    /// # Panics
    /// The process has ended.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Peak resident memory since the start, or since [`Self::reset_peak`], in bytes.
    ///
    /// # Panics
    /// The process has ended.
    #[must_use]
    pub fn peak_resident_bytes(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// Sets the peak to the current resident memory.
    ///
    /// # Panics
    /// The process has ended.
    pub fn reset_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.id()), "5").unwrap();
    }

    /// A field of the process's status, in bytes.
    fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let kibibytes = status.lines().find_map(|line| {
            line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        });
        kibibytes.unwrap() * 1024
    }

    /// The number of open file descriptors.
    ///
    /// # Panics
    /// The process has ended.
    #[must_use]
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// The process has ended.
    pub fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(self.id(), signal).unwrap();
    }

    /// Waits until the process has ended and all output was read.
    ///
    /// # Panics
    /// The process does not end.
    pub async fn ended(&mut self) -> ExitStatus {
        let waited = tokio::time::timeout(TIMEOUT, self.child.wait()).await;
        let status = waited.unwrap_or_else(|_| panic!("does not end\n{}", self.output())).unwrap();
        // A child of the process may keep the pipes open.
        let read = futures::future::join_all(self.readers.drain(..));
        let _open = tokio::time::timeout(Duration::from_secs(1), read).await;
        status
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs a command until it ends.
///
/// # Panics
/// The command cannot be started, does not end, or is ended by a signal.
pub async fn finish(mut command: Command) -> Finished {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(TIMEOUT, command.output()).await;
    let output = output.unwrap_or_else(|_| panic!("does not end: {command:?}"));
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Finished {
        code: output.status.code().expect("ended by a signal"),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

/// Appends a stream to `output`, line by line.
fn collect(
    stream: impl AsyncRead + Unpin + Send + 'static,
    output: &Arc<Mutex<String>>,
) -> JoinHandle<()> {
    let output = Arc::clone(output);
    tokio::spawn(async move {
        let mut lines = BufReader::new(stream).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            output.push_str(&line);
            output.push('\n');
        }
    })
}
