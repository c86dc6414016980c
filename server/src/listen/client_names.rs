//! Names of clients that are admitted, among all certificates of an authority.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use webpki::EndEntityCert;

/// Verifies that a client's certificate carries one of the wanted names, after `inner` has verified
/// all else.
#[derive(Debug)]
pub(super) struct ClientNames {
    inner: Arc<dyn ClientCertVerifier>,
    wanted: Vec<String>,
}

impl ClientNames {
    pub(super) fn new(inner: Arc<dyn ClientCertVerifier>, wanted: Vec<String>) -> Self {
        Self { inner, wanted }
    }
}

/// The subject alternative names of a certificate: DNS names and URIs (SPIFFE).
/// A wildcard has no special meaning here.
fn names<'a>(certificate: &'a EndEntityCert<'_>) -> impl Iterator<Item = &'a str> {
    certificate.valid_dns_names().chain(certificate.valid_uri_names())
}

/// The first of those names.
pub(super) fn name(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    names(&certificate).next().map(str::to_owned)
}

impl ClientCertVerifier for ClientNames {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let certificate =
            EndEntityCert::try_from(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        if names(&certificate).any(|name| self.wanted.iter().any(|wanted| wanted == name)) {
            return Ok(verified);
        }
        let names: Vec<_> = names(&certificate).collect();
        tracing::debug!(?names, "client certificate carries none of the wanted names");
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.inner.requires_raw_public_keys()
    }
}
