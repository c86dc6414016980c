//! Which files and folders are read, and in which order.

use std::{fs, os::unix::fs::symlink, path::Path};

use sluicegate_core::rules::CompileOptions;
use sluicegate_limits::{FileContents, ReadBounds};

/// The names of the domains that are loaded from paths in a folder, or the mistakes, without the folder's path.
fn loaded(folder: &Path, paths: &[&str]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| folder.join(path)).collect();
    let result: String = match FileContents::read(&paths, ReadBounds::default())
        .compile(&CompileOptions::default())
    {
        Ok(rules) => rules.domains().map(|domain| format!("{} ", domain.name)).collect(),
        Err(errors) => errors.iter().map(|error| format!("{error}\n")).collect(),
    };
    result.replace(&format!("{}/", folder.display()), "").trim_end().to_owned()
}

#[test]
fn folders_are_read_like_a_mounted_config_map() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let write = |path: &str, text: &[u8]| {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("map/..2024_01_01/b.yaml", b"domain: b");
    write("map/..2024_01_01/a.yml", b"domain: a");
    symlink("..2024_01_01", folder.join("map/..data")).unwrap();
    symlink("..data/a.yml", folder.join("map/a.yml")).unwrap();
    symlink("..data/b.yaml", folder.join("map/b.yaml")).unwrap();
    assert_eq!(loaded(folder, &["map"]), "a b");

    write("tree/.hidden.yaml", b"not a map");
    write("tree/.git/x.yaml", b"not a map");
    write("tree/notes.txt", b"not a map");
    write("tree/team/c.yaml", b"domain: c");
    write("tree/team.yaml", b"domain: team");
    write("limits.conf", b"domain: conf");
    assert_eq!(loaded(folder, &["tree", "limits.conf", "map/..data/b.yaml"]), "c team conf b");

    write("twice/a.yaml", b"domain: a");
    write("twice/b.yaml", b"\ndomain: a");
    assert_eq!(
        loaded(folder, &["twice"]),
        "twice/b.yaml:2: domain: domain \"a\" is also defined in twice/a.yaml; keep a domain in one file, or set --merge-domains"
    );

    fs::create_dir(folder.join("empty")).unwrap();
    write("bytes/a.yaml", b"domain: \xff");
    write("bytes/b.yaml", b"{");
    write("bytes/c.yaml", b"domain: c\nlimits: 1\n\nfoo: 1");
    write("bytes/d.yaml", b"\n\n{");
    assert_eq!(
        loaded(folder, &["bytes", "missing", "empty"]),
        "\
bytes/a.yaml: not UTF-8; name a readable limits file, or a folder that has one
bytes/b.yaml:1: not YAML: unclosed bracket '{'; correct the syntax
bytes/c.yaml:2: key \"limits\" is not known here; move it into a descriptor
bytes/c.yaml:4: the key in column 1 is not known here; use one of domain, descriptors, tenant, counting, on_failure, defaults, response_body
bytes/d.yaml:3: not YAML: unclosed bracket '{'; correct the syntax
missing: No such file or directory (os error 2); name a readable limits file, or a folder that has one
empty: no .yaml or .yml file in this folder; name a readable limits file, or a folder that has one"
    );
}

#[test]
fn paths_are_read_in_order_and_folders_by_name() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    for name in
        ["z/b.yaml", "z/a/c.yml", "z/B.yaml", "a.yaml", "z/.d.yaml", "z/e.YAML", "z/f.yaml.bak"]
    {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let domain = name.replace(['/', '.'], "_");
        fs::write(path, format!("domain: {domain}\n")).unwrap();
    }
    assert_eq!(loaded(folder, &["z", "a.yaml"]), "z_B_yaml z_a_c_yml z_b_yaml a_yaml");
    // A file that is named is read whatever its name.
    assert_eq!(loaded(folder, &["z/.d.yaml", "z/f.yaml.bak"]), "z__d_yaml z_f_yaml_bak");
    // Named twice, it is read twice.
    assert_eq!(
        loaded(folder, &["a.yaml", "a.yaml"]),
        "a.yaml:1: domain: domain \"a_yaml\" is also defined in a.yaml; keep a domain in one file, or set --merge-domains"
    );
}

#[test]
fn broken_and_circular_links_are_reported() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    fs::create_dir(folder.join("limits")).unwrap();
    fs::write(folder.join("limits/a.yaml"), "domain: a\n").unwrap();
    symlink("nowhere.yaml", folder.join("limits/b.yaml")).unwrap();
    assert_eq!(
        loaded(folder, &["limits"]),
        "limits/b.yaml: No such file or directory (os error 2); name a readable limits file, or a folder that has one"
    );
    fs::remove_file(folder.join("limits/b.yaml")).unwrap();
    symlink("..", folder.join("limits/up")).unwrap();
    assert_eq!(loaded(folder, &["limits"]), "a", "each folder is read once");
    fs::create_dir_all(folder.join("limits").join("f/".repeat(17))).unwrap();
    let mistakes = loaded(folder, &["limits"]);
    assert!(mistakes.contains("/f: too many folders within folders; "), "{mistakes}");
}
