//! Writes the log on its own thread, so that decisions never wait for the reader of the log.
//!
//! Escapes invisible characters of every line: of messages and fields of this project and of
//! libraries, and of names of modules.

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
pub(crate) const AUDIT: &str = "sluicegate::audit";

/// How much of the log may wait to be written, in bytes.
const WAITING_MAX: usize = 4 << 20;

/// Bytes reserved for audit lines in the queue, which other lines cannot use.
const AUDIT_WAITING_MAX: usize = 5 << 20;

/// For how long the end of the process waits for what is not written yet.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(1);

enum Message {
    Line(Vec<u8>),
    /// Everything before it is written: say so.
    End(Sender<()>),
}

#[derive(Debug, Default)]
struct QueueCounts {
    /// Bytes that wait to be written.
    waiting: AtomicUsize,
    /// Lines that were dropped.
    dropped: Count,
}

/// Takes lines, and never waits. Lines for which there is no room are dropped and counted.
#[derive(Clone, Debug)]
pub(super) struct LogWriter {
    messages: Sender<Message>,
    lines: Arc<QueueCounts>,
    format: LogFormat,
}

impl LogWriter {
    /// A thread that writes there, lines of this format.
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

    /// Lines that were not written, for want of room or because the stream took none.
    pub(super) fn dropped(&self) -> u64 {
        self.lines.dropped.get()
    }

    fn put(&self, line: &[u8], waiting_max: usize) {
        let line = &*visible(line, self.format);
        let before = self.lines.waiting.fetch_add(line.len(), Ordering::Relaxed);
        let fits = before.saturating_add(line.len()) <= waiting_max;
        if !fits || self.messages.send(Message::Line(line.to_vec())).is_err() {
            self.lines.waiting.fetch_sub(line.len(), Ordering::Relaxed);
            self.lines.dropped.add(1);
        }
    }
}

/// The line without what is not visible in it, but for its end.
fn visible(line: &[u8], format: LogFormat) -> Cow<'_, [u8]> {
    let Ok(text) = str::from_utf8(line) else {
        // No part of the log writes that.
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
            Message::End(written) => _ = written.send(()),
        }
    }
}

/// On drop, waits until all lines are written, for a bounded time if the log is not read.
#[must_use]
pub(crate) struct LogGuard(Sender<Message>);

impl Drop for LogGuard {
    fn drop(&mut self) {
        let (written, all) = mpsc::channel();
        if self.0.send(Message::End(written)).is_ok() {
            let _too_late = all.recv_timeout(END_TIMEOUT);
        }
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter { writer: self, waiting_max: WAITING_MAX }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> LineWriter<'a> {
        let audit = event.target() == AUDIT;
        LineWriter {
            writer: self,
            waiting_max: if audit { AUDIT_WAITING_MAX } else { WAITING_MAX },
        }
    }
}

/// Takes one line, which is written in one piece.
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
    fn what_is_not_visible_is_escaped() {
        let visible =
            |line: &[u8], format| String::from_utf8(visible(line, format).into()).unwrap();
        let line = "a\u{202e}b\u{1b}\n".as_bytes();
        assert_eq!(visible(line, LogFormat::Text), "a\\u{202e}b\\u{1b}\n");
        let line = "{\"a\":\"\u{2028}\"}\n".as_bytes();
        assert_eq!(visible(line, LogFormat::Json), "{\"a\":\"\\u2028\"}\n");
        assert_eq!(visible(b"a\xff\n", LogFormat::Text), "a\\xff\\n");
        assert_eq!(visible("é\n".as_bytes(), LogFormat::Json), "é\n");
    }

    #[test]
    fn lines_beyond_the_room_are_counted_and_those_of_operators_have_more() {
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
    fn what_the_stream_does_not_take_is_counted() {
        let (writer, guard) = start(&mut [][..]);
        writer.put(b"lost", WAITING_MAX);
        drop(guard);
        assert_eq!(writer.dropped(), 1);
    }
}
