//! TLS of a listener, with files that can be replaced while the server runs.

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

use super::client_names::ClientNameVerifier;
use crate::{
    reloaded::{ReloadOutcome, Reloaded},
    settings::TlsSettings,
};

/// The application protocol of a listener, which clients that use ALPN must offer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Alpn {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, which gRPC needs.
    Http2,
}

impl Alpn {
    /// The name in the TLS handshake.
    const fn id(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// Why TLS files cannot be used. The texts contain the causes, so there is no source error.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// A file is not valid PEM.
    #[error("{path} is not PEM: {reason}")]
    NotPem {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        reason: pem::Error,
    },
    /// A file has no certificate.
    #[error("no certificate in {path}")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A file has no private key, or an encrypted one.
    #[error("no private key in {path} (it must be in PEM and not encrypted)")]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// A certificate cannot be parsed.
    #[error("bad certificate in {path}: {reason}")]
    BadCertificate {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        reason: String,
    },
    /// A key cannot be parsed, or its algorithm is not supported.
    #[error("bad private key in {path}: {reason}")]
    BadKey {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        reason: String,
    },
    /// The key belongs to another certificate.
    #[error("the key in {key} does not match the first certificate in {certificate}")]
    KeyMismatch {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        certificate: PathBuf,
    },
    /// There are client names without a client CA, so clients would need no certificate.
    #[error("client names are only checked with a client CA")]
    NamesWithoutCa,
    /// The TLS library rejects the configuration.
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

/// The TLS configuration of a listener. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Tls(Arc<TlsState>);

#[derive(Debug)]
struct TlsState {
    settings: TlsSettings,
    alpn: Alpn,
    config: Reloaded<FileContents, ServerConfig>,
    handshakes_failed: AtomicU64,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or used, or the files do not belong together.
    pub(crate) fn load(settings: TlsSettings, alpn: Alpn) -> Result<Self, TlsError> {
        if settings.client_ca.is_none() && !settings.client_names.is_empty() {
            return Err(TlsError::NamesWithoutCa);
        }
        let contents = FileContents::read(&settings);
        let config = contents.build(&settings, alpn)?;
        Ok(Self(Arc::new(TlsState {
            settings,
            alpn,
            config: Reloaded::new(contents, config),
            handshakes_failed: AtomicU64::new(0),
        })))
    }

    /// Reads the files again, and puts them in force for later handshakes.
    ///
    /// # Errors
    /// Those of [`Tls::load`]. The previous configuration stays in force, and the same error is not returned twice.
    pub(crate) fn reload(&self) -> Result<ReloadOutcome, TlsError> {
        let TlsState { settings, alpn, config, .. } = &*self.0;
        let build = |contents: &FileContents, _: &_| contents.build(settings, *alpn);
        config.reload(FileContents::read(settings), false, build)
    }

    /// Whether the files that were read last were rejected, so that previous ones are in force.
    pub(crate) fn is_rejected(&self) -> bool {
        self.0.config.is_rejected()
    }

    /// The files to watch for changes.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let TlsSettings { certificate, key, client_ca, .. } = &self.0.settings;
        [certificate, key].into_iter().chain(client_ca).cloned().collect()
    }

    /// The number of failed handshakes.
    pub(crate) fn handshakes_failed(&self) -> u64 {
        self.0.handshakes_failed.load(Ordering::Relaxed)
    }

    pub(super) fn count_failure(&self) {
        self.0.handshakes_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// An acceptor with the configuration in force.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.0.config.load()).into()
    }
}

/// The content of a file, or the error of reading it.
type Content = Result<Vec<u8>, String>;

/// The contents of the TLS files.
#[derive(PartialEq)]
struct FileContents {
    certificate: Content,
    key: Content,
    client_ca: Option<Content>,
}

// Not derived, so that the private key does not get into logs.
impl std::fmt::Debug for FileContents {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("FileContents").finish_non_exhaustive()
    }
}

fn content(path: &Path) -> Content {
    sluicegate_files::read(path, sluicegate_files::PEM_BYTES_MAX).map_err(|error| error.to_string())
}

impl FileContents {
    fn read(settings: &TlsSettings) -> Self {
        Self {
            certificate: content(&settings.certificate),
            key: content(&settings.key),
            client_ca: settings.client_ca.as_deref().map(content),
        }
    }

    fn build(&self, settings: &TlsSettings, alpn: Alpn) -> Result<ServerConfig, TlsError> {
        // Explicit, because any crate of the process may set the default provider, or none does.
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
        config.alpn_protocols = vec![alpn.id().to_vec()];
        // No session resumption: it would accept clients whose certificates have expired meanwhile, and gains nothing,
        // because connections are few and long-lived.
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
        Ok(Some(Arc::new(ClientNameVerifier::new(verifier, settings.client_names.clone()))))
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
