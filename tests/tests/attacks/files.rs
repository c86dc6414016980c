//! Paths of limits files and of secrets for Redis that lead to other files: endless, blocking, cyclic, or secret; and
//! peers that fill the log.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::{fs::symlink, net::UnixListener},
    path::{Path, PathBuf},
    time::Duration,
};

use sluicegate_tests::{Attack, Authority, Finished, Setup, Sluicegate, binary, finish, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
    time::{Instant, sleep, timeout},
};

/// Changes must be detected by notifications, not by polling.
const NO_POLL: [&str; 2] = ["--poll-interval", "1h"];

/// Maximum temporary growth of memory during a load: four times `--limits-max-bytes`.
const GROWTH_MAX: u64 = 256 << 20;

/// Maximum growth of memory with cyclic links: each folder is read once.
const CIRCLES_GROWTH_MAX: u64 = 32 << 20;

fn limits(requests: usize) -> String {
    format!(
        "\
domain: api
descriptors:
  - key: healthy
    rate_limit: {{unit: second, requests_per_unit: 1000000}}
  - key: user
    rate_limit: {{unit: day, requests_per_unit: {requests}}}
"
    )
}

/// A server with a folder of limits files that an attacker can write to.
struct Attacked {
    server: Sluicegate,
    attack: Attack,
    folder: PathBuf,
    /// The number of requests in the limits file.
    requests: usize,
}

impl Attacked {
    async fn start(name: &str, flags: &[&str]) -> Self {
        Self::start_within(GROWTH_MAX, name, flags).await
    }

    async fn start_within(growth_max: u64, name: &str, flags: &[&str]) -> Self {
        let guard = tempfile::tempdir().unwrap();
        let folder = guard.path().join("limits");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.yaml"), limits(1)).unwrap();
        let own = ["--limits", folder.to_str().unwrap()];
        let server = Sluicegate::start_with(guard, &[&own[..], &NO_POLL, flags].concat()).await;
        let attack = Attack::start(name, &server, growth_max).await;
        Self { server, attack, folder, requests: 1 }
    }

    async fn failures(&self) -> f64 {
        self.server.metric("sluicegate_config_loads_total{result=\"failure\"}").await
    }

    /// Puts something into the folder, and waits until the load is rejected.
    async fn rejects(&self, put: impl FnOnce(&Path)) {
        let before = self.failures().await;
        put(&self.folder);
        until("the files to be rejected", || async {
            (self.failures().await > before).then_some(())
        })
        .await;
        let limits = self.server.get("/rlconfig").await.1;
        assert!(limits.contains(&format!("user: [{} per day", self.requests)), "{limits}");
    }

    /// Changes the limits, and waits until they are in force.
    async fn recovers(&mut self) {
        self.requests += 1;
        let new = self.folder.join(".a.yaml.new");
        fs::write(&new, limits(self.requests)).unwrap();
        fs::rename(new, self.folder.join("a.yaml")).unwrap();
        let wanted = format!("user: [{} per day", self.requests);
        until("the change to be taken up", || async {
            self.server.get("/rlconfig").await.1.contains(&wanted).then_some(())
        })
        .await;
    }

    async fn stop(self) {
        self.attack.end(&self.server).await;
        assert!(self.server.stop().await.success());
    }
}

/// Creates something at a path.
type Put = Box<dyn Fn(&Path)>;

async fn sluicegate(arguments: &[&Path]) -> Finished {
    let mut command = Command::new(binary("sluicegate"));
    command.args(arguments);
    finish(command).await
}

/// The output of the commands for an invalid folder.
async fn refused_by_commands(folder: &Path) -> String {
    let good = tempfile::tempdir().unwrap();
    fs::write(good.path().join("a.yaml"), limits(1)).unwrap();
    let validated = sluicegate(&[Path::new("validate"), folder]).await;
    assert_eq!(validated.code, 1, "{validated:?}");
    let compared = sluicegate(&[Path::new("diff"), good.path(), folder]).await;
    assert_eq!((compared.code, &compared.stdout), (2, &validated.stdout), "{compared:?}");
    assert_eq!([validated.stderr, compared.stderr], [String::new(), String::new()]);
    validated.stdout
}

#[tokio::test]
async fn special_files_are_rejected_and_reloading_continues() {
    let mut attacked = Attacked::start("what is no file", &[]).await;
    let link = |to: &'static str| move |path: &Path| symlink(to, path).unwrap();
    let socket = |path: &Path| drop(UnixListener::bind(path).unwrap());
    let huge = |path: &Path| File::create(path).unwrap().set_len(1 << 40).unwrap();
    let device = "a character device, and not a regular file";
    let too_large = "more than 67108864 bytes in all files (--limits-max-bytes)";
    let hostile: [(Put, &str); 6] = [
        (Box::new(link("/dev/zero")), device),
        (Box::new(link("/dev/tty")), device),
        (Box::new(fifo), "a FIFO, and not a regular file"),
        (Box::new(socket), "a socket, and not a regular file"),
        (Box::new(huge), too_large),
        (Box::new(link("c5.yaml")), "Too many levels of symbolic links (os error 40)"),
    ];
    for (number, (make, reason)) in hostile.into_iter().enumerate() {
        let path = attacked.folder.join(format!("c{number}.yaml"));
        attacked.rejects(|_| make(&path)).await;
        let expected = format!(
            "{}: {reason}; name a readable limits file, or a folder that has one\n",
            path.display()
        );
        attacked.server.process.printed(&expected, 1).await;
        assert_eq!(refused_by_commands(&attacked.folder).await, expected);
        attacked.attack.check(&attacked.server, reason).await;
        fs::remove_file(path).unwrap();
        attacked.recovers().await;
    }
    attacked.stop().await;
}

fn fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Replaces each secret file for Redis by a special file.
#[tokio::test]
async fn special_files_are_rejected_as_redis_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let authority = Authority::new("all");
    fs::write(path("ca.pem"), authority.pem()).unwrap();
    authority.issue("caller").write(folder.path(), "caller");
    let hostile = path("hostile");
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(path);
    let puts: [(Put, &str); 3] = [
        (Box::new(fifo), "a FIFO, and not a regular file"),
        (
            Box::new(|path| symlink("/dev/zero", path).unwrap()),
            "a character device, and not a regular file",
        ),
        (Box::new(|path| File::create(path).unwrap().set_len(1 << 40).unwrap()), "larger than "),
    ];
    for (put, reason) in puts {
        put(Path::new(&hostile));
        let flags = |ca, cert, key| {
            ["--redis-tls-ca", ca, "--redis-tls-cert", cert, "--redis-tls-key", key]
        };
        for flags in [
            &["--redis-password-file", &*hostile][..],
            &flags(&*hostile, &*cert, &*key),
            &flags(&*ca, &*hostile, &*key),
            &flags(&*ca, &*cert, &*hostile),
        ] {
            let serve = ["--store", "rediss://127.0.0.1:1"];
            let limits = path("limits.yaml");
            fs::write(&limits, self::limits(1)).unwrap();
            let flags = [&["--limits", &*limits], &serve[..], flags].concat();
            let refused = finish(Sluicegate::command(&flags, &[])).await;
            let text = format!("cannot connect to Redis: cannot read {hostile}: {reason}");
            assert!(refused.code == 1 && refused.stderr.contains(&text), "{refused:?}");
        }
        fs::remove_file(&hostile).unwrap();
    }
}

/// The password is read for each connection.
#[tokio::test]
async fn a_fifo_as_redis_password_file_blocks_no_connection() {
    let redis = Setup::new().user("default", "right").start().await;
    let outer = tempfile::tempdir().unwrap();
    let password = outer.path().join("password");
    fs::write(&password, "right").unwrap();
    let url = redis.url();
    let flags = ["--store", &url, "--redis-password-file", password.to_str().unwrap()];
    let server = Sluicegate::start(&limits(1), &flags).await;
    let attack = Attack::start("a FIFO as password", &server, GROWTH_MAX).await;
    let health = async |wanted: &str| {
        until(wanted, || async {
            server.get("/healthcheck?verbose").await.1.contains(wanted).then_some(())
        })
        .await;
    };
    health("store: ok").await;
    fs::remove_file(&password).unwrap();
    fifo(&password);
    redis.query(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    let why = "password: a FIFO, and not a regular file";
    health(why).await;
    server.process.printed(why, 1).await;
    fs::remove_file(&password).unwrap();
    fs::write(&password, "right").unwrap();
    health("store: ok").await;
    attack.end(&server).await;
    assert!(server.stop().await.success());
}

#[tokio::test]
async fn folders_that_form_cycles_are_read_once() {
    let mut attacked = Attacked::start_within(CIRCLES_GROWTH_MAX, "circles", &[]).await;
    for name in ["x", "y", "z"] {
        symlink(".", attacked.folder.join(name)).unwrap();
    }
    symlink("..", attacked.folder.join("up")).unwrap();
    attacked.recovers().await;
    assert_eq!(attacked.server.metric("sluicegate_rules").await, 2.0);
    assert_eq!(attacked.failures().await, 0.0);
    let validated = sluicegate(&[Path::new("validate"), &attacked.folder]).await;
    assert_eq!(validated.stdout, "ok: 1 domains, 2 rules, 0 warnings\n");
    attacked.stop().await;
}

/// Each change makes the server walk all links again.
#[tokio::test]
async fn changes_of_a_slow_folder_do_not_delay_decisions() {
    let mut attacked = Attacked::start("a folder that is slow to walk", &[]).await;
    let links = attacked.folder.join(".links");
    fs::create_dir(&links).unwrap();
    let target = "n/".repeat(200);
    for number in 0..5_000 {
        symlink(&target, links.join(number.to_string())).unwrap();
    }
    fs::rename(links, attacked.folder.join("links")).unwrap();
    let end = Instant::now() + Duration::from_secs(8);
    let touched = attacked.folder.join("links/touched");
    while Instant::now() < end {
        fs::write(&touched, "").unwrap();
        sleep(Duration::from_millis(120)).await;
    }
    fs::remove_dir_all(attacked.folder.join("links")).unwrap();
    attacked.recovers().await;
    attacked.stop().await;
}

#[tokio::test]
async fn too_many_files_and_folders_are_rejected() {
    let flags = ["--limits-max-files", "50", "--limits-max-bytes", "20000"];
    let mut attacked = Attacked::start("too many files", &flags).await;
    let many = attacked.folder.join("many");
    let refused = async |attacked: &mut Attacked, fill: &dyn Fn(&Path), expected: &str| {
        attacked
            .rejects(|_| {
                // Moved in one step, so that the server never reads a part.
                let new = attacked.folder.join(".new");
                fs::create_dir(&new).unwrap();
                fill(&new);
                fs::rename(new, &many).unwrap();
            })
            .await;
        attacked.server.process.printed(expected, 1).await;
        fs::remove_dir_all(&many).unwrap();
        attacked.recovers().await;
    };
    let files = |folder: &Path| {
        for number in 0..50 {
            let text = format!("domain: d{number}\n");
            fs::write(folder.join(format!("{number:02}.yaml")), text).unwrap();
        }
    };
    let expected = "many/49.yaml: more than 50 files in all (--limits-max-files); ";
    refused(&mut attacked, &files, expected).await;
    let large = |folder: &Path| {
        for name in ["b", "c"] {
            let text = format!("domain: {name}\n#{}\n", " ".repeat(12_000));
            fs::write(folder.join(name).with_extension("yaml"), text).unwrap();
        }
    };
    let expected = "many/c.yaml: more than 20000 bytes in all files (--limits-max-bytes); ";
    refused(&mut attacked, &large, expected).await;
    let deep = |folder: &Path| {
        let mut folder = folder.to_owned();
        (0..17).for_each(|_| folder.push("f"));
        fs::create_dir_all(folder).unwrap();
    };
    refused(&mut attacked, &deep, "/f: too many folders within folders; ").await;
    attacked.stop().await;
}

/// A small file that would use gigabytes after parsing.
#[tokio::test]
async fn a_file_with_too_many_values_is_rejected() {
    let mut attacked = Attacked::start("too many values", &[]).await;
    let path = attacked.folder.join("c.yaml");
    let values = format!("domain: d\ndescriptors: [{}]\n", "a,".repeat(30_000_000));
    attacked
        .rejects(|folder| {
            fs::write(folder.join(".new"), &values).unwrap();
            fs::rename(folder.join(".new"), &path).unwrap();
        })
        .await;
    let expected = "there are more than 2000000 keys, values, lists and maps in all files";
    attacked.server.process.printed(expected, 1).await;
    fs::remove_file(path).unwrap();
    attacked.recovers().await;
    attacked.stop().await;
}

/// A key that would be compared with all known keys.
#[tokio::test]
async fn a_key_of_megabytes_is_rejected_in_little_memory() {
    let mut attacked = Attacked::start("a key of megabytes", &[]).await;
    let path = attacked.folder.join("c.yaml");
    let text = format!("domain: d\n? {}\n: 1\n", "k".repeat(4 << 20));
    attacked
        .rejects(|folder| {
            fs::write(folder.join(".new"), &text).unwrap();
            fs::rename(folder.join(".new"), &path).unwrap();
        })
        .await;
    attacked.server.process.printed("the key in column 3 is not known here; use one of ", 1).await;
    fs::remove_file(path).unwrap();
    attacked.recovers().await;
    attacked.stop().await;
}

/// Small files whose mistakes, nodes or tokens would use gigabytes.
fn costly() -> [(&'static str, String, &'static str); 6] {
    let deep = |inner: &str| {
        let (begin, end) = ("{key: kkkkkkkk, descriptors: [".repeat(60), "]}".repeat(60));
        format!("domain: bad\ndescriptors: [{begin}{inner}{end}]\n")
    };
    let anchors: String = (0..150).map(|number| format!("&a{number} [")).collect();
    let unknown: String = (0..600_000).map(|number| format!("x{number}: 1\n")).collect();
    let rules: String = (0..20_000)
        .map(|number| {
            format!("{{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 1}}}},")
        })
        .collect();
    let long = "k".repeat(1 << 20);
    let not_known = "is not known here; ";
    [
        ("duplicates", deep(&"{key: a},".repeat(300_000)), "occurs twice at this level"),
        ("misspelt keys", deep(&"{kye: a},".repeat(300_000)), not_known),
        ("unknown keys", format!("domain: bad\n{unknown}"), not_known),
        (
            "anchors",
            format!("domain: bad\nx: {anchors}{}{}\n", "a,".repeat(100_000), "]".repeat(150)),
            not_known,
        ),
        (
            "lists in a list",
            format!("domain: bad\nx: [[{}]]\n", "a,".repeat(3_000_000)),
            "there are more than 2000000 keys, values, lists and maps in all files",
        ),
        (
            "a long key above many rules",
            format!("domain: bad\ndescriptors: [{{key: {long}, descriptors: [{rules}]}}]\n"),
            "the paths of all rules have more than 67108864 bytes",
        ),
    ]
}

#[tokio::test]
async fn files_full_of_mistakes_take_little_memory() {
    let mut attacked = Attacked::start("files full of mistakes", &[]).await;
    let path = attacked.folder.join("c.yaml");
    for (what, text, expected) in costly() {
        attacked
            .rejects(|folder| {
                fs::write(folder.join(".new"), &text).unwrap();
                fs::rename(folder.join(".new"), &path).unwrap();
            })
            .await;
        attacked.server.process.printed(expected, 1).await;
        attacked.attack.check(&attacked.server, what).await;
        if what == "duplicates" {
            let output = refused_by_commands(&attacked.folder).await;
            assert_eq!(output.lines().count(), 1_001);
            assert!(output.ends_with("\nthere are more than these 1000\n"), "{output}");
            let log = attacked.server.process.output();
            assert_eq!(log.matches(expected).count(), 100);
            let more = "mistakes not logged, `sluicegate validate` prints the first 1000 more=901";
            assert!(log.contains(more), "{log}");
        }
        fs::remove_file(&path).unwrap();
        attacked.recovers().await;
    }
    attacked.stop().await;
}

/// Files with secrets that are not limits files.
fn secrets() -> Vec<(&'static str, String)> {
    let key = Authority::new("another user").issue("secret.example").key;
    let old_key =
        key.replacen('\n', "\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,61F6AB\n\n", 1);
    vec![
        ("a private key", key),
        ("a private key with headers", old_key),
        (
            "a list of passwords",
            "\
toor:$6$yhR3pTQe$Zr0fVyTq8bdRkPRlWy9:19834:0:99999:7:::
nobodyelse:!*:19834:0:99999:7:::
"
            .to_owned(),
        ),
        (
            "JSON",
            r#"{"type": "service_account", "private_key_id": "8a5dcd1e", "nested": [{"passphrase": "hunter22"}, "swordfish", 271828182]}"#
                .to_owned(),
        ),
        (
            "JSON with a domain",
            r#"{"domain": "login.example", "clientsecret": "c0ffee42", "descriptors": [{"key": ["squeamish"], "valeu": "ossifrage", "metadata": {"mykey": [31415926, {"notatext": .nan}]}, "rate_limit": {"unit": "correcthorse", "requests_per_unit": "battery"}}]}"#
                .to_owned(),
        ),
        (
            "variables",
            "DB_PASSWORD=xyzzy123\nAPI: plugh456\nexport TOKENS='thud789: \"grault'\n- waldo%\n".to_owned(),
        ),
        ("a tab", "\tgarply: `fred321\n".to_owned()),
        ("a directive", "%YAML 1.2 barbaz\n---\n@quuxquux\n".to_owned()),
        ("aliases", format!("babble: &babble [burble]\n*rhubarb : {}\n", "[".repeat(200))),
        ("nesting", format!("{}wibble", "wobble: [ {".repeat(90))),
    ]
}

/// Words of a text that could reveal it.
fn words(text: &str) -> BTreeSet<&str> {
    let ours = ["domain", "descriptors", "metadata", "rate_limit", "requests_per_unit", "export"];
    let is_between = |char: char| char.is_whitespace() || "\"'`,:;{}[]()&*=@%".contains(char);
    // Short numbers also occur in metrics.
    let gives_away = |word: &&str| {
        word.len() > if word.bytes().all(|byte| byte.is_ascii_digit()) { 7 } else { 4 }
    };
    text.split(is_between).filter(gives_away).filter(|word| !ours.contains(word)).collect()
}

#[tokio::test]
async fn other_files_are_rejected_without_quoting_them() {
    let mut attacked = Attacked::start("secrets of other users", &[]).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("file");
    for (what, secret) in secrets() {
        fs::write(&file, &secret).unwrap();
        let link = attacked.folder.join("c.yaml");
        attacked.rejects(|_| symlink(&file, &link).unwrap()).await;
        let output = refused_by_commands(&attacked.folder).await;
        assert!(output.starts_with(&format!("{}:", link.display())), "{what}: {output}");
        for line in output.lines() {
            assert!(line.contains("c.yaml:"), "{what}: {output}");
        }
        let mut outputs = vec![output, attacked.server.get("/rlconfig").await.1];
        outputs.push(attacked.server.get("/metrics").await.1);
        for format in ["text", "json"] {
            let mut status = Command::new(binary("sluicectl"));
            let server = format!("http://{}", attacked.server.admin);
            status.args(["status", "--output", format, "--admin-server", &server]);
            let Finished { stdout, stderr, .. } = finish(status).await;
            assert!(stdout.contains("c.yaml:"), "{stdout}{stderr}");
            outputs.extend([stdout, stderr]);
        }
        fs::remove_file(link).unwrap();
        attacked.recovers().await;
        outputs.push(attacked.server.process.output());
        let words = words(&secret);
        assert!(!words.is_empty());
        for output in outputs {
            let quoted: Vec<_> = words.iter().filter(|word| output.contains(**word)).collect();
            assert!(quoted.is_empty(), "{what}: {quoted:?} in\n{output}");
        }
    }
    attacked.stop().await;
}

/// The beginning of an HTTP/2 connection.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The acknowledgement of a ping that was not sent. h2 logs a warning for each.
const PONG: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0unwanted";

/// A call that is reset at once. h2 logs one warning per connection about many of these.
fn reset(stream: u32) -> Vec<u8> {
    let id = stream.to_be_bytes();
    let fields = b"\x83\x86\x84\x41\x01a";
    let length = [0, 0, u8::try_from(fields.len()).unwrap()];
    [&length[..], &[1, 4], &id, fields, &[0, 0, 4, 3, 0], &id, &[0, 0, 0, 8]].concat()
}

/// Sends the bytes, and waits until the server has closed the connection or has responded for a while.
async fn send(address: &str, bytes: &[u8]) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let (mut read, mut write) = socket.split();
    let drained = async {
        let mut buffer = [0; 16384];
        while read.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {}
    };
    let sent = async {
        let _cut_off = write.write_all(bytes).await;
        let _closed = write.shutdown().await;
    };
    let both = futures::future::join(drained, sent);
    let _long_enough = timeout(Duration::from_secs(5), both).await;
}

#[tokio::test]
async fn a_peer_cannot_fill_the_log_with_warnings_of_libraries() {
    const PONGS: usize = 5_000;
    let attacked = Attacked::start("warnings", &[]).await;
    let resets: Vec<u8> = (0..4_000).flat_map(|call| reset(2 * call + 1)).collect();
    for _ in 0..20 {
        send(&attacked.server.grpc, &[HELLO, &resets].concat()).await;
    }
    send(&attacked.server.grpc, &[HELLO, &PONG.repeat(PONGS)].concat()).await;
    let suppressed = || attacked.server.metric("sluicegate_log_lines_suppressed_total");
    until("lines to be suppressed", || async { (suppressed().await > 4_900.0).then_some(()) })
        .await;
    let log = attacked.server.process.printed("too many lines of a library suppressed", 1).await;
    let warnings = log.lines().filter(|line| line.contains(" WARN h2::")).count();
    println!("{warnings} lines of h2, {} suppressed", suppressed().await);
    // Ten lines in ten seconds from each of two places in the source.
    assert!((10..=60).contains(&warnings), "{warnings} warnings");
    assert!(log.lines().any(|line| line.contains("library=h2::") && line.contains(" lines=")));
    attacked.stop().await;
}
