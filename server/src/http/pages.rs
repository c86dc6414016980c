//! Pages that take long if there is much to show: made on threads that decide nothing, a few at once.

use std::sync::Arc;

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tokio::sync::Semaphore;

/// The most pages that are made at once.
const MADE_MAX: usize = 4;

/// The most pages that are made or wait for their turn.
const ASKED_MAX: usize = 64;

/// What bounds the making of pages.
pub(crate) struct Pages {
    asked: Arc<Semaphore>,
    made: Arc<Semaphore>,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            asked: Arc::new(Semaphore::new(ASKED_MAX)),
            made: Arc::new(Semaphore::new(MADE_MAX)),
        }
    }
}

impl Pages {
    /// Makes a page when its turn has come; 503 if too many wait.
    pub(super) async fn make<T: IntoResponse + Send + 'static>(
        &self,
        render: impl FnOnce() -> T + Send + 'static,
    ) -> Response {
        let Ok(asked) = Arc::clone(&self.asked).try_acquire_owned() else {
            let busy = format!("{ASKED_MAX} pages are asked for already; ask again later\n");
            return (StatusCode::SERVICE_UNAVAILABLE, busy).into_response();
        };
        let made = Arc::clone(&self.made).acquire_owned().await;
        // Who asked may leave; the page is made all the same, and holds its place until then.
        let page = tokio::task::spawn_blocking(move || {
            let _places = (asked, made);
            render()
        });
        match page.await {
            Ok(page) => page.into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        thread,
    };

    use tokio::task::JoinSet;

    use super::*;

    async fn text(response: Response) -> String {
        let body = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn pages_are_made_on_a_thread_that_decides_nothing() {
        let here = thread::current().id();
        let elsewhere = move || if thread::current().id() == here { "here" } else { "elsewhere" };
        assert_eq!(text(Pages::default().make(elsewhere).await).await, "elsewhere");
    }

    #[tokio::test]
    async fn a_page_that_fails_is_an_error_and_gives_its_place_back() {
        let pages = Pages::default();
        for _ in 0..=ASKED_MAX {
            let response = pages.make(|| -> String { panic!("no page") }).await;
            assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        }
        assert_eq!(text(pages.make(|| "page").await).await, "page");
    }

    #[tokio::test]
    async fn so_many_pages_are_made_at_once_so_many_wait_and_more_are_refused() {
        let pages = Arc::new(Pages::default());
        let begun = Arc::new(AtomicUsize::new(0));
        let mut asking = JoinSet::new();
        let mut finish = Vec::new();
        for _ in 0..ASKED_MAX {
            let (done, wait) = mpsc::channel::<()>();
            finish.push(done);
            let (pages, begun) = (Arc::clone(&pages), Arc::clone(&begun));
            asking.spawn(async move {
                let render = move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    _ = wait.recv();
                    "page"
                };
                pages.make(render).await.status()
            });
        }
        while pages.asked.available_permits() > 0 || begun.load(Ordering::SeqCst) < MADE_MAX {
            tokio::task::yield_now().await;
        }
        let refused = pages.make(|| "page").await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text(refused).await, "64 pages are asked for already; ask again later\n");
        assert_eq!((begun.load(Ordering::SeqCst), pages.made.available_permits()), (MADE_MAX, 0));
        // Those that wait come in turn.
        drop(finish);
        while let Some(status) = asking.join_next().await {
            assert_eq!(status.unwrap(), StatusCode::OK);
        }
        assert_eq!(begun.load(Ordering::SeqCst), ASKED_MAX);
        assert_eq!(pages.make(|| "page").await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_page_that_nobody_waits_for_any_more_holds_its_place_while_it_is_made() {
        let pages = Arc::new(Pages::default());
        let (done, wait) = mpsc::channel::<()>();
        let asking = tokio::spawn({
            let pages = Arc::clone(&pages);
            async move { pages.make(move || _ = wait.recv()).await }
        });
        while pages.made.available_permits() == MADE_MAX {
            tokio::task::yield_now().await;
        }
        asking.abort();
        assert!(asking.await.is_err());
        assert_eq!(pages.made.available_permits(), MADE_MAX - 1);
        drop(done);
        while pages.made.available_permits() < MADE_MAX {
            tokio::task::yield_now().await;
        }
        assert_eq!(pages.asked.available_permits(), ASKED_MAX);
    }
}
