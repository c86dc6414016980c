//! Rendering of pages that can be large, on blocking threads. Requests that arrive during a rendering share the next
//! one. While responses that clients have not read hold many bytes, each page is rendered at most once a second.

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
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use crate::offload::{Offload, OffloadTicket};

/// The most pages that are rendered concurrently.
const RENDERING_MAX: usize = 4;

/// If responses that clients have not read hold more bytes than this, a page may be [`AGE_MAX`] old.
const HELD_BYTES_MAX: usize = 16 << 20;

/// The maximum age of such a page.
const AGE_MAX: Duration = Duration::from_secs(1);

/// The most concurrent requests for pages.
const REQUESTS_MAX: usize = 64;

/// The pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Metrics,
    Stats,
    Rlconfig,
}

/// A rendered page, or the error of rendering it. Clones share the text.
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

/// The text of a page, which counts as held until it is dropped.
struct HeldText {
    text: Bytes,
    held: Arc<AtomicUsize>,
}

impl HeldText {
    fn bytes(text: Bytes, held: &Arc<AtomicUsize>) -> Bytes {
        held.fetch_add(text.len(), Ordering::Relaxed);
        Bytes::from_owner(Self { text, held: Arc::clone(held) })
    }
}

impl AsRef<[u8]> for HeldText {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Drop for HeldText {
    fn drop(&mut self) {
        self.held.fetch_sub(self.text.len(), Ordering::Relaxed);
    }
}

/// The content type of plain text.
pub(super) const PLAIN: &str = "text/plain; charset=utf-8";

impl IntoResponse for Rendered {
    fn into_response(self) -> Response {
        (self.status, [(CONTENT_TYPE, self.content_type)], self.text).into_response()
    }
}

/// Renders pages within bounds.
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
            offload: Offload::new(RENDERING_MAX, REQUESTS_MAX),
            metrics: SharedPage::new(Some(&held)),
            stats: SharedPage::new(Some(&held)),
            // All clients share its text.
            rlconfig: SharedPage::new(None),
        }
    }
}

impl RenderPool {
    /// Renders a page, or waits for a rendering that begins after this call. 503 if there are too many requests.
    pub(super) async fn render(
        &self,
        page: Page,
        render: impl FnOnce() -> Rendered + Send + 'static,
    ) -> Response {
        let Some(ticket) = self.offload.admit() else {
            let busy =
                format!("{REQUESTS_MAX} requests for pages are in progress; try again later\n");
            return (StatusCode::SERVICE_UNAVAILABLE, busy).into_response();
        };
        let shared = match page {
            Page::Metrics => &self.metrics,
            Page::Stats => &self.stats,
            Page::Rlconfig => &self.rlconfig,
        };
        shared.render(ticket, render).await.into_response()
    }
}

/// One page. Requests that arrive during a rendering do not get its result, which may lack their effects. They wait for
/// its end and share the next rendering.
struct SharedPage {
    /// Locked during a rendering.
    rendering: AsyncMutex<()>,
    state: Mutex<State>,
    /// Bytes of all pages that clients hold; `None` if all clients share the text.
    held: Option<Arc<AtomicUsize>>,
}

#[derive(Default)]
struct State {
    /// The number of renderings that have begun.
    begun: u64,
    /// The last rendering, while a request may use it.
    last: Option<Rendering>,
    /// The number of requests that wait.
    requests: usize,
}

/// A completed rendering of a page.
struct Rendering {
    number: u64,
    begun: Instant,
    page: Rendered,
}

impl SharedPage {
    fn new(held: Option<&Arc<AtomicUsize>>) -> Self {
        Self { rendering: AsyncMutex::default(), state: Mutex::default(), held: held.cloned() }
    }

    /// Whether clients hold many bytes of pages, not counting this page's last rendering.
    fn is_crowded(&self, state: &State) -> bool {
        let last = state.last.as_ref().map_or(0, |last| last.page.text.len());
        let held = self.held.as_ref().map_or(0, |held| held.load(Ordering::Relaxed));
        held.saturating_sub(last) > HELD_BYTES_MAX
    }

    async fn render(
        &self,
        ticket: OffloadTicket,
        render: impl FnOnce() -> Rendered + Send + 'static,
    ) -> Rendered {
        let (_request, number_min) = self.begin_request();
        let _rendering = self.rendering.lock().await;
        if let Some(page) = self.usable(number_min) {
            return page;
        }
        let permit = ticket.wait().await;
        let begun = Instant::now();
        let number = {
            let mut state = self.state.lock();
            state.begun += 1;
            state.begun
        };
        // If the client disconnects, the rendering continues and holds its permit.
        let mut page = permit.run(render).await.unwrap_or_else(|error| Rendered::error(&error));
        if let Some(held) = &self.held {
            page.text = HeldText::bytes(page.text, held);
        }
        self.state.lock().last = Some(Rendering { number, begun, page: page.clone() });
        page
    }

    /// The last rendering, if its number is at least `number_min`, or if clients hold many bytes and it is recent.
    fn usable(&self, number_min: u64) -> Option<Rendered> {
        let state = self.state.lock();
        let last = state.last.as_ref()?;
        let is_recent = || self.is_crowded(&state) && last.begun.elapsed() < AGE_MAX;
        (last.number >= number_min || is_recent()).then(|| last.page.clone())
    }

    /// Counts a request until the guard is dropped. Returns the number of the first rendering that begins after it.
    fn begin_request(&self) -> (PageRequest<'_>, u64) {
        let mut state = self.state.lock();
        state.requests += 1;
        (PageRequest(self), state.begun + 1)
    }
}

/// A request for a page. The end of the last one drops the last rendering, unless clients hold many bytes, so that
/// later requests may get it.
struct PageRequest<'a>(&'a SharedPage);

impl Drop for PageRequest<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.requests -= 1;
        if state.requests == 0 && !self.0.is_crowded(&state) {
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

    /// Renders the number of earlier renderings as the page, and blocks until a test ends the rendering.
    #[derive(Clone)]
    struct BlockingPages {
        pages: Arc<RenderPool>,
        begun: Arc<AtomicUsize>,
    }

    impl BlockingPages {
        fn new() -> Self {
            Self { pages: Arc::default(), begun: Arc::default() }
        }

        /// Requests a page. The rendering ends when the sender of `wait` is dropped.
        async fn request(self, page: Page, wait: mpsc::Receiver<()>) -> (StatusCode, String) {
            let begun = Arc::clone(&self.begun);
            let render = move || {
                let before = begun.fetch_add(1, Ordering::SeqCst);
                _ = wait.recv();
                Rendered::ok(PLAIN, before.to_string())
            };
            let response = self.pages.render(page, render).await;
            (response.status(), text(response).await)
        }

        async fn until_begun(&self, count: usize) {
            while self.begun.load(Ordering::SeqCst) < count {
                yield_now().await;
            }
        }

        /// Waits until there are this many requests for the metrics.
        async fn until_requests(&self, count: usize) {
            while self.pages.metrics.state.lock().requests < count {
                yield_now().await;
            }
        }
    }

    fn done() -> mpsc::Receiver<()> {
        mpsc::channel().1
    }

    #[tokio::test]
    async fn requests_during_a_rendering_share_the_next() {
        let blocking = BlockingPages::new();
        let (finish, wait) = mpsc::channel();
        let first = tokio::spawn(blocking.clone().request(Page::Metrics, wait));
        blocking.until_begun(1).await;
        let mut later = JoinSet::new();
        for _ in 0..10 {
            later.spawn(blocking.clone().request(Page::Metrics, done()));
        }
        blocking.until_requests(11).await;
        // Other pages do not wait for it.
        let stats = blocking.clone().request(Page::Stats, done()).await;
        assert_eq!(stats, (StatusCode::OK, "1".to_owned()));
        drop(finish);
        assert_eq!(first.await.unwrap().1, "0");
        while let Some(page) = later.join_next().await {
            assert_eq!(page.unwrap().1, "2");
        }
        assert_eq!(blocking.begun.load(Ordering::SeqCst), 3);
        assert!(blocking.pages.metrics.state.lock().last.is_none(), "no request may use it");
        assert_eq!(blocking.clone().request(Page::Metrics, done()).await.1, "3");
    }

    #[tokio::test]
    async fn a_page_is_rendered_once_a_second_if_clients_hold_many_bytes() {
        let pages = RenderPool::default();
        let large = |byte: u8| move || Rendered::ok(PLAIN, vec![byte; HELD_BYTES_MAX]);
        let first_byte = async |response: Response| {
            axum::body::to_bytes(response.into_body(), HELD_BYTES_MAX).await.unwrap()[0]
        };
        let unread = pages.render(Page::Metrics, large(1)).await;
        let more = pages.render(Page::Metrics, large(2)).await;
        let last = pages.render(Page::Metrics, large(3)).await;
        let rendered = Instant::now();
        assert_eq!(first_byte(pages.render(Page::Metrics, large(4)).await).await, 3);
        assert!(rendered.elapsed() < AGE_MAX, "the machine is too slow for this test");
        tokio::time::sleep(AGE_MAX).await;
        assert_eq!(first_byte(pages.render(Page::Metrics, large(5)).await).await, 5);
        drop((unread, more, last));
        assert_eq!(first_byte(pages.render(Page::Metrics, large(6)).await).await, 6);
    }

    #[tokio::test]
    async fn a_failed_rendering_is_an_error_and_the_next_succeeds() {
        let pages = RenderPool::default();
        let response = pages.render(Page::Metrics, || panic!("no page")).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let response = pages.render(Page::Metrics, || Rendered::ok(PLAIN, "page")).await;
        assert_eq!(text(response).await, "page");
    }

    #[tokio::test]
    async fn requests_beyond_the_bound_are_rejected() {
        let blocking = BlockingPages::new();
        let (finish, wait) = mpsc::channel();
        let mut requests = JoinSet::new();
        requests.spawn(blocking.clone().request(Page::Metrics, wait));
        blocking.until_begun(1).await;
        for _ in 1..REQUESTS_MAX {
            requests.spawn(blocking.clone().request(Page::Metrics, done()));
        }
        blocking.until_requests(REQUESTS_MAX).await;
        let (status, text) = blocking.clone().request(Page::Stats, done()).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text, "64 requests for pages are in progress; try again later\n");
        drop(finish);
        while let Some(page) = requests.join_next().await {
            assert_eq!(page.unwrap().0, StatusCode::OK);
        }
        assert_eq!(blocking.request(Page::Stats, done()).await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn a_rendering_continues_after_a_disconnect_and_blocks_no_request() {
        let blocking = BlockingPages::new();
        let (finish, wait) = mpsc::channel();
        let request = tokio::spawn(blocking.clone().request(Page::Metrics, wait));
        blocking.until_begun(1).await;
        request.abort();
        assert!(request.await.is_err());
        assert_eq!(blocking.pages.offload.free(), (REQUESTS_MAX - 1, RENDERING_MAX - 1));
        assert_eq!(blocking.clone().request(Page::Metrics, done()).await.1, "1");
        drop(finish);
        while blocking.pages.offload.free() != (REQUESTS_MAX, RENDERING_MAX) {
            yield_now().await;
        }
    }
}
