//! TLS of a gRPC listener, with files that can be replaced while it serves.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustls::{
    InconsistentKeys, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use thiserror::Error;
use tokio_rustls::TlsAcceptor;

use super::client_names::ClientNames;
use crate::{
    reloaded::{Reload, Reloaded},
    settings::TlsSettings,
};

/// What a gRPC client is to offer (ALPN).
const HTTP2: &[u8] = b"h2";

/// Why TLS files cannot be used. The text is whole: there is no source to be shown after it.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file that cannot be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// A file that is damaged.
    #[error("{path} is not PEM: {reason}")]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: pem::Error,
    },
    /// A file without a certificate.
    #[error("no certificate in {path}")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A file without a key, or with one that takes a password.
    #[error("no private key in {path} (it must be in PEM and not encrypted)")]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// A certificate that cannot be parsed.
    #[error("bad certificate in {path}: {reason}")]
    BadCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A key that cannot be parsed, or of an algorithm that is not supported.
    #[error("bad private key in {path}: {reason}")]
    BadKey {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A key that belongs to another certificate.
    #[error("the key in {key} does not match the first certificate in {certificate}")]
    KeyMismatch {
        /// File of the key.
        key: PathBuf,
        /// File of the certificate.
        certificate: PathBuf,
    },
    /// Names are asked of clients that need not show a certificate.
    #[error("client names are only checked with a client CA")]
    NamesWithoutCa,
    /// The cryptography does not fit together.
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

/// What a TLS listener shows to clients and asks of them. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Tls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: TlsSettings,
    config: Reloaded<Files, ServerConfig>,
    handshakes_failed: AtomicU64,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file is missing or of no use, or they do not fit together.
    pub(crate) fn load(settings: TlsSettings) -> Result<Self, TlsError> {
        if settings.client_ca.is_none() && !settings.client_names.is_empty() {
            return Err(TlsError::NamesWithoutCa);
        }
        let files = Files::read(&settings);
        let config = files.build(&settings)?;
        Ok(Self(Arc::new(Shared {
            settings,
            config: Reloaded::new(files, config),
            handshakes_failed: AtomicU64::new(0),
        })))
    }

    /// Reads the files again, and puts them in force for the handshakes to come.
    ///
    /// # Errors
    /// As [`Tls::load`]. The files in force stay, and the same mistake is not reported twice.
    pub(crate) fn reload(&self) -> Result<Reload, TlsError> {
        let Shared { settings, config, .. } = &*self.0;
        config.reload(Files::read(settings), false, |files, _| files.build(settings))
    }

    /// Whether the files as last read were rejected, so that older ones are in force.
    pub(crate) fn is_rejected(&self) -> bool {
        self.0.config.is_rejected()
    }

    /// The files, to be watched for changes.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let TlsSettings { certificate, key, client_ca, .. } = &self.0.settings;
        [certificate, key].into_iter().chain(client_ca).cloned().collect()
    }

    /// Handshakes that failed so far.
    pub(crate) fn handshakes_failed(&self) -> u64 {
        self.0.handshakes_failed.load(Ordering::Relaxed)
    }

    pub(super) fn count_failure(&self) {
        self.0.handshakes_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Shakes hands by what is in force now.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.0.config.load()).into()
    }
}

/// The content of a file, or why it cannot be read.
type Content = Result<Vec<u8>, String>;

#[derive(PartialEq)]
struct Files {
    certificate: Content,
    key: Content,
    client_ca: Option<Content>,
}

// Not derived: the key stays out of logs.
impl std::fmt::Debug for Files {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Files").finish_non_exhaustive()
    }
}

fn content(path: &Path) -> Content {
    sluicegate_files::read(path, sluicegate_files::PEM_BYTES_MAX).map_err(|error| error.to_string())
}

impl Files {
    fn read(settings: &TlsSettings) -> Self {
        Self {
            certificate: content(&settings.certificate),
            key: content(&settings.key),
            client_ca: settings.client_ca.as_deref().map(content),
        }
    }

    fn build(&self, settings: &TlsSettings) -> Result<ServerConfig, TlsError> {
        // Never the process's default: whichever crate set that, or none.
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| setup(&error))?;
        let builder = match self.client_verifier(settings, &provider)? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let certified = self.certified_key(settings, &provider)?;
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![HTTP2.to_vec()];
        // A resumed session would admit a client whose certificate has expired since. Connections
        // are few and long-lived, so resumption gains nothing.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn certified_key(
        &self,
        settings: &TlsSettings,
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, TlsError> {
        let TlsSettings { certificate, key, .. } = settings;
        let chain = certificates(certificate, &self.certificate)?;
        let signing_key = provider
            .key_provider
            .load_private_key(private_key(key, &self.key)?)
            .map_err(|error| TlsError::BadKey { path: key.clone(), reason: error.to_string() })?;
        let certified = CertifiedKey::new(chain, signing_key);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
                Ok(certified)
            }
            Err(rustls::Error::InconsistentKeys(_)) => {
                Err(TlsError::KeyMismatch { key: key.clone(), certificate: certificate.clone() })
            }
            Err(error) => Err(bad_certificate(certificate, &error)),
        }
    }

    fn client_verifier(
        &self,
        settings: &TlsSettings,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
        let (Some(path), Some(content)) = (&settings.client_ca, &self.client_ca) else {
            return Ok(None);
        };
        let mut authorities = RootCertStore::empty();
        for authority in certificates(path, content)? {
            authorities.add(authority).map_err(|error| bad_certificate(path, &error))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(authorities),
            Arc::clone(provider),
        )
        .build()
        .map_err(|error| setup(&error))?;
        if settings.client_names.is_empty() {
            return Ok(Some(verifier));
        }
        Ok(Some(Arc::new(ClientNames::new(verifier, settings.client_names.clone()))))
    }
}

fn certificates(path: &Path, content: &Content) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(readable(path, content)?).collect();
    let found = found.map_err(|reason| TlsError::NotPem { path: path.to_owned(), reason })?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(found)
}

fn private_key(path: &Path, content: &Content) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(readable(path, content)?).map_err(|reason| match reason {
        pem::Error::NoItemsFound => TlsError::NoKey { path: path.to_owned() },
        reason => TlsError::NotPem { path: path.to_owned(), reason },
    })
}

fn readable<'a>(path: &Path, content: &'a Content) -> Result<&'a [u8], TlsError> {
    content
        .as_deref()
        .map_err(|reason| TlsError::Unreadable { path: path.to_owned(), reason: reason.clone() })
}

fn bad_certificate(path: &Path, error: &rustls::Error) -> TlsError {
    TlsError::BadCertificate { path: path.to_owned(), reason: error.to_string() }
}

fn setup(error: &impl ToString) -> TlsError {
    TlsError::Setup(error.to_string())
}
