//! The live table: asks, draws and listens to keys, until it is told to end.

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
    Kind, TopSettings,
    rows::{self, Asked},
    safe,
    screen::{Screen, Then},
};
use sluicegate_client::{AdminClient, describe_error};

/// How soon the thread that listens to keys sees that nobody wants them any more.
const KEYS_INTERVAL: Duration = Duration::from_millis(100);

/// Keys that wait to be looked at.
const KEYS_MAX: usize = 64;

/// Gives the terminal back as it was, however this ends; after a panic the library does.
struct Restored;

impl Drop for Restored {
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
    let _restored = Restored;
    show(&mut terminal, settings, &clients).await
}

type Asking<'a> = Pin<Box<dyn Future<Output = Asked> + 'a>>;

async fn show(
    terminal: &mut DefaultTerminal,
    settings: &TopSettings,
    clients: &[AdminClient],
) -> io::Result<()> {
    let mut screen = Screen::new(settings.kind);
    let mut keys = keys();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut ticks = tokio::time::interval(settings.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asking: Option<Asking<'_>> = None;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        tokio::select! {
            event = keys.recv() => {
                let Some(event) = event else { return Ok(()) };
                match screen.on(&event?) {
                    Then::Quit => return Ok(()),
                    Then::Ask => asking = Some(ask(clients, settings, screen.kind)),
                    Then::Draw => {}
                }
            }
            _ = terminate.recv() => return Ok(()),
            asked = answer(&mut asking), if asking.is_some() => {
                asking = None;
                let errors = asked.failures.iter().map(|failure| safe(&describe_error(failure))).collect();
                screen.update(asked.rows, errors);
            }
            _ = ticks.tick() => {
                if asking.is_none() && !screen.paused {
                    asking = Some(ask(clients, settings, screen.kind));
                }
            }
        }
    }
}

fn ask<'a>(clients: &'a [AdminClient], settings: &'a TopSettings, kind: Kind) -> Asking<'a> {
    Box::pin(rows::ask(clients, settings, kind))
}

async fn answer(asking: &mut Option<Asking<'_>>) -> Asked {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

/// What is typed, from a thread of its own, because reading a terminal waits.
fn keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(KEYS_MAX);
    thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(KEYS_INTERVAL) {
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
