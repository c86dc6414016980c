//! A real Redis server with a blocking connection.

use fred::{
    prelude::*,
    types::{ClusterHash, CustomCommand},
};
use sluicegate_simulation::ScriptCall;
use sluicegate_store::redis::{Call, Reply};
use sluicegate_tests as harness;
use tokio::runtime::{Builder, Runtime};

/// A Redis server that ends with the test, for tests without async code.
pub(crate) struct Redis {
    client: Client,
    _server: harness::Redis,
    runtime: Runtime,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (client, server) = runtime.block_on(async {
            let server = harness::Redis::start().await;
            let config = Config::from_url(&server.url()).unwrap();
            let client = Client::new(config, None, None, None);
            client.init().await.unwrap();
            (client, server)
        });
        Self { client, _server: server, runtime }
    }

    /// Runs one command.
    pub(crate) fn command(
        &self,
        name: &'static str,
        args: impl IntoIterator<Item = impl Into<Value>>,
    ) -> Value {
        let args: Vec<Value> = args.into_iter().map(Into::into).collect();
        self.runtime.block_on(self.client.custom(command(name), args)).unwrap()
    }

    /// Runs a script.
    pub(crate) fn eval(&self, call: &Call) -> Value {
        self.command("EVAL", script(call))
    }

    /// Runs several commands as one transaction, in which no key expires.
    pub(crate) fn transaction(&self, commands: Vec<(&'static str, Vec<Value>)>) -> Vec<Value> {
        let pipeline = self.client.pipeline();
        let replies: Vec<Value> = self.runtime.block_on(async {
            let _: () = pipeline.custom(command("MULTI"), Vec::<Value>::new()).await.unwrap();
            for (name, args) in commands {
                let _: () = pipeline.custom(command(name), args).await.unwrap();
            }
            let _: () = pipeline.custom(command("EXEC"), Vec::<Value>::new()).await.unwrap();
            pipeline.all().await.unwrap()
        });
        replies.last().unwrap().clone().into_array()
    }
}

/// The arguments of EVAL for a call.
pub(crate) fn script(call: &Call) -> Vec<Value> {
    let sent = ScriptCall::of(call);
    // Without the command and the digest.
    let arguments = sent.words().into_iter().skip(2).map(Value::from);
    std::iter::once(call.script.text.as_str().into()).chain(arguments).collect()
}

/// Converts a reply to the type that the store decodes.
pub(crate) fn reply(value: &Value) -> Reply {
    match value {
        Value::Null => Reply::Nil,
        Value::Integer(number) => Reply::Integer(*number),
        Value::Array(values) => Reply::Array(values.iter().map(reply).collect()),
        text => Reply::Text(text.as_bytes().unwrap().to_vec()),
    }
}

fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::FirstKey, false)
}
