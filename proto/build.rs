//! Compiles the `.proto` files in Rust alone, so that no `protoc` need be installed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};

const RLS: &str = "envoy/service/ratelimit/v3/rls.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=envoy");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let mut set = protox::compile([RLS], ["."])?;
    tonic_prost_build::configure()
        // Slices of the request's buffer rather than copies of them.
        .bytes(".")
        .emit_rerun_if_changed(false)
        .compile_fds(set.clone())?;

    // Comments and positions are for the generated code; they would only fatten the binary.
    for file in &mut set.file {
        file.source_code_info = None;
    }
    fs::write(out.join("wire.binpb"), set.encode_to_vec())?;
    entries_as_text(&mut set)?;
    fs::write(out.join("text.binpb"), set.encode_to_vec())?;
    Ok(())
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
