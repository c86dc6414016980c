//! The scripts in an embedded Lua interpreter, with what they call in Redis on a map. Stricter than Redis: only the
//! commands and the forms that the scripts use are known.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    mem,
    rc::Rc,
};

use mlua::{Error, Function, Lua, LuaOptions, MultiValue, Result, StdLib, Value};
use sluicegate_core::{Time, fixes::Fix};
use sluicegate_store::redis::{Call, Reply, Script};

use crate::ScriptCall;

/// An embedded Lua interpreter with the scripts, and the keys of one server.
pub struct EmbeddedRedis {
    lua: Lua,
    /// By the digest of the text.
    scripts: HashMap<&'static str, Function>,
    /// Those without the lines of a disabled fix.
    without: RefCell<HashMap<(&'static str, Fix), Function>>,
    /// By the text.
    others: RefCell<HashMap<Vec<u8>, Function>>,
    /// The keys that the scripts see.
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
    /// The time, in microseconds.
    micros: u64,
    keys: BTreeMap<Vec<u8>, Key>,
    /// The keys that the running script has declared.
    declared: Vec<Vec<u8>>,
    /// The names of the commands of the last script.
    pub commands: Vec<String>,
    given: HashMap<Vec<u8>, u64>,
}

/// A stored value.
#[derive(Clone, Debug)]
pub struct Key {
    content: Content,
    /// The last millisecond.
    expires: Option<u64>,
}

#[derive(Clone, Debug)]
enum Content {
    Text(Vec<u8>),
    List(Vec<Vec<u8>>),
    /// Members by name, with their scores.
    Sorted(BTreeMap<Vec<u8>, i64>),
}

/// A script to run.
#[derive(Clone, Copy, Debug)]
pub enum Program<'a> {
    /// One of the scripts that settle checks, by the digest of its text.
    Known(&'a str),
    /// Any text.
    Text(&'a [u8]),
}

impl Default for EmbeddedRedis {
    fn default() -> Self {
        Self::new()
    }
}

impl EmbeddedRedis {
    /// An interpreter that has compiled every script that settles checks, and no keys.
    ///
    /// # Panics
    /// A script cannot be compiled.
    #[must_use]
    pub fn new() -> Self {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new()).unwrap();
        let data = Rc::new(RefCell::new(Data::default()));
        let redis = lua.create_table().unwrap();
        let handle = Rc::clone(&data);
        let call = lua.create_function(move |lua, args| handle.borrow_mut().call(lua, &args));
        redis.set("call", call.unwrap()).unwrap();
        let handle = Rc::clone(&data);
        let pcall = lua.create_function(move |lua, args| {
            let outcome = handle.borrow_mut().call(lua, &args);
            outcome.or_else(|error| {
                let refused = lua.create_table()?;
                refused.set("err", error.to_string())?;
                Ok(Value::Table(refused))
            })
        });
        redis.set("pcall", pcall.unwrap()).unwrap();
        lua.globals().set("redis", redis).unwrap();
        lua.globals().set("KEYS", 0).unwrap();
        lua.globals().set("ARGV", 0).unwrap();
        // As in Redis, there are no other globals.
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
        Self { lua, scripts, without: RefCell::default(), others: RefCell::default(), data }
    }

    /// Runs a call at a time.
    ///
    /// # Errors
    /// The script fails.
    pub fn eval(&self, call: &Call, now: Time) -> Result<Reply> {
        self.data.borrow_mut().micros = now.as_micros();
        let sent = ScriptCall::of(call);
        self.run(Program::Known(&call.script.sha1), &sent.keys(), &sent.args())
    }

    /// Runs a script on the keys of another server, at the time that they show.
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
            data.given.clear();
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
            _ => refuse("what does the script reply?"),
        }
    }

    /// A script, by the digest of its whole text, without the lines of a fix.
    fn without(&self, sha1: &str, fix: Fix) -> Result<Function> {
        let Some(script) = Script::all().find(|it| it.sha1 == sha1) else {
            return refuse("NOSCRIPT");
        };
        let mut without = self.without.borrow_mut();
        if let Some(function) = without.get(&(script.sha1.as_str(), fix)) {
            return Ok(function.clone());
        }
        let function = self.lua.load(text_without(script, fix)).into_function()?;
        without.insert((script.sha1.as_str(), fix), function.clone());
        Ok(function)
    }

    fn function(&self, program: Program<'_>) -> Result<Function> {
        match program {
            Program::Known(sha1) => {
                if let Some(fix) = Fix::disabled() {
                    return self.without(sha1, fix);
                }
                match self.scripts.get(sha1) {
                    Some(function) => Ok(function.clone()),
                    None => refuse("NOSCRIPT"),
                }
            }
            Program::Text(text) => {
                let mut others = self.others.borrow_mut();
                if let Some(function) = others.get(text) {
                    return Ok(function.clone());
                }
                let function = self.lua.load(text).into_function()?;
                others.insert(text.to_vec(), function.clone());
                Ok(function)
            }
        }
    }
}

/// A script without the lines of a fix, which end with its name.
fn text_without(script: &Script, fix: Fix) -> String {
    let marker = format!("-- fix: {}", fix.name());
    let lines = script.text.lines().filter(|line| !line.ends_with(&marker));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Redis cuts fractions off; a script that leaves one to be cut off is wrong.
#[expect(clippy::cast_possible_truncation, reason = "checked")]
fn integer(number: f64) -> Result<i64> {
    let exact = number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0;
    if exact { Ok(number as i64) } else { refuse(&format!("inexact: {number}")) }
}

fn refuse<T>(why: &str) -> Result<T> {
    Err(Error::runtime(why))
}

impl Data {
    /// What `GET` or, of a list, `LRANGE` with all of it would reply.
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

    /// The milliseconds that the last script gave a key to live.
    #[must_use]
    pub fn given(&self, key: &[u8]) -> Option<u64> {
        self.given.get(key).copied()
    }

    /// Sets the clock.
    pub fn set_time(&mut self, micros: u64) {
        self.micros = micros;
    }

    /// The milliseconds that a key has left; below zero if it does not expire, or is not there.
    ///
    /// # Panics
    /// They are more than an `i64` holds.
    #[must_use]
    pub fn left(&self, key: &[u8]) -> i64 {
        let left = |key: &Key| {
            let left = key.expires.map(|last| last + 1 - self.micros / 1_000);
            left.map_or(-1, |left| i64::try_from(left).unwrap())
        };
        self.keys.get(key).map_or(-2, left)
    }

    /// Stores a text, or a list of several, as another program than the scripts would.
    ///
    /// # Panics
    /// It is neither.
    pub fn put_foreign(&mut self, key: &[u8], content: &Reply, lifetime: Option<u64>) {
        let text = |it: &Reply| it.as_str().unwrap().as_bytes().to_vec();
        let content = match content {
            Reply::Array(elements) => Content::List(elements.iter().map(text).collect()),
            content => Content::Text(text(content)),
        };
        let expires = lifetime.map(|millis| self.micros / 1_000 + millis);
        self.keys.insert(key.to_vec(), Key { content, expires });
    }

    /// Whether there is a key.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
    }

    /// The names of the keys.
    pub fn names(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.keys.keys()
    }

    /// Removes a key, to be put elsewhere.
    pub fn remove(&mut self, key: &[u8]) -> Option<Key> {
        self.keys.remove(key)
    }

    /// Moves a key to another server. It keeps the time that it has left.
    pub fn migrate(&mut self, name: &[u8], to: &mut Self) {
        let Some(mut key) = self.keys.remove(name) else { return };
        let left = key.expires.map(|last| last.saturating_sub(self.micros / 1_000));
        key.expires = left.map(|left| to.micros / 1_000 + left);
        to.keys.insert(name.to_vec(), key);
    }

    /// Halves the time that the last script gave a key to live.
    pub fn expire_early(&mut self, name: &[u8]) {
        let given = self.given(name);
        if let (Some(key), Some(millis)) = (self.keys.get_mut(name), given) {
            key.expires = Some(self.micros / 1_000 + millis / 2);
        }
    }

    /// Removes the keys that have expired.
    pub fn expire(&mut self) {
        let now = self.micros / 1_000;
        self.keys.retain(|_, key| key.expires.is_none_or(|last| now <= last));
    }

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
            return refuse("undeclared key");
        }
        let number = |position: usize| {
            let text = String::from_utf8(text(position)).unwrap_or_default();
            text.parse::<i64>().or_else(|_| refuse(&format!("not an integer: {text}")))
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
            ("INCR", 2) => self.grow(&key, 1),
            ("INCRBY", 3) => self.grow(&key, number(2)?),
            ("SET", 5) if text(3) == b"PX" => {
                let expires = Some(self.give(&key, number(4)?)?);
                self.keys.insert(key, Key { content: Content::Text(text(2)), expires });
                Ok(Value::Boolean(true))
            }
            ("DEL", 2) => {
                self.given.remove(&key);
                Ok(Value::Integer(i64::from(self.keys.remove(&key).is_some())))
            }
            ("PTTL", 2) => Ok(Value::Integer(self.left(&key))),
            ("PEXPIRE", 3) => {
                let expires = Some(self.give(&key, number(2)?)?);
                match self.keys.get_mut(&key) {
                    Some(key) => key.expires = expires,
                    None => return refuse("no such key"),
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
                self.put(key, items)
            }
            ("LSET", 4) => {
                let mut items = self.list(&key)?;
                match items.get_mut(usize::try_from(number(2)?).unwrap_or(usize::MAX)) {
                    Some(item) => *item = text(3),
                    None => return refuse("index out of range"),
                }
                self.put(key, items)
            }
            ("RPUSH", 3..) => {
                let mut items = self.list(&key)?;
                items.extend_from_slice(&args[2..]);
                self.put(key, items)
            }
            _ => refuse(&format!("what is {name} with {} arguments?", args.len() - 1)),
        }
    }

    fn grow(&mut self, key: &[u8], by: i64) -> Result<Value> {
        let Some(Key { content: Content::Text(text), .. }) = self.keys.get_mut(key) else {
            return refuse("it would never expire");
        };
        let before: Option<i64> = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        // Redis reads no number with a sign or zeros in front.
        let is_plain = |number: &i64| number.to_string().as_bytes() == text.as_slice();
        let Some(before) = before.filter(is_plain) else { return refuse("not an integer") };
        *text = (before + by).to_string().into_bytes();
        Ok(Value::Integer(before + by))
    }

    fn list(&self, key: &[u8]) -> Result<Vec<Vec<u8>>> {
        match self.keys.get(key).map(|key| key.content.clone()) {
            None => Ok(Vec::new()),
            Some(Content::List(items)) => Ok(items),
            Some(Content::Text(_) | Content::Sorted(_)) => refuse("WRONGTYPE"),
        }
    }

    fn members(&mut self, key: &[u8]) -> Result<&mut BTreeMap<Vec<u8>, i64>> {
        let empty = || Key { content: Content::Sorted(BTreeMap::new()), expires: None };
        match &mut self.keys.entry(key.to_vec()).or_insert_with(empty).content {
            Content::Sorted(members) => Ok(members),
            Content::Text(_) | Content::List(_) => refuse("WRONGTYPE"),
        }
    }

    fn put(&mut self, key: Vec<u8>, items: Vec<Vec<u8>>) -> Result<Value> {
        if items.is_empty() {
            self.keys.remove(&key);
        } else {
            let expires = self.keys.get(&key).and_then(|key| key.expires);
            self.keys.insert(key, Key { content: Content::List(items), expires });
        }
        Ok(Value::Boolean(true))
    }

    /// Lets a key live for some milliseconds. Returns the last.
    fn give(&mut self, key: &[u8], lifetime: i64) -> Result<u64> {
        let Ok(lifetime @ 1..) = u64::try_from(lifetime) else {
            return refuse("invalid expire time");
        };
        self.given.insert(key.to_vec(), lifetime);
        Ok(self.micros / 1_000 + lifetime)
    }
}

/// What Redis makes of an argument: of a number, the text of `%.17g`.
fn argument(value: &Value) -> Result<Vec<u8>> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into_bytes()),
        Value::Number(number) => integer(*number).map(|number| number.to_string().into_bytes()),
        _ => refuse("Lua redis lib command arguments must be strings or integers"),
    }
}

/// The items from one index to another, which count from the end where negative.
fn range(length: usize, from: i64, to: i64) -> (usize, usize) {
    let length = i64::try_from(length).unwrap();
    let place = |index: i64| if index < 0 { (length + index).max(0) } else { index.min(length) };
    let (from, to) = (place(from), if to < 0 { place(to) + 1 } else { place(to + 1) });
    (usize::try_from(from).unwrap(), usize::try_from(to.max(from)).unwrap())
}
