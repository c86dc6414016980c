//! Certificates for tests.

use std::{fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType,
    string::Ia5String,
};

/// An authority that certifies servers and callers.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, both PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl Authority {
    /// Creates an authority. Its name must be unique: clients find the authority of a certificate by name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// The authority's certificate (PEM).
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for a name: IP address, URI or DNS name.
    #[must_use]
    pub fn issue(&self, name: &str) -> Issued {
        let mut params = CertificateParams::default();
        let text = Ia5String::try_from(name).unwrap();
        params.subject_alt_names.push(match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if name.contains(':') => SanType::URI(text),
            Err(_) => SanType::DnsName(text),
        });
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap().pem();
        Issued { certificate, key: key.serialize_pem() }
    }
}

impl Issued {
    /// Writes NAME.pem and NAME.key, or replaces them.
    pub fn write(&self, folder: &Path, name: &str) {
        for (kind, text) in [("pem", &self.certificate), ("key", &self.key)] {
            let new = folder.join(format!(".{name}.{kind}.new"));
            fs::write(&new, text).unwrap();
            fs::rename(new, folder.join(format!("{name}.{kind}"))).unwrap();
        }
    }
}
