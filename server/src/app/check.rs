//! The check of the settings before the server starts: reads all files that they name, and reports all mistakes.

use sluicegate_store::redis::{Password, RedisConnectionSettings, TlsFiles};

use super::{StartError, StartErrors};
use crate::{
    admin::{AdminAccess, Token},
    grpc::Responder,
    limits::CompiledLimits,
    listen::{Alpn, Capacity, Tls},
    settings::{
        AdminListen, AdminSettings, LimitsSettings, RedisArguments, ServeSettings, StoreChoice,
        TlsSettings, UsageSettings,
    },
    telemetry::{self, KeyHasher},
    usage::TenantsFile,
    values::ListenAddress,
};

/// Settings without mistakes, and the contents of the files that they name.
pub(super) struct CheckedSettings {
    pub(super) key_hasher: KeyHasher,
    pub(super) capacity: Capacity,
    pub(super) limits: CompiledLimits,
    /// `None` if counters are in memory.
    pub(super) redis: Option<RedisConnectionSettings>,
    pub(super) responder: Responder,
    pub(super) grpc_tls: Option<Tls>,
    /// `None` if the admin listener is off.
    pub(super) admin: Option<AdminAccess>,
    /// `None` if the usage listener is off.
    pub(super) usage: Option<UsageAccess>,
}

/// The address of the usage listener, and who may ask.
pub(super) struct UsageAccess {
    pub(super) address: ListenAddress,
    pub(super) tls: Option<Tls>,
    pub(super) tenants: TenantsFile,
}

impl CheckedSettings {
    /// Reads the files that the settings name, and checks settings that depend on each other.
    ///
    /// # Errors
    /// All mistakes.
    pub(super) fn new(settings: &ServeSettings) -> Result<Self, StartErrors> {
        let mut errors = StartErrors::default();
        let limits = errors.collect(read_limits(&settings.limits));
        let store = &settings.store.store;
        let redis = check_redis(store, &settings.redis, &mut errors);
        let responder = errors.collect(Responder::new(&settings.response));
        let grpc_tls = load_tls("gRPC", settings.grpc.tls.tls_settings(), Alpn::Http2, &mut errors);
        let admin = check_admin(&settings.admin, &mut errors);
        let usage = check_usage(&settings.usage, &mut errors);
        let has_usage = settings.usage.usage_listen.is_some();
        let capacity = errors.collect(Capacity::new(&settings.connections, store, has_usage));
        errors.collect(telemetry::check_otlp(&settings.otlp));
        let key_hasher =
            errors.collect(KeyHasher::load(settings.log.key_hash_salt_file.as_deref()));
        match (key_hasher, capacity, limits, responder) {
            (Some(key_hasher), Some(capacity), Some(limits), Some(responder))
                if errors.is_empty() =>
            {
                Ok(Self { key_hasher, capacity, limits, redis, responder, grpc_tls, admin, usage })
            }
            _ => Err(errors),
        }
    }
}

fn read_limits(settings: &LimitsSettings) -> Result<CompiledLimits, StartError> {
    let bounds = settings.compile.read_bounds.bounds();
    CompiledLimits::read(settings.limits.clone(), bounds, settings.options())
        .map_err(StartError::Limits)
}

fn load_tls(
    listener: &'static str,
    files: Option<TlsSettings>,
    alpn: Alpn,
    errors: &mut StartErrors,
) -> Option<Tls> {
    let loaded = Tls::load(files?, alpn).map_err(|source| StartError::Tls { listener, source });
    errors.collect(loaded)
}

fn check_admin(settings: &AdminSettings, errors: &mut StartErrors) -> Option<AdminAccess> {
    let AdminListen::At(address) = &settings.admin_listen else { return None };
    let tls = load_tls("admin", settings.tls.tls_settings(), Alpn::Http2, errors);
    let token = settings.admin_token_file.as_deref().map(Token::load);
    let token = token.and_then(|token| errors.collect(token));
    let is_authenticated = settings.tls.client_ca.is_some() || settings.admin_token_file.is_some();
    let access = AdminAccess { address: address.clone(), tls, token, is_authenticated };
    if access.is_unprotected() {
        errors.push(StartError::UnprotectedAdmin(address.clone()));
    }
    Some(access)
}

fn check_usage(settings: &UsageSettings, errors: &mut StartErrors) -> Option<UsageAccess> {
    let address = settings.usage_listen.clone()?;
    let file = settings.usage_tenants_file.as_deref()?;
    let tls = load_tls("usage", settings.tls.tls_settings(), Alpn::Http1, errors);
    let tenants = TenantsFile::load(file, settings.tls.client_ca.is_some());
    Some(UsageAccess { address, tls, tenants: errors.collect(tenants)? })
}

/// The settings of connections to Redis; `None` if counters are in memory.
fn check_redis(
    store: &StoreChoice,
    redis: &RedisArguments,
    errors: &mut StartErrors,
) -> Option<RedisConnectionSettings> {
    let StoreChoice::Redis(url) = store else { return None };
    let sources = (&url.password, &redis.redis_password, &redis.redis_password_file);
    let password = match sources {
        (None, None, None) => Some(Password::None),
        (Some(password), None, None) | (None, Some(password), None) => {
            Some(Password::Given(password.clone()))
        }
        (None, None, Some(file)) => Some(Password::File(file.clone())),
        _ => {
            errors.push(StartError::RedisSettings(
                "--store, --redis-password and --redis-password-file: only one may have a password",
            ));
            None
        }
    };
    let username = url.username.clone().or_else(|| redis.redis_username.clone());
    if url.username.is_some() && redis.redis_username.is_some() {
        errors.push(StartError::RedisSettings(
            "--store and --redis-username: only one may name a user",
        ));
    }
    if username.is_some() && matches!(password, Some(Password::None)) {
        errors
            .push(StartError::RedisSettings("--redis-username: a user of Redis needs a password"));
    }
    if !url.tls && (redis.redis_tls_ca.is_some() || redis.redis_tls_cert.is_some()) {
        errors.push(StartError::RedisSettings(
            "--redis-tls-ca and --redis-tls-cert: --store does not ask for TLS; use rediss://",
        ));
    }
    let identity = redis.redis_tls_cert.clone().zip(redis.redis_tls_key.clone());
    let connection = RedisConnectionSettings {
        username,
        password: password.unwrap_or(Password::None),
        tls: url.tls.then(|| TlsFiles { ca: redis.redis_tls_ca.clone(), identity }),
        database: url.database,
        connect_timeout: redis.redis_connect_timeout,
        connector: None,
    };
    errors.collect(connection.check());
    Some(connection)
}
