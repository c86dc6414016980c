//! The messages, client and server of Envoy's rate limit service and of Sluicegate's own services, in modules that
//! follow their protobuf packages.
//!
//! The `.proto` files are this crate's own; Envoy's are written from its field numbers, and what they mean on the wire is
//! Envoy's.
//! `bytes` fields are [`prost::bytes::Bytes`], so that a decoded message shares the buffer it came in. The entries of a
//! descriptor are such fields too: Envoy declares them as text, yet passes header bytes on unchecked.
//!
//! With the feature `text` there is also [`text`]: how people type and read some of these messages.

#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::doc_markdown,
    clippy::missing_errors_doc,
    missing_docs,
    unused_qualifications,
    reason = "generated code"
)]
pub mod envoy {
    //! Envoy's packages, as far as the rate limit service reaches.

    pub mod config {
        pub mod core {
            pub mod v3 {
                tonic::include_proto!("envoy.config.core.v3");
            }
        }
    }

    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    tonic::include_proto!("envoy.extensions.common.ratelimit.v3");
                }
            }
        }
    }

    pub mod service {
        pub mod ratelimit {
            pub mod v3 {
                tonic::include_proto!("envoy.service.ratelimit.v3");
            }
        }
    }

    pub mod r#type {
        pub mod v3 {
            // `type` is a keyword, hence the file's name.
            tonic::include_proto!("envoy.r#type.v3");
        }
    }
}

#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::doc_markdown,
    clippy::missing_errors_doc,
    missing_docs,
    unused_qualifications,
    reason = "generated code"
)]
pub mod sluicegate {
    //! Sluicegate's own packages.

    pub mod admin {
        pub mod v1 {
            tonic::include_proto!("sluicegate.admin.v1");
        }
    }
}

#[cfg(feature = "text")]
pub mod text;

/// The encoded descriptors of Envoy's service and all it imports, as the `.proto` files have them.
///
/// Fit for whatever must take any request that the service takes.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wire.binpb"));

/// The same descriptors with the entries' `key` and `value` as `string`, which is how Envoy declares them.
///
/// The wire is the same. Fit for JSON and for server reflection, where people type text and not base64.
pub const TEXT_FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/text.binpb"));

/// The encoded descriptors of the admin service and all it imports, with the entries as `string`, for reflection.
pub const ADMIN_TEXT_FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/admin.binpb"));
