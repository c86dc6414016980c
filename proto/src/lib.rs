//! Messages, client and server of Envoy's rate limit service and of Sluicegate's admin service, in modules that follow
//! the protobuf packages.
//!
//! The `.proto` files of Envoy's packages were written for this crate from Envoy's field numbers, and are
//! wire-compatible. Fields of type `bytes` are [`prost::bytes::Bytes`], so that a decoded message shares the buffer it
//! was decoded from. Keys and values of entries have this type, because Envoy declares them as `string` but sends
//! header values that need not be UTF-8.
//!
//! With the feature `text`, the module [`text`] parses and renders some of these messages for users.

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
    //! Envoy's packages, with the messages that the rate limit service uses.

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
            // The name of the file has `r#`, because `type` is a keyword.
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
    //! Sluicegate's packages.

    pub mod admin {
        pub mod v1 {
            tonic::include_proto!("sluicegate.admin.v1");
        }
    }
}

#[cfg(feature = "text")]
pub mod text;

/// The encoded file descriptors of Envoy's rate limit service and its imports, with the types of the `.proto` files
/// here.
///
/// For programs that must accept every request that the service accepts.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wire.binpb"));

/// The encoded file descriptors of Envoy's rate limit service and its imports, with `key` and `value` of entries as
/// `string`, as Envoy declares them.
///
/// The wire format is the same. For JSON and for server reflection, where `bytes` would be written in base64.
pub const TEXT_FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/text.binpb"));

/// The encoded file descriptors of the admin service and its imports, with `key` and `value` of entries as `string`,
/// for server reflection.
pub const ADMIN_TEXT_FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/admin.binpb"));
