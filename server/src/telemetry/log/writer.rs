//! Writes the log on its own thread, so that decisions never wait for the reader of the log.
//!
//! It escapes the control characters of all lines, including those of libraries.

use std::{
    borrow::Cow,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use sluicegate_proto::text::{printable, printable_json};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use crate::{settings::LogFormat, telemetry::count::Count};

/// The target of audit lines, which are logged at every level.
pub(crate) const AUDIT_TARGET: &str = "sluicegate::audit";

/// The most bytes in the queue.
const WAITING_MAX: usize = 4 << 20;

/// The most bytes in the queue when an audit line is added. The difference is reserved for audit lines.
const AUDIT_WAITING_MAX: usize = 5 << 20;

/// The time at the end of the process to write the queue.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(1);

enum Message {
    Line(Vec<u8>),
    /// Asks for a reply when all earlier lines are written.
    Flush(Sender<()>),
}

#[derive(Debug, Default)]
struct QueueCounts {
    /// Bytes in the queue.
    waiting: AtomicUsize,
    /// Dropped lines.
    dropped: Count,
}

/// Queues lines without waiting. If the queue is full, lines are dropped and counted.
#[derive(Clone, Debug)]
pub(super) struct LogWriter {
    messages: Sender<Message>,
    lines: Arc<QueueCounts>,
    format: LogFormat,
}

impl LogWriter {
    /// Starts the thread that writes lines of this format to `to`.
    pub(super) fn start(
        to: impl Write + Send + 'static,
        format: LogFormat,
    ) -> io::Result<(Self, LogGuard)> {
        let (messages, received) = mpsc::channel();
        let lines = Arc::<QueueCounts>::default();
        let written = Arc::clone(&lines);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write(&received, &written, to))?;
        let guard = LogGuard(messages.clone());
        Ok((Self { messages, lines, format }, guard))
    }

    /// The number of lines that were dropped because the queue was full or writing failed.
    pub(super) fn dropped(&self) -> u64 {
        self.lines.dropped.get()
    }

    /// Queues a line, if the queue then has at most `waiting_max` bytes.
    fn put(&self, line: &[u8], waiting_max: usize) {
        let line = &*escape(line, self.format);
        let before = self.lines.waiting.fetch_add(line.len(), Ordering::Relaxed);
        let fits = before.saturating_add(line.len()) <= waiting_max;
        if !fits || self.messages.send(Message::Line(line.to_vec())).is_err() {
            self.lines.waiting.fetch_sub(line.len(), Ordering::Relaxed);
            self.lines.dropped.add(1);
        }
    }
}

/// Escapes control characters of a line, except for the newline at its end.
fn escape(line: &[u8], format: LogFormat) -> Cow<'_, [u8]> {
    let Ok(text) = str::from_utf8(line) else {
        // Does not happen: all formats write UTF-8.
        return Cow::Owned(line.escape_ascii().collect());
    };
    let text = text.strip_suffix('\n').unwrap_or(text);
    let escaped = match format {
        LogFormat::Text => printable(text),
        LogFormat::Json => printable_json(text),
    };
    match escaped {
        Cow::Borrowed(_) => Cow::Borrowed(line),
        Cow::Owned(escaped) => Cow::Owned((escaped + "\n").into_bytes()),
    }
}

fn write(messages: &Receiver<Message>, lines: &QueueCounts, mut to: impl Write) {
    for message in messages {
        match message {
            Message::Line(line) => {
                if to.write_all(&line).is_err() {
                    lines.dropped.add(1);
                }
                lines.waiting.fetch_sub(line.len(), Ordering::Relaxed);
            }
            Message::Flush(written) => _ = written.send(()),
        }
    }
}

/// Dropping this waits until all lines are written, but at most [`END_TIMEOUT`].
#[must_use]
pub(crate) struct LogGuard(Sender<Message>);

impl Drop for LogGuard {
    fn drop(&mut self) {
        let (reply, written) = mpsc::channel();
        if self.0.send(Message::Flush(reply)).is_ok() {
            let _elapsed = written.recv_timeout(END_TIMEOUT);
        }
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { writer: self, waiting_max: WAITING_MAX }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> LineWriter<'a> {
        let audit = event.target() == AUDIT_TARGET;
        LineWriter {
            writer: self,
            waiting_max: if audit { AUDIT_WAITING_MAX } else { WAITING_MAX },
        }
    }
}

/// The writer of one line, which `tracing-subscriber` writes in one call.
pub(super) struct LineWriter<'a> {
    writer: &'a LogWriter,
    waiting_max: usize,
}

impl Write for LineWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.writer.put(line, self.waiting_max);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Blocks while a test holds the lock.
    struct Slow(Arc<Mutex<Vec<u8>>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start(to: impl Write + Send + 'static) -> (LogWriter, LogGuard) {
        LogWriter::start(to, LogFormat::Text).unwrap()
    }

    #[test]
    fn control_characters_are_escaped() {
        let escape = |line: &[u8], format| String::from_utf8(escape(line, format).into()).unwrap();
        let line = "a\u{202e}b\u{1b}\n".as_bytes();
        assert_eq!(escape(line, LogFormat::Text), "a\\u{202e}b\\u{1b}\n");
        let line = "{\"a\":\"\u{2028}\"}\n".as_bytes();
        assert_eq!(escape(line, LogFormat::Json), "{\"a\":\"\\u2028\"}\n");
        assert_eq!(escape(b"a\xff\n", LogFormat::Text), "a\\xff\\n");
        assert_eq!(escape("é\n".as_bytes(), LogFormat::Json), "é\n");
    }

    #[test]
    fn lines_beyond_the_queue_are_counted_and_audit_lines_have_a_reserve() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let (writer, guard) = start(Slow(Arc::clone(&written)));
        let line = vec![b'x'; 1024];
        let most = WAITING_MAX / line.len();
        let unread = written.lock().unwrap();
        for _ in 0..most + 3 {
            writer.put(&line, WAITING_MAX);
        }
        assert_eq!(writer.dropped(), 3);
        writer.put(b"audit", AUDIT_WAITING_MAX);
        assert_eq!(writer.dropped(), 3);
        drop(unread);
        drop(guard);
        let written = written.lock().unwrap();
        assert_eq!(written.len(), most * line.len() + "audit".len());
        assert!(written.ends_with(b"xaudit"));
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let (writer, guard) = start(&mut [][..]);
        writer.put(b"lost", WAITING_MAX);
        drop(guard);
        assert_eq!(writer.dropped(), 1);
    }
}
