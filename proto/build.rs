//! Compiles the `.proto` files in Rust alone, so that no `protoc` need be installed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};

const RLS: &str = "envoy/service/ratelimit/v3/rls.proto";
const ADMIN: &str = "sluicegate/admin/v1/admin_service.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=envoy");
    println!("cargo::rerun-if-changed=sluicegate");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    tonic_prost_build::configure()
        // Slices of the request's buffer rather than copies of them.
        .bytes(".")
        .emit_rerun_if_changed(false)
        .compile_fds(protox::compile([RLS, ADMIN], ["."])?)?;

    let mut rls = described(RLS)?;
    fs::write(out.join("wire.binpb"), rls.encode_to_vec())?;
    entries_as_text(&mut rls)?;
    fs::write(out.join("text.binpb"), rls.encode_to_vec())?;
    // Apart, because a listener describes no service that it does not have.
    let mut admin = described(ADMIN)?;
    entries_as_text(&mut admin)?;
    fs::write(out.join("admin.binpb"), admin.encode_to_vec())?;
    Ok(())
}

/// A service's file and all that it imports, without comments and positions: those are for the generated code,
/// and would only fatten the binary.
fn described(service: &str) -> Result<FileDescriptorSet, protox::Error> {
    let mut set = protox::compile([service], ["."])?;
    for file in &mut set.file {
        file.source_code_info = None;
    }
    Ok(set)
}

/// Gives `Entry.key` and `Entry.value` the type that Envoy declares.
fn entries_as_text(set: &mut FileDescriptorSet) -> Result<(), &'static str> {
    let entry = set
        .file
        .iter_mut()
        .filter(|file| file.package() == "envoy.extensions.common.ratelimit.v3")
        .find_map(|file| child(&mut file.message_type, "RateLimitDescriptor"))
        .and_then(|descriptor| child(&mut descriptor.nested_type, "Entry"))
        .ok_or("RateLimitDescriptor.Entry has moved")?;
    for field in &mut entry.field {
        field.set_type(Type::String);
    }
    Ok(())
}

fn child<'a>(messages: &'a mut [DescriptorProto], name: &str) -> Option<&'a mut DescriptorProto> {
    messages.iter_mut().find(|message| message.name() == name)
}
