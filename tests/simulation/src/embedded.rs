//! Runs the Lua scripts in an embedded interpreter, with the Redis commands that they call on a map. Stricter than
//! Redis: it rejects commands, and forms of commands, that the scripts do not use.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    mem,
    rc::Rc,
};

use mlua::{Error, Function, Lua, LuaOptions, MultiValue, Result, StdLib, Value};
use sluicegate_core::{Time, defect_fixes::DefectFix};
use sluicegate_store::redis::{Call, Reply, Script};

use crate::ScriptCall;

/// An embedded Lua interpreter with the compiled scripts, and the keys of one server.
pub struct EmbeddedRedis {
    lua: Lua,
    /// The scripts that settle checks, by SHA-1.
    scripts: HashMap<&'static str, Function>,
    /// The same scripts without the lines of a disabled fix.
    without_fix: RefCell<HashMap<(&'static str, DefectFix), Function>>,
    /// Other scripts, by their text.
    by_text: RefCell<HashMap<Vec<u8>, Function>>,
    /// The keys that the scripts access.
    pub data: Rc<RefCell<Data>>,
}

impl std::fmt::Debug for EmbeddedRedis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedRedis").finish_non_exhaustive()
    }
}

/// The keys of one server.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// The server's time, in microseconds since the Unix epoch.
    micros: u64,
    keys: BTreeMap<Vec<u8>, Key>,
    /// The keys that the call of the running script declares.
    declared: Vec<Vec<u8>>,
    /// The names of the commands that the last script has called.
    pub commands: Vec<String>,
    /// By key, the lifetime in milliseconds that the last script has set.
    lifetimes_set: HashMap<Vec<u8>, u64>,
}

/// A stored value.
#[derive(Clone, Debug)]
pub struct Key {
    content: Content,
    /// The last millisecond of its lifetime, since the Unix epoch; `None` if it does not expire.
    expires: Option<u64>,
}

/// The content of a stored value.
#[derive(Clone, Debug)]
enum Content {
    Text(Vec<u8>),
    List(Vec<Vec<u8>>),
    /// A sorted set: members with their scores.
    Sorted(BTreeMap<Vec<u8>, i64>),
}

/// A script to run.
#[derive(Clone, Copy, Debug)]
pub enum Program<'a> {
    /// One of the scripts that settle checks, by SHA-1.
    Known(&'a str),
    /// A script by its text.
    Text(&'a [u8]),
}

impl Default for EmbeddedRedis {
    fn default() -> Self {
        Self::new()
    }
}

impl EmbeddedRedis {
    /// An interpreter with every script that settles checks, and no keys.
    ///
    /// # Panics
    /// A script cannot be compiled.
    #[must_use]
    pub fn new() -> Self {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new()).unwrap();
        let data = Rc::new(RefCell::new(Data::default()));
        let redis = lua.create_table().unwrap();
        let shared = Rc::clone(&data);
        let call = lua.create_function(move |lua, args| shared.borrow_mut().call(lua, &args));
        redis.set("call", call.unwrap()).unwrap();
        let shared = Rc::clone(&data);
        let pcall = lua.create_function(move |lua, args| {
            let outcome = shared.borrow_mut().call(lua, &args);
            outcome.or_else(|error| {
                let reply = lua.create_table()?;
                reply.set("err", error.to_string())?;
                Ok(Value::Table(reply))
            })
        });
        redis.set("pcall", pcall.unwrap()).unwrap();
        lua.globals().set("redis", redis).unwrap();
        lua.globals().set("KEYS", 0).unwrap();
        lua.globals().set("ARGV", 0).unwrap();
        // As in Redis, scripts can neither read nor set other globals.
        lua.load(
            "setmetatable(_G, {
                __index = function(_, name) error('undefined: ' .. name) end,
                __newindex = function(_, name) error('global: ' .. name) end,
            })",
        )
        .exec()
        .unwrap();
        let compile = |script: &'static Script| {
            (script.sha1.as_str(), lua.load(&script.text).into_function().unwrap())
        };
        let scripts = Script::all().map(compile).collect();
        let (without_fix, by_text) = (RefCell::default(), RefCell::default());
        Self { lua, scripts, without_fix, by_text, data }
    }

    /// Runs a script call at the time `now`.
    ///
    /// # Errors
    /// The script fails.
    pub fn eval(&self, call: &Call, now: Time) -> Result<Reply> {
        self.data.borrow_mut().micros = now.as_micros();
        let sent = ScriptCall::of(call);
        self.run(Program::Known(&call.script.sha1), &sent.keys(), &sent.args())
    }

    /// Runs a script on the keys of a server, at that server's time.
    ///
    /// # Errors
    /// The script fails.
    pub fn run_on(
        &self,
        data: &mut Data,
        program: Program<'_>,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Reply> {
        mem::swap(data, &mut self.data.borrow_mut());
        let reply = self.run(program, keys, args);
        mem::swap(data, &mut self.data.borrow_mut());
        reply
    }

    fn run(&self, program: Program<'_>, keys: &[&[u8]], args: &[&[u8]]) -> Result<Reply> {
        let strings = |values: &[&[u8]]| {
            let strings = values.iter().map(|value| self.lua.create_string(value));
            self.lua.create_sequence_from(strings.collect::<Result<Vec<_>>>()?)
        };
        self.lua.globals().raw_set("KEYS", strings(keys)?)?;
        self.lua.globals().raw_set("ARGV", strings(args)?)?;
        {
            let mut data = self.data.borrow_mut();
            data.declared = keys.iter().map(|key| key.to_vec()).collect();
            data.commands.clear();
            data.lifetimes_set.clear();
            data.expire();
        }
        match self.function(program)?.call(())? {
            Value::Table(answers) => answers
                .sequence_values::<f64>()
                .map(|it| integer(it?).map(Reply::Integer))
                .collect::<Result<_>>()
                .map(Reply::Array),
            Value::Integer(number) => Ok(Reply::Integer(number)),
            Value::Number(number) => integer(number).map(Reply::Integer),
            _ => fail("the script returns a value of an unknown type"),
        }
    }

    /// A script without the lines of a fix. `sha1` is that of the whole script.
    fn function_without_fix(&self, sha1: &str, fix: DefectFix) -> Result<Function> {
        let Some(script) = Script::all().find(|it| it.sha1 == sha1) else {
            return fail("NOSCRIPT");
        };
        let mut without_fix = self.without_fix.borrow_mut();
        if let Some(function) = without_fix.get(&(script.sha1.as_str(), fix)) {
            return Ok(function.clone());
        }
        let function = self.lua.load(text_without(script, fix)).into_function()?;
        without_fix.insert((script.sha1.as_str(), fix), function.clone());
        Ok(function)
    }

    /// The compiled script. Omits the lines of a disabled fix.
    fn function(&self, program: Program<'_>) -> Result<Function> {
        match program {
            Program::Known(sha1) => {
                if let Some(fix) = DefectFix::disabled() {
                    return self.function_without_fix(sha1, fix);
                }
                match self.scripts.get(sha1) {
                    Some(function) => Ok(function.clone()),
                    None => fail("NOSCRIPT"),
                }
            }
            Program::Text(text) => {
                let mut by_text = self.by_text.borrow_mut();
                if let Some(function) = by_text.get(text) {
                    return Ok(function.clone());
                }
                let function = self.lua.load(text).into_function()?;
                by_text.insert(text.to_vec(), function.clone());
                Ok(function)
            }
        }
    }
}

/// The text of a script without the lines of a fix, which end with its name in a comment.
fn text_without(script: &Script, fix: DefectFix) -> String {
    let marker = format!("-- fix: {}", fix.name());
    let lines = script.text.lines().filter(|line| !line.ends_with(&marker));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Converts a number of Lua to an integer of Redis. Fails on a fraction, which Redis would truncate: the script has a
/// bug.
#[expect(clippy::cast_possible_truncation, reason = "checked")]
fn integer(number: f64) -> Result<i64> {
    let exact = number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0;
    if exact { Ok(number as i64) } else { fail(&format!("not an exact integer: {number}")) }
}

/// An error that a script sees as a Redis error.
fn fail<T>(message: &str) -> Result<T> {
    Err(Error::runtime(message))
}

impl Data {
    /// The value of a key as a reply: of a text as `GET`, of a list as `LRANGE 0 -1`, of a sorted set its members.
    #[must_use]
    pub fn value(&self, key: &[u8]) -> Reply {
        match self.keys.get(key).map(|key| &key.content) {
            None => Reply::Nil,
            Some(Content::Text(text)) => Reply::Text(text.clone()),
            Some(Content::List(list)) => {
                Reply::Array(list.iter().map(|it| Reply::Text(it.clone())).collect())
            }
            Some(Content::Sorted(members)) => {
                Reply::Array(members.keys().map(|it| Reply::Text(it.clone())).collect())
            }
        }
    }

    /// The lifetime of a key in milliseconds that the last script has set; `None` if it has set none.
    #[must_use]
    pub fn lifetime_set(&self, key: &[u8]) -> Option<u64> {
        self.lifetimes_set.get(key).copied()
    }

    /// Sets the time, in microseconds since the Unix epoch.
    pub fn set_time(&mut self, micros: u64) {
        self.micros = micros;
    }

    /// The remaining lifetime of a key in milliseconds, as `PTTL` replies: -1 if it does not expire, -2 if there is no
    /// such key.
    ///
    /// # Panics
    /// The lifetime exceeds an `i64`.
    #[must_use]
    pub fn pttl(&self, key: &[u8]) -> i64 {
        let remaining = |key: &Key| {
            let remaining = key.expires.map(|last| last + 1 - self.micros / 1_000);
            remaining.map_or(-1, |millis| i64::try_from(millis).unwrap())
        };
        self.keys.get(key).map_or(-2, remaining)
    }

    /// Stores a value that no script has written: a text or a list of texts. `lifetime` is in milliseconds.
    ///
    /// # Panics
    /// The value is neither a text nor a list of texts.
    pub fn insert_foreign(&mut self, key: &[u8], content: &Reply, lifetime: Option<u64>) {
        let text = |it: &Reply| it.as_str().unwrap().as_bytes().to_vec();
        let content = match content {
            Reply::Array(elements) => Content::List(elements.iter().map(text).collect()),
            content => Content::Text(text(content)),
        };
        let expires = lifetime.map(|millis| self.micros / 1_000 + millis);
        self.keys.insert(key.to_vec(), Key { content, expires });
    }

    /// Whether a key exists.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
    }

    /// All keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.keys.keys()
    }

    /// Removes a key, and returns its value.
    pub fn remove(&mut self, key: &[u8]) -> Option<Key> {
        self.keys.remove(key)
    }

    /// Moves a key to another server, with its remaining lifetime.
    pub fn migrate(&mut self, name: &[u8], to: &mut Self) {
        let Some(mut key) = self.keys.remove(name) else { return };
        let remaining = key.expires.map(|last| last.saturating_sub(self.micros / 1_000));
        key.expires = remaining.map(|millis| to.micros / 1_000 + millis);
        to.keys.insert(name.to_vec(), key);
    }

    /// Halves the lifetime of a key that the last script has set.
    pub fn expire_early(&mut self, name: &[u8]) {
        let lifetime = self.lifetime_set(name);
        if let (Some(key), Some(millis)) = (self.keys.get_mut(name), lifetime) {
            key.expires = Some(self.micros / 1_000 + millis / 2);
        }
    }

    /// Removes the keys that have expired.
    pub fn expire(&mut self) {
        let now = self.micros / 1_000;
        self.keys.retain(|_, key| key.expires.is_none_or(|last| now <= last));
    }

    /// Runs a command of a script.
    fn call(&mut self, lua: &Lua, args: &MultiValue) -> Result<Value> {
        let args = args.iter().map(argument).collect::<Result<Vec<_>>>()?;
        let text = |position: usize| args.get(position).cloned().unwrap_or_default();
        let name = String::from_utf8_lossy(&text(0)).into_owned();
        let key = text(1);
        self.commands.push(name.clone());
        if name != "TIME"
            && !args[1..]
                .iter()
                .take(if name == "MGET" { usize::MAX } else { 1 })
                .all(|key| self.declared.contains(key))
        {
            return fail("undeclared key");
        }
        let number = |position: usize| {
            let text = String::from_utf8(text(position)).unwrap_or_default();
            text.parse::<i64>().or_else(|_| fail(&format!("not an integer: {text}")))
        };
        let list = |items: &[Vec<u8>]| {
            let items = items.iter().map(|item| lua.create_string(item));
            lua.create_sequence_from(items.collect::<Result<Vec<_>>>()?).map(Value::Table)
        };
        match (name.as_str(), args.len()) {
            ("TIME", 1) => list(&[
                (self.micros / 1_000_000).to_string().into_bytes(),
                (self.micros % 1_000_000).to_string().into_bytes(),
            ]),
            ("MGET", 2..) => {
                let values = args[1..].iter().map(|key| match self.keys.get(key) {
                    Some(Key { content: Content::Text(text), .. }) => {
                        lua.create_string(text).map(Value::String)
                    }
                    _ => Ok(Value::Boolean(false)),
                });
                let values = values.collect::<Result<Vec<_>>>()?;
                lua.create_sequence_from(values).map(Value::Table)
            }
            ("INCR", 2) => self.increase(&key, 1),
            ("INCRBY", 3) => self.increase(&key, number(2)?),
            ("SET", 5) if text(3) == b"PX" => {
                let expires = Some(self.set_lifetime(&key, number(4)?)?);
                self.keys.insert(key, Key { content: Content::Text(text(2)), expires });
                Ok(Value::Boolean(true))
            }
            ("DEL", 2) => {
                self.lifetimes_set.remove(&key);
                Ok(Value::Integer(i64::from(self.keys.remove(&key).is_some())))
            }
            ("PTTL", 2) => Ok(Value::Integer(self.pttl(&key))),
            ("PEXPIRE", 3) => {
                let expires = Some(self.set_lifetime(&key, number(2)?)?);
                match self.keys.get_mut(&key) {
                    Some(key) => key.expires = expires,
                    None => return fail("no such key"),
                }
                Ok(Value::Integer(1))
            }
            ("ZREMRANGEBYSCORE", 4) if text(2) == b"-inf" => {
                let (last, members) = (number(3)?, self.members(&key)?);
                let before = members.len();
                members.retain(|_, score| *score > last);
                Ok(Value::Integer(i64::try_from(before - members.len()).unwrap()))
            }
            ("ZADD", 4) => {
                let (score, members) = (number(2)?, self.members(&key)?);
                Ok(Value::Integer(i64::from(members.insert(text(3), score).is_none())))
            }
            ("ZCARD", 2) => Ok(Value::Integer(i64::try_from(self.members(&key)?.len()).unwrap())),
            ("LLEN", 2) => Ok(Value::Integer(i64::try_from(self.list(&key)?.len()).unwrap())),
            ("LRANGE", 4) => {
                let items = self.list(&key)?;
                let (from, to) = range(items.len(), number(2)?, number(3)?);
                list(items.get(from..to).unwrap_or_default())
            }
            ("LTRIM", 4) => {
                let items = self.list(&key)?;
                let (from, to) = range(items.len(), number(2)?, number(3)?);
                let items = items.get(from..to).unwrap_or_default().to_vec();
                self.put_list(key, items)
            }
            ("LSET", 4) => {
                let mut items = self.list(&key)?;
                match items.get_mut(usize::try_from(number(2)?).unwrap_or(usize::MAX)) {
                    Some(item) => *item = text(3),
                    None => return fail("index out of range"),
                }
                self.put_list(key, items)
            }
            ("RPUSH", 3..) => {
                let mut items = self.list(&key)?;
                items.extend_from_slice(&args[2..]);
                self.put_list(key, items)
            }
            _ => fail(&format!("unknown command {name} with {} arguments", args.len() - 1)),
        }
    }

    /// Adds to an integer. Fails if there is no such key, because the new key would never expire.
    fn increase(&mut self, key: &[u8], by: i64) -> Result<Value> {
        let Some(Key { content: Content::Text(text), .. }) = self.keys.get_mut(key) else {
            return fail("the new key would never expire");
        };
        let before: Option<i64> = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        // Redis does not accept a plus sign or leading zeros.
        let is_plain = |number: &i64| number.to_string().as_bytes() == text.as_slice();
        let Some(before) = before.filter(is_plain) else { return fail("not an integer") };
        *text = (before + by).to_string().into_bytes();
        Ok(Value::Integer(before + by))
    }

    /// The items of a list; none if there is no such key.
    fn list(&self, key: &[u8]) -> Result<Vec<Vec<u8>>> {
        match self.keys.get(key).map(|key| key.content.clone()) {
            None => Ok(Vec::new()),
            Some(Content::List(items)) => Ok(items),
            Some(Content::Text(_) | Content::Sorted(_)) => fail("WRONGTYPE"),
        }
    }

    /// The members of a sorted set, which is created if there is no such key.
    fn members(&mut self, key: &[u8]) -> Result<&mut BTreeMap<Vec<u8>, i64>> {
        let empty = || Key { content: Content::Sorted(BTreeMap::new()), expires: None };
        match &mut self.keys.entry(key.to_vec()).or_insert_with(empty).content {
            Content::Sorted(members) => Ok(members),
            Content::Text(_) | Content::List(_) => fail("WRONGTYPE"),
        }
    }

    /// Replaces the items of a list, and removes the key if there are none.
    fn put_list(&mut self, key: Vec<u8>, items: Vec<Vec<u8>>) -> Result<Value> {
        if items.is_empty() {
            self.keys.remove(&key);
        } else {
            let expires = self.keys.get(&key).and_then(|key| key.expires);
            self.keys.insert(key, Key { content: Content::List(items), expires });
        }
        Ok(Value::Boolean(true))
    }

    /// Records a lifetime in milliseconds. Returns the last millisecond.
    fn set_lifetime(&mut self, key: &[u8], lifetime: i64) -> Result<u64> {
        let Ok(lifetime @ 1..) = u64::try_from(lifetime) else {
            return fail("invalid expire time");
        };
        self.lifetimes_set.insert(key.to_vec(), lifetime);
        Ok(self.micros / 1_000 + lifetime)
    }
}

/// Converts an argument to text as Redis does: a number as `%.17g`.
fn argument(value: &Value) -> Result<Vec<u8>> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into_bytes()),
        Value::Number(number) => integer(*number).map(|number| number.to_string().into_bytes()),
        _ => fail("Lua redis lib command arguments must be strings or integers"),
    }
}

/// The range of positions between two indexes of `LRANGE`, which count from the end if negative.
fn range(length: usize, from: i64, to: i64) -> (usize, usize) {
    let length = i64::try_from(length).unwrap();
    let position = |index: i64| if index < 0 { (length + index).max(0) } else { index.min(length) };
    let (from, to) = (position(from), if to < 0 { position(to) + 1 } else { position(to + 1) });
    (usize::try_from(from).unwrap(), usize::try_from(to.max(from)).unwrap())
}
