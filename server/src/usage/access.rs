//! The tenant that a request's credentials belong to.

use std::sync::Arc;

use axum::http::{HeaderMap, header::AUTHORIZATION};

use super::{
    error::UsageError,
    tenants::{Tenant, Tenants},
};

/// The tenant of a request: that of its token, or without a token that of the names in the client certificate.
///
/// # Errors
/// There is no credential, it belongs to no tenant, or several belong to different tenants.
pub(super) fn authenticate(
    tenants: &Tenants,
    headers: &HeaderMap,
    certificate_names: &[Box<str>],
) -> Result<Arc<Tenant>, UsageError> {
    let mut certified = tenants.with_certificate(certificate_names);
    let first = certified.next();
    let tenant = match (bearer_token(headers)?, first) {
        (Some(token), _) => tenants.with_token(token).ok_or(UsageError::WrongToken)?,
        (None, Some(tenant)) => tenant,
        (None, None) if certificate_names.is_empty() => return Err(UsageError::NoCredential),
        (None, None) => return Err(UsageError::NoTenant),
    };
    if first.into_iter().chain(certified).all(|certified| Arc::ptr_eq(certified, tenant)) {
        Ok(Arc::clone(tenant))
    } else {
        Err(UsageError::SeveralTenants)
    }
}

/// The token in the header `authorization: Bearer TOKEN`; `None` without that header.
fn bearer_token(headers: &HeaderMap) -> Result<Option<&[u8]>, UsageError> {
    let mut values = headers.get_all(AUTHORIZATION).into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    let (scheme, token) = value.as_bytes().split_at_checked(7).ok_or(UsageError::WrongToken)?;
    if values.next().is_some() || !scheme.eq_ignore_ascii_case(b"bearer ") {
        return Err(UsageError::WrongToken);
    }
    Ok(Some(token))
}
