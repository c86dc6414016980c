//! Accepts only clients with certain names in their certificates (`--grpc-tls-client-names`).

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use webpki::EndEntityCert;

/// Verifies that a client's certificate has one of the accepted names, after `inner` has verified the certificate.
#[derive(Debug)]
pub(super) struct ClientNameVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    accepted: Vec<String>,
}

impl ClientNameVerifier {
    pub(super) fn new(inner: Arc<dyn ClientCertVerifier>, accepted: Vec<String>) -> Self {
        Self { inner, accepted }
    }
}

/// The subject alternative names of a certificate: DNS names and URIs (SPIFFE). Wildcards are not expanded.
fn names<'a>(certificate: &'a EndEntityCert<'_>) -> impl Iterator<Item = &'a str> {
    certificate.valid_dns_names().chain(certificate.valid_uri_names())
}

/// The DNS names and URIs of a certificate; none if it cannot be parsed.
pub(super) fn names_of(certificate: &CertificateDer<'_>) -> Arc<[Box<str>]> {
    let certificate = EndEntityCert::try_from(certificate);
    certificate.iter().flat_map(names).map(Into::into).collect()
}

impl ClientCertVerifier for ClientNameVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let certificate =
            EndEntityCert::try_from(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        if names(&certificate).any(|name| self.accepted.iter().any(|accepted| accepted == name)) {
            return Ok(verified);
        }
        let names: Vec<_> = names(&certificate).collect();
        tracing::debug!(?names, "client certificate has none of the accepted names");
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
