//! The live table: fetches the counters, draws them, and handles keys until the operator quits.

use std::{io, pin::Pin, thread, time::Duration};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::MissedTickBehavior,
};

use super::{
    Kind, TopSettings, escape,
    rows::{self, TopResults},
    screen::{Action, Screen},
};
use sluicegate_client::{AdminClient, describe_error};

/// Interval at which the thread that reads keys checks whether the table has ended.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of unhandled keys.
const KEYS_MAX: usize = 64;

/// Restores the terminal on drop. After a panic ratatui's hook restores it.
struct TerminalGuard;

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the live table.
///
/// # Errors
/// The terminal cannot be used.
pub(super) async fn run(settings: &TopSettings, clients: Vec<AdminClient>) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let _guard = TerminalGuard;
    show(&mut terminal, settings, &clients).await
}

type Fetch<'a> = Pin<Box<dyn Future<Output = TopResults> + 'a>>;

async fn show(
    terminal: &mut DefaultTerminal,
    settings: &TopSettings,
    clients: &[AdminClient],
) -> io::Result<()> {
    let mut screen = Screen::new(settings.kind);
    let mut keys = read_keys();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut ticks = tokio::time::interval(settings.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut fetch: Option<Fetch<'_>> = None;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        tokio::select! {
            event = keys.recv() => {
                let Some(event) = event else { return Ok(()) };
                match screen.handle(&event?) {
                    Action::Quit => return Ok(()),
                    Action::Refresh => fetch = Some(start_fetch(clients, settings, screen.kind)),
                    Action::Draw => {}
                }
            }
            _ = terminate.recv() => return Ok(()),
            results = fetched(&mut fetch), if fetch.is_some() => {
                fetch = None;
                let errors = results.failures.iter().map(|failure| escape(&describe_error(failure))).collect();
                screen.update(results.rows, errors);
            }
            _ = ticks.tick() => {
                if fetch.is_none() && !screen.paused {
                    fetch = Some(start_fetch(clients, settings, screen.kind));
                }
            }
        }
    }
}

fn start_fetch<'a>(clients: &'a [AdminClient], settings: &'a TopSettings, kind: Kind) -> Fetch<'a> {
    Box::pin(rows::fetch(clients, settings, kind))
}

async fn fetched(fetch: &mut Option<Fetch<'_>>) -> TopResults {
    match fetch {
        Some(fetch) => fetch.await,
        None => std::future::pending().await,
    }
}

/// Reads keys on a separate thread, because reading from a terminal blocks.
fn read_keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(KEYS_MAX);
    thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(KEY_POLL_INTERVAL) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let failed = event.is_err();
            if sender.blocking_send(event).is_err() || failed {
                return;
            }
        }
    });
    receiver
}
