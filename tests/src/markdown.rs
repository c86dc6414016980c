//! Code blocks of Markdown documents.

/// The fenced code blocks of a page in this language, in order.
#[must_use]
pub fn fenced<'page>(page: &'page str, language: &str) -> Vec<&'page str> {
    let begins = format!("```{language}\n");
    page.split(begins.as_str()).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}
