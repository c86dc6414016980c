//! The tenants that may ask for their usage, from a file that can be replaced while the server runs.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    sync::Arc,
};

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use serde::Deserialize;
use sluicegate_proto::text::descriptor::{self, Entries};
use subtle::ConstantTimeEq as _;
use thiserror::Error;

use super::rate::Budget;
use crate::reloaded::{ReloadOutcome, Reloaded};

/// The most bytes of the file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why the file cannot be used.
#[derive(Debug, Error)]
pub enum TenantsError {
    /// The file cannot be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// The file is not JSON, or does not have the expected fields.
    #[error("{path}: {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's error, with line and column.
        reason: String,
    },
    /// A tenant is invalid.
    #[error("{path}: tenant {number}: {mistake}")]
    Tenant {
        /// The file.
        path: PathBuf,
        /// Number of the tenant, from 1.
        number: usize,
        /// The mistake.
        mistake: String,
    },
}

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantsJson {
    tenants: Vec<TenantJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantJson {
    domain: String,
    /// In the syntax of `sluicectl`: `KEY=VALUE,KEY=VALUE`.
    descriptor: String,
    /// SHA-256 digests of the tokens, in hex.
    #[serde(default)]
    token_sha256: Vec<String>,
    /// DNS names or URIs of client certificates.
    #[serde(default)]
    certificate_names: Vec<String>,
}

/// A tenant that may ask for its usage.
#[derive(Debug)]
pub(super) struct Tenant {
    /// The domain of its counters.
    pub(super) domain: String,
    /// The entries that begin each of its descriptors. Never empty.
    pub(super) entries: Entries,
    /// How often it may ask. Kept when the file is replaced.
    pub(super) budget: Arc<Budget>,
}

/// All tenants, by their credentials.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    all: Vec<Arc<Tenant>>,
    by_token: HashMap<TokenDigest, Arc<Tenant>>,
    by_certificate: HashMap<String, Arc<Tenant>>,
}

/// The SHA-256 digest of a token. Compared in constant time.
#[derive(Clone, Copy, Debug)]
struct TokenDigest([u8; SHA256_OUTPUT_LEN]);

impl TokenDigest {
    fn of(token: &[u8]) -> Self {
        // The length is always the same.
        Self(digest(&SHA256, token).as_ref().try_into().unwrap_or_default())
    }

    fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        if text.len() != 2 * bytes.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl PartialEq for TokenDigest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for TokenDigest {}

// The map's hash has a random seed, so the time of a lookup reveals nothing about the digests in it.
impl Hash for TokenDigest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

/// What is wrong with the file, without its strings: one may be a token that stands in place of its digest.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if !text.contains(": string \"") {
        return text;
    }
    format!("a string is not expected at line {} column {}", error.line(), error.column())
}

impl Tenants {
    /// Parses the file. Tenants that are also in `before` keep their budgets. `has_client_ca`: whether clients send
    /// certificates.
    fn parse(
        text: &[u8],
        path: &Path,
        has_client_ca: bool,
        before: &Self,
    ) -> Result<Self, TenantsError> {
        let TenantsJson { tenants } = serde_json::from_slice(text).map_err(|error| {
            TenantsError::Json { path: path.to_owned(), reason: reason(&error) }
        })?;
        let budgets: HashMap<_, _> =
            before.all.iter().map(|it| ((&*it.domain, &it.entries), &it.budget)).collect();
        let mut parsed = Self::default();
        let mut identities = HashMap::new();
        for (number, tenant) in (1..).zip(tenants) {
            parsed.add(number, tenant, has_client_ca, &budgets, &mut identities).map_err(
                |mistake| TenantsError::Tenant { path: path.to_owned(), number, mistake },
            )?;
        }
        Ok(parsed)
    }

    fn add(
        &mut self,
        number: usize,
        tenant: TenantJson,
        has_client_ca: bool,
        budgets: &HashMap<(&str, &Entries), &Arc<Budget>>,
        identities: &mut HashMap<(String, Entries), usize>,
    ) -> Result<(), String> {
        let TenantJson { domain, descriptor, token_sha256, certificate_names } = tenant;
        if domain.is_empty() {
            return Err("domain must not be empty".to_owned());
        }
        let entries = descriptor::parse(descriptor.as_bytes())
            .map_err(|error| format!("descriptor: {error}"))?;
        if token_sha256.is_empty() && certificate_names.is_empty() {
            return Err("token_sha256 or certificate_names must have an element".to_owned());
        }
        if !certificate_names.is_empty() && !has_client_ca {
            return Err("certificate_names need --usage-tls-client-ca".to_owned());
        }
        if let Some(first) = identities.insert((domain.clone(), entries.clone()), number) {
            return Err(format!("tenant {first} has the same domain and descriptor"));
        }
        let budget = budgets.get(&(&*domain, &entries)).map(|it| Arc::clone(it));
        let tenant = Arc::new(Tenant { domain, entries, budget: budget.unwrap_or_default() });
        for text in token_sha256 {
            let digest = TokenDigest::from_hex(&text)
                .ok_or("token_sha256: a digest has 64 hex digits, as sha256sum prints them")?;
            if self.by_token.insert(digest, Arc::clone(&tenant)).is_some() {
                return Err("token_sha256: a digest is listed twice".to_owned());
            }
        }
        for name in certificate_names {
            if self.by_certificate.insert(name.clone(), Arc::clone(&tenant)).is_some() {
                return Err(format!("certificate_names: {name:?} is listed twice"));
            }
        }
        self.all.push(tenant);
        Ok(())
    }

    /// The tenant of a token.
    pub(super) fn with_token(&self, token: &[u8]) -> Option<&Arc<Tenant>> {
        self.by_token.get(&TokenDigest::of(token))
    }

    /// The tenants that the names in a client certificate belong to.
    pub(super) fn with_certificate<'a>(
        &'a self,
        names: &'a [Box<str>],
    ) -> impl Iterator<Item = &'a Arc<Tenant>> {
        names.iter().filter_map(|name| self.by_certificate.get(&**name))
    }
}

/// The file, and the tenants in force. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct TenantsFile(Arc<TenantsState>);

#[derive(Debug)]
struct TenantsState {
    path: PathBuf,
    has_client_ca: bool,
    tenants: Reloaded<Content, Tenants>,
}

/// The content of the file, or the error of reading it.
type Content = Result<Vec<u8>, String>;

impl TenantsFile {
    /// Reads the file. `has_client_ca`: whether clients send certificates.
    ///
    /// # Errors
    /// The file cannot be read, or has a mistake.
    pub(crate) fn load(path: &Path, has_client_ca: bool) -> Result<Self, TenantsError> {
        let content = read(path);
        let tenants = build(&content, path, has_client_ca, &Tenants::default())?;
        let tenants = Reloaded::new(content, tenants);
        Ok(Self(Arc::new(TenantsState { path: path.to_owned(), has_client_ca, tenants })))
    }

    /// The file to watch for changes.
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Reads the file again, and puts its tenants in force.
    ///
    /// # Errors
    /// Those of [`TenantsFile::load`]. The previous tenants stay in force, and the same error is not returned twice.
    pub(crate) fn reload(&self) -> Result<ReloadOutcome, TenantsError> {
        let TenantsState { path, has_client_ca, tenants } = &*self.0;
        let build = |content: &_, before: &_| build(content, path, *has_client_ca, before);
        tenants.reload(read(path), false, build)
    }

    /// Whether the file that was read last was rejected, so that previous tenants are in force.
    pub(crate) fn is_rejected(&self) -> bool {
        self.0.tenants.is_rejected()
    }

    /// The tenants in force.
    pub(super) fn tenants(&self) -> impl std::ops::Deref<Target = Arc<Tenants>> {
        self.0.tenants.load()
    }
}

fn read(path: &Path) -> Content {
    sluicegate_files::read(path, FILE_BYTES_MAX).map_err(|error| error.to_string())
}

fn build(
    content: &Content,
    path: &Path,
    has_client_ca: bool,
    before: &Tenants,
) -> Result<Tenants, TenantsError> {
    let unreadable = |reason: &String| TenantsError::Unreadable {
        path: path.to_owned(),
        reason: reason.clone(),
    };
    Tenants::parse(content.as_deref().map_err(unreadable)?, path, has_client_ca, before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, before: &Tenants) -> Tenants {
        Tenants::parse(text.as_bytes(), Path::new("tenants.json"), false, before).unwrap()
    }

    /// A tenant whose token has this digest digit.
    fn tenant(name: &str, digit: &str) -> String {
        let digest = digit.repeat(64);
        format!(r#"{{"domain": "a", "descriptor": "tenant={name}", "token_sha256": ["{digest}"]}}"#)
    }

    #[test]
    fn budgets_of_tenants_outlive_the_file() {
        let file = |tenants: &[String]| format!(r#"{{"tenants": [{}]}}"#, tenants.join(","));
        let before =
            parse(&file(&[tenant("acme", "1"), tenant("globex", "2")]), &Tenants::default());
        let after = parse(&file(&[tenant("globex", "3"), tenant("initech", "1")]), &before);
        let budget = |tenants: &Tenants, at: usize| Arc::clone(&tenants.all[at].budget);
        assert!(Arc::ptr_eq(&budget(&before, 1), &budget(&after, 0)));
        assert!(!Arc::ptr_eq(&budget(&before, 0), &budget(&after, 1)));
    }

    #[test]
    fn tokens_are_found_by_their_digest() {
        // What `printf %s abc | sha256sum` prints.
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let text = format!(
            r#"{{"tenants": [{{"domain": "a", "descriptor": "b=c", "token_sha256": ["{digest}"]}}]}}"#
        );
        let tenants = parse(&text, &Tenants::default());
        assert_eq!(tenants.with_token(b"abc").map(|tenant| &*tenant.domain), Some("a"));
        assert!(tenants.with_token(b"abcd").is_none());
        assert!(tenants.with_token(digest.as_bytes()).is_none());
    }
}
