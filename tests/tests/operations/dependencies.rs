//! Licences, sources and advisories of what the workspace depends on.
