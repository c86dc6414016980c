//! Compiles the `.proto` files with protox, so that `protoc` need not be installed.

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
        // A decoded message then has slices of the buffer it was decoded from, and no copies.
        .bytes(".")
        .emit_rerun_if_changed(false)
        .compile_fds(protox::compile([RLS, ADMIN], ["."])?)?;

    let mut rls = file_descriptors(RLS)?;
    fs::write(out.join("wire.binpb"), rls.encode_to_vec())?;
    declare_entries_as_strings(&mut rls)?;
    fs::write(out.join("text.binpb"), rls.encode_to_vec())?;
    // A file of its own, because a listener offers reflection only of the services that it has.
    let mut admin = file_descriptors(ADMIN)?;
    declare_entries_as_strings(&mut admin)?;
    fs::write(out.join("admin.binpb"), admin.encode_to_vec())?;
    Ok(())
}

/// The descriptors of a service's file and of all files that it imports, without comments and positions, which only the
/// generated code needs.
fn file_descriptors(service: &str) -> Result<FileDescriptorSet, protox::Error> {
    let mut set = protox::compile([service], ["."])?;
    for file in &mut set.file {
        file.source_code_info = None;
    }
    Ok(set)
}

/// Sets the type of `Entry.key` and `Entry.value` to `string`, as Envoy declares it.
fn declare_entries_as_strings(set: &mut FileDescriptorSet) -> Result<(), &'static str> {
    let entry = set
        .file
        .iter_mut()
        .filter(|file| file.package() == "envoy.extensions.common.ratelimit.v3")
        .find_map(|file| child(&mut file.message_type, "RateLimitDescriptor"))
        .and_then(|descriptor| child(&mut descriptor.nested_type, "Entry"))
        .ok_or("there is no RateLimitDescriptor.Entry")?;
    for field in &mut entry.field {
        field.set_type(Type::String);
    }
    Ok(())
}

fn child<'a>(messages: &'a mut [DescriptorProto], name: &str) -> Option<&'a mut DescriptorProto> {
    messages.iter_mut().find(|message| message.name() == name)
}
