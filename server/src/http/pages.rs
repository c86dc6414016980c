//! Pages that take long if there is much to show: made on threads that decide nothing, and once for all who ask
//! meanwhile. When readers that do not read hold many bytes of them, pages are made more rarely.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Bytes,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use tokio::{sync::Mutex as Turn, time::Instant};

use crate::offload::{Offload, OffloadTicket};

/// The most pages that are made at once.
const MADE_MAX: usize = 4;

/// The bytes of earlier pages that are held for readers, beyond which a page may be [`AGE_MAX`] old.
const HELD_BYTES_MAX: usize = 16 << 20;

/// The age of such a page.
const AGE_MAX: Duration = Duration::from_secs(1);

/// The most requests for pages at once.
const ASKED_MAX: usize = 64;

/// A page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Metrics,
    Stats,
    Rlconfig,
}

/// What a page has become. Copies share the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rendered {
    status: StatusCode,
    content_type: &'static str,
    text: Bytes,
}

impl Rendered {
    pub(super) fn ok(content_type: &'static str, text: impl Into<Bytes>) -> Self {
        Self { status: StatusCode::OK, content_type, text: text.into() }
    }

    pub(super) fn error(error: &impl ToString) -> Self {
        let (status, text) = (StatusCode::INTERNAL_SERVER_ERROR, error.to_string() + "\n");
        Self { status, content_type: PLAIN, text: text.into() }
    }
}

/// The text of a page, counted as long as it is held.
struct Counted {
    text: Bytes,
    held: Arc<AtomicUsize>,
}

impl Counted {
    fn bytes(text: Bytes, held: &Arc<AtomicUsize>) -> Bytes {
        held.fetch_add(text.len(), Ordering::Relaxed);
        Bytes::from_owner(Self { text, held: Arc::clone(held) })
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.fetch_sub(self.text.len(), Ordering::Relaxed);
    }
}

/// The type of a page of plain text.
pub(super) const PLAIN: &str = "text/plain; charset=utf-8";

impl IntoResponse for Rendered {
    fn into_response(self) -> Response {
        (self.status, [(CONTENT_TYPE, self.content_type)], self.text).into_response()
    }
}

/// Makes pages, within bounds.
pub(crate) struct RenderPool {
    offload: Offload,
    metrics: SharedPage,
    stats: SharedPage,
    rlconfig: SharedPage,
}

impl Default for RenderPool {
    fn default() -> Self {
        let held = Arc::default();
        Self {
            offload: Offload::new(MADE_MAX, ASKED_MAX),
            metrics: SharedPage::new(Some(&held)),
            stats: SharedPage::new(Some(&held)),
            // Its text is the same for all readers.
            rlconfig: SharedPage::new(None),
        }
    }
}

impl RenderPool {
    /// Makes a page, or waits for one that is begun from now on; 503 if too many ask.
    pub(super) async fn make(
        &self,
        page: Page,
        render: impl FnOnce() -> Rendered + Send + 'static,
    ) -> Response {
        let Some(admitted) = self.offload.admit() else {
            let busy = format!("{ASKED_MAX} pages are asked for already; ask again later\n");
            return (StatusCode::SERVICE_UNAVAILABLE, busy).into_response();
        };
        let shared = match page {
            Page::Metrics => &self.metrics,
            Page::Stats => &self.stats,
            Page::Rlconfig => &self.rlconfig,
        };
        shared.make(admitted, render).await.into_response()
    }
}

/// One page. Requests that come while it is made wait until that is done, because they may want what has been counted since,
/// and then share the next.
struct SharedPage {
    /// Held while the page is made.
    turn: Turn<()>,
    state: Mutex<State>,
    /// Bytes of all pages that are held; none where readers share the text anyway.
    held: Option<Arc<AtomicUsize>>,
}

#[derive(Default)]
struct State {
    /// How often making the page has begun.
    begun: u64,
    /// The page as it was made last, while a request may still use it.
    last: Option<Made>,
    asking: usize,
}

/// A page that was made.
struct Made {
    /// The number of that time.
    number: u64,
    begun: Instant,
    page: Rendered,
}

impl SharedPage {
    fn new(held: Option<&Arc<AtomicUsize>>) -> Self {
        Self { turn: Turn::default(), state: Mutex::default(), held: held.cloned() }
    }

    /// Whether readers hold many bytes of other pages than this one's last.
    fn is_crowded(&self, state: &State) -> bool {
        let last = state.last.as_ref().map_or(0, |made| made.page.text.len());
        let held = self.held.as_ref().map_or(0, |held| held.load(Ordering::Relaxed));
        held.saturating_sub(last) > HELD_BYTES_MAX
    }

    async fn make(
        &self,
        admitted: OffloadTicket,
        render: impl FnOnce() -> Rendered + Send + 'static,
    ) -> Rendered {
        let (_asking, wanted) = self.ask();
        let _turn = self.turn.lock().await;
        if let Some(page) = self.usable(wanted) {
            return page;
        }
        let permit = admitted.turn().await;
        let begun = Instant::now();
        let number = {
            let mut state = self.state.lock();
            state.begun += 1;
            state.begun
        };
        // Who asked may leave; the page is made all the same, and holds its place until then.
        let mut page = permit.run(render).await.unwrap_or_else(|error| Rendered::error(&error));
        if let Some(held) = &self.held {
            page.text = Counted::bytes(page.text, held);
        }
        self.state.lock().last = Some(Made { number, begun, page: page.clone() });
        page
    }

    /// The last page, if it was begun soon enough.
    fn usable(&self, wanted: u64) -> Option<Rendered> {
        let state = self.state.lock();
        let made = state.last.as_ref()?;
        let is_recent = || self.is_crowded(&state) && made.begun.elapsed() < AGE_MAX;
        (made.number >= wanted || is_recent()).then(|| made.page.clone())
    }

    /// Counts a request for the page until the guard is dropped. Returns the number of the time that is soon enough.
    fn ask(&self) -> (Asking<'_>, u64) {
        let mut state = self.state.lock();
        state.asking += 1;
        (Asking(self), state.begun + 1)
    }
}

/// A request for a page. After the last of them the page is forgotten, unless later ones may have to do with it.
struct Asking<'a>(&'a SharedPage);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.asking -= 1;
        if state.asking == 0 && !self.0.is_crowded(&state) {
            state.last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use tokio::task::{JoinSet, yield_now};

    use super::*;

    async fn text(response: Response) -> String {
        let body = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    /// Pages that show how many were rendered before, and wait until released.
    #[derive(Clone)]
    struct Held {
        pages: Arc<RenderPool>,
        begun: Arc<AtomicUsize>,
    }

    impl Held {
        fn new() -> Self {
            Self { pages: Arc::default(), begun: Arc::default() }
        }

        /// Asks for a page. It is made once `wait` ends.
        async fn ask(self, page: Page, wait: mpsc::Receiver<()>) -> (StatusCode, String) {
            let begun = Arc::clone(&self.begun);
            let render = move || {
                let before = begun.fetch_add(1, Ordering::SeqCst);
                _ = wait.recv();
                Rendered::ok(PLAIN, before.to_string())
            };
            let response = self.pages.make(page, render).await;
            (response.status(), text(response).await)
        }

        async fn until_begun(&self, count: usize) {
            while self.begun.load(Ordering::SeqCst) < count {
                yield_now().await;
            }
        }

        /// Waits until so many ask for the metrics.
        async fn until_asked(&self, count: usize) {
            while self.pages.metrics.state.lock().asking < count {
                yield_now().await;
            }
        }
    }

    fn done() -> mpsc::Receiver<()> {
        mpsc::channel().1
    }

    #[tokio::test]
    async fn requests_that_come_while_a_page_is_made_share_the_next() {
        let held = Held::new();
        let (finish, wait) = mpsc::channel();
        let first = tokio::spawn(held.clone().ask(Page::Metrics, wait));
        held.until_begun(1).await;
        let mut later = JoinSet::new();
        for _ in 0..10 {
            later.spawn(held.clone().ask(Page::Metrics, done()));
        }
        held.until_asked(11).await;
        // Other pages do not wait for it.
        assert_eq!(held.clone().ask(Page::Stats, done()).await, (StatusCode::OK, "1".to_owned()));
        drop(finish);
        assert_eq!(first.await.unwrap().1, "0");
        while let Some(page) = later.join_next().await {
            assert_eq!(page.unwrap().1, "2");
        }
        assert_eq!(held.begun.load(Ordering::SeqCst), 3);
        assert!(held.pages.metrics.state.lock().last.is_none(), "nobody may want it any more");
        assert_eq!(held.clone().ask(Page::Metrics, done()).await.1, "3");
    }

    #[tokio::test]
    async fn a_page_is_made_once_a_second_when_readers_hold_many_bytes() {
        let pages = RenderPool::default();
        let large = |byte: u8| move || Rendered::ok(PLAIN, vec![byte; HELD_BYTES_MAX]);
        let first_byte = async |response: Response| {
            axum::body::to_bytes(response.into_body(), HELD_BYTES_MAX).await.unwrap()[0]
        };
        let unread = pages.make(Page::Metrics, large(1)).await;
        let more = pages.make(Page::Metrics, large(2)).await;
        let last = pages.make(Page::Metrics, large(3)).await;
        let made = Instant::now();
        assert_eq!(first_byte(pages.make(Page::Metrics, large(4)).await).await, 3);
        assert!(made.elapsed() < AGE_MAX, "too slow to tell");
        tokio::time::sleep(AGE_MAX).await;
        assert_eq!(first_byte(pages.make(Page::Metrics, large(5)).await).await, 5);
        drop((unread, more, last));
        assert_eq!(first_byte(pages.make(Page::Metrics, large(6)).await).await, 6);
    }

    #[tokio::test]
    async fn a_page_that_fails_is_an_error_and_the_next_is_made() {
        let pages = RenderPool::default();
        let response = pages.make(Page::Metrics, || panic!("no page")).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let response = pages.make(Page::Metrics, || Rendered::ok(PLAIN, "page")).await;
        assert_eq!(text(response).await, "page");
    }

    #[tokio::test]
    async fn beyond_the_bound_requests_for_pages_are_refused() {
        let held = Held::new();
        let (finish, wait) = mpsc::channel();
        let mut asking = JoinSet::new();
        asking.spawn(held.clone().ask(Page::Metrics, wait));
        held.until_begun(1).await;
        for _ in 1..ASKED_MAX {
            asking.spawn(held.clone().ask(Page::Metrics, done()));
        }
        held.until_asked(ASKED_MAX).await;
        let (status, text) = held.clone().ask(Page::Stats, done()).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text, "64 pages are asked for already; ask again later\n");
        drop(finish);
        while let Some(page) = asking.join_next().await {
            assert_eq!(page.unwrap().0, StatusCode::OK);
        }
        assert_eq!(held.ask(Page::Stats, done()).await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn a_page_that_nobody_waits_for_keeps_its_place_and_no_request_waiting() {
        let held = Held::new();
        let (finish, wait) = mpsc::channel();
        let asking = tokio::spawn(held.clone().ask(Page::Metrics, wait));
        held.until_begun(1).await;
        asking.abort();
        assert!(asking.await.is_err());
        assert_eq!(held.pages.offload.free(), (ASKED_MAX - 1, MADE_MAX - 1));
        assert_eq!(held.clone().ask(Page::Metrics, done()).await.1, "1");
        drop(finish);
        while held.pages.offload.free() != (ASKED_MAX, MADE_MAX) {
            yield_now().await;
        }
    }
}
