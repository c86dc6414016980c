//! The screen of the live table, and its keys.

use ratatui::{
    Frame,
    crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Style, Stylize as _},
    text::Line,
    widgets::{Cell, Row as TableRow, Table, TableState},
};

use super::{
    Kind,
    rows::{Column, CounterRows, HEADINGS},
};

/// The live table.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) kind: Kind,
    pub(super) paused: bool,
    column: Column,
    reversed: bool,
    scroll: TableState,
    rows: CounterRows,
    /// Failures of servers.
    errors: Vec<String>,
}

/// Action after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Draw the screen.
    Draw,
    /// Fetch other counters.
    Refresh,
    /// End the program.
    Quit,
}

impl Screen {
    pub(super) fn new(kind: Kind) -> Self {
        let mut screen = Self {
            kind,
            paused: false,
            column: Column::Rate,
            reversed: false,
            scroll: TableState::default(),
            rows: CounterRows::default(),
            errors: Vec::new(),
        };
        screen.show(kind);
        screen
    }

    fn show(&mut self, kind: Kind) {
        self.kind = kind;
        self.column = if kind == Kind::Near { Column::Used } else { Column::Rate };
        self.reversed = false;
        self.scroll = TableState::default();
        self.rows = CounterRows::default();
    }

    /// Shows new results. If no server replied, the previous rows stay.
    pub(super) fn update(&mut self, rows: CounterRows, errors: Vec<String>) {
        if rows.servers > 0 {
            self.rows = rows;
            self.sort();
        }
        self.errors = errors;
    }

    fn sort(&mut self) {
        self.rows.sort(self.column, self.reversed);
    }

    pub(super) fn handle(&mut self, event: &Event) -> Action {
        let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
            return Action::Draw;
        };
        let last = self.rows.rows.len().saturating_sub(1);
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return Action::Quit,
            KeyCode::Char('d') => return self.switch(Kind::Denied),
            KeyCode::Char('n') => return self.switch(Kind::Near),
            KeyCode::Tab => return self.switch(self.kind.other()),
            KeyCode::Char('>') | KeyCode::Right => self.column = self.column.right(1),
            KeyCode::Char('<') | KeyCode::Left => self.column = self.column.left(),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('j') | KeyCode::Down => {
                *self.scroll.offset_mut() = (self.scroll.offset() + 1).min(last);
            }
            KeyCode::Char('k') | KeyCode::Up => {
                *self.scroll.offset_mut() = self.scroll.offset().saturating_sub(1);
            }
            _ => {}
        }
        self.sort();
        Action::Draw
    }

    fn switch(&mut self, kind: Kind) -> Action {
        self.show(kind);
        Action::Refresh
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let mut header = vec![Line::from(self.rows.title(self.kind)).bold()];
        if self.paused {
            header.push(Line::from("paused").yellow());
        }
        header.extend(self.rows.notes().into_iter().map(|note| Line::from(note).yellow()));
        header.extend(self.errors.iter().map(|error| Line::from(error.as_str()).red()));
        let height = u16::try_from(header.len()).unwrap_or(u16::MAX);
        let parts = [Constraint::Length(height), Constraint::Fill(1), Constraint::Length(1)];
        let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
        frame.render_widget(ratatui::widgets::Paragraph::new(header), head);
        let sorted = self.column.index();
        let headings = HEADINGS.iter().enumerate().map(|(at, name)| {
            let mark = match (at == sorted, self.reversed) {
                (true, false) => "▼",
                (true, true) => "▲",
                (false, _) => "",
            };
            Cell::from(format!("{name}{mark}"))
        });
        let rows = self.rows.rows.iter().map(|row| TableRow::new(row.cells()));
        let widths = [
            Constraint::Length(9),
            Constraint::Length(9),
            Constraint::Length(6),
            Constraint::Length(6),
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Fill(3),
        ];
        let table =
            Table::new(rows, widths).header(TableRow::new(headings).style(Style::new().bold()));
        frame.render_stateful_widget(table, body, &mut self.scroll);
        let keys = "q quit  d denied  n near  < > sort  r reverse  p pause  j k scroll";
        frame.render_widget(Line::from(keys).dim(), foot);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::{Terminal, backend::TestBackend};

    use super::{super::rows::CounterRow, *};

    fn row(key: &str, rate: f64, total: u64) -> CounterRow {
        CounterRow {
            domain: "api".to_owned(),
            rule: "user".to_owned(),
            key: key.to_owned(),
            rate,
            count: total,
            error: 0,
            total,
            last_seen: Duration::from_secs(1),
            used_permille: 1000,
        }
    }

    fn screen() -> Screen {
        let mut screen = Screen::new(Kind::Denied);
        let rows = vec![row("alice", 1.0, 9), row("bob", 3.0, 5), row("carol", 2.0, 7)];
        let window = Duration::from_secs(10);
        screen
            .update(CounterRows { rows, window, servers: 1, ..CounterRows::default() }, Vec::new());
        screen
    }

    fn render(screen: &mut Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 10)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Action {
        screen.handle(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    /// The counters, from top to bottom.
    fn order(screen: &mut Screen) -> Vec<&'static str> {
        let text = render(screen);
        let mut names = vec!["alice", "bob", "carol"];
        names.retain(|name| text.contains(name));
        names.sort_by_key(|name| text.find(name));
        names
    }

    #[test]
    fn rows_are_sorted_by_the_marked_column() {
        let mut screen = screen();
        assert!(render(&mut screen).contains("RATE/S▼"));
        assert_eq!(order(&mut screen), ["bob", "carol", "alice"]);
        press(&mut screen, KeyCode::Char('>'));
        assert!(render(&mut screen).contains("TOTAL▼"));
        assert_eq!(order(&mut screen), ["alice", "carol", "bob"]);
        press(&mut screen, KeyCode::Char('r'));
        assert!(render(&mut screen).contains("TOTAL▲"));
        assert_eq!(order(&mut screen), ["bob", "carol", "alice"]);
        press(&mut screen, KeyCode::Left);
        press(&mut screen, KeyCode::Left);
        assert!(render(&mut screen).contains("COUNTER▲"));
        press(&mut screen, KeyCode::Right);
        assert!(render(&mut screen).contains("RATE/S▲"));
        press(&mut screen, KeyCode::Char('j'));
        assert_eq!(order(&mut screen), ["carol", "bob"]);
        press(&mut screen, KeyCode::Up);
        assert_eq!(order(&mut screen).len(), 3);
    }

    #[test]
    fn rows_stay_while_servers_fail() {
        let mut screen = screen();
        screen.update(CounterRows::default(), vec!["cannot connect".to_owned()]);
        assert_eq!(order(&mut screen), ["bob", "carol", "alice"]);
        assert!(render(&mut screen).contains("cannot connect"));
    }

    #[test]
    fn keys_switch_pause_and_quit() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Char('p'));
        assert!(screen.paused && render(&mut screen).contains("paused"));
        assert_eq!(press(&mut screen, KeyCode::Tab), Action::Refresh);
        assert_eq!(screen.kind, Kind::Near);
        assert!(render(&mut screen).contains("USED▼"));
        assert_eq!(press(&mut screen, KeyCode::Char('d')), Action::Refresh);
        assert_eq!(screen.kind, Kind::Denied);
        assert_eq!(press(&mut screen, KeyCode::Char('x')), Action::Draw);
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Action::Quit);
        assert_eq!(press(&mut screen, KeyCode::Esc), Action::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.handle(&Event::Key(interrupt)), Action::Quit);
    }
}
