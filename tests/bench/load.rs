//! Loads: requests, encoded in advance so that sending costs little, and how they are sent.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use sluicegate_tests::{chain, long_window};

/// Length of a list of requests before it repeats.
const ORDER: usize = 1 << 16;

/// Seed of the order of requests.
const SEED: u64 = 20_261_121;

/// Number of refused requests of ten, in a load with refusals.
const REFUSED_OF_TEN: usize = 9;

/// A limit that is never reached.
pub(crate) const MANY: u32 = 4_000_000_000;

/// The domain whose limits are never reached.
pub(crate) const ALLOWED: &str = "allowed";

/// The domain with the same tree whose tenants reach their limit with the first request.
pub(crate) const REFUSED: &str = "refused";

/// The domain with the same tree in which a tenant has a few requests a minute.
pub(crate) const FLOODED: &str = "flooded";

/// The limits of all loads: domains and their files. No window of a limit that is reached ends during a run, except the
/// minutes of [`FLOODED`].
pub(crate) fn limits() -> [(&'static str, String); 3] {
    let long = long_window().seconds();
    let limits = [(ALLOWED, long, MANY), (REFUSED, long, 1), (FLOODED, 60, 5)];
    limits.map(|(domain, seconds, requests)| {
        let limit =
            |requests| format!("rate_limit: {{window: {seconds}s, requests_per_unit: {requests}}}");
        let (tenant, below) = (limit(requests), limit(MANY));
        let file = format!(
            "domain: {domain}\n\
             tenant: tenant\n\
             descriptors:\n\
             \x20 - key: tenant\n\
             \x20   {tenant}\n\
             \x20   descriptors:\n\
             \x20     - key: user\n\
             \x20       {below}\n\
             \x20       descriptors:\n\
             \x20         - key: route\n\
             \x20           {below}\n"
        );
        (domain, file)
    })
}

/// Connections and concurrent requests of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Connections.
    pub(crate) connections: usize,
    /// Requests in progress on each of them.
    pub(crate) streams: usize,
}

impl Shape {
    /// The shapes of all loads.
    pub(crate) const ALL: [Self; 3] = [Self::IDLE, Self::new(1, 10), Self::BUSY];

    /// One request at a time.
    pub(crate) const IDLE: Self = Self::new(1, 1);

    /// Always more requests than the server can answer at once.
    pub(crate) const BUSY: Self = Self::new(2, 100);

    const fn new(connections: usize, streams: usize) -> Self {
        Self { connections, streams }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} × {}", self.connections, self.streams)
    }
}

/// The tenants of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenants {
    /// All requests are equal, of one tenant.
    One,
    /// Each request is of one of this number of tenants, all with the same probability.
    Uniform(usize),
    /// Each request is of one of this number of tenants, the n-th with a probability in proportion to 1/n.
    Zipf(usize),
}

impl Tenants {
    const fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Uniform(tenants) | Self::Zipf(tenants) => tenants,
        }
    }
}

impl fmt::Display for Tenants {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One => formatter.write_str("one tenant"),
            Self::Uniform(tenants) => write!(formatter, "{tenants} tenants"),
            Self::Zipf(tenants) => write!(formatter, "{tenants} tenants, Zipf"),
        }
    }
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Connections and concurrent requests.
    pub(crate) shape: Shape,
    /// The tenants.
    pub(crate) tenants: Tenants,
    /// Number of limits that each request checks: 1 to 3.
    pub(crate) chain: usize,
    /// Whether nine of ten requests are refused; else none is.
    pub(crate) refusals: bool,
}

impl Load {
    /// All loads. Those with many tenants have `tenants`.
    pub(crate) fn matrix(tenants: usize) -> Vec<Self> {
        let mut loads = Vec::new();
        for refusals in [false, true] {
            for chain in [3, 1] {
                for tenants in [Tenants::One, Tenants::Uniform(tenants), Tenants::Zipf(tenants)] {
                    for shape in Shape::ALL {
                        loads.push(Self { shape, tenants, chain, refusals });
                    }
                }
            }
        }
        loads
    }

    /// A load of requests with three limits, which are never reached.
    pub(crate) const fn plain(shape: Shape, tenants: Tenants) -> Self {
        Self { shape, tenants, chain: 3, refusals: false }
    }
}

/// An encoded request.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    /// The message as gRPC frames it.
    pub(crate) framed: Bytes,
    /// Whether all but the first request of its tenant are refused.
    pub(crate) refused: bool,
}

/// Requests and the order in which they are sent, over and over.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    /// The different requests.
    pub(crate) bodies: Vec<Body>,
    /// Positions of requests in `bodies`.
    pub(crate) order: Vec<usize>,
}

impl Requests {
    /// The requests of a load.
    pub(crate) fn of(load: &Load) -> Self {
        let tenants = load.tenants.count();
        let domains: &[&str] = if load.refusals { &[ALLOWED, REFUSED] } else { &[ALLOWED] };
        let bodies = bodies(domains, tenants, load.chain);
        let mut random = fastrand::Rng::with_seed(SEED);
        let zipf = Zipf::new(tenants);
        let order = (0..ORDER).map(|place| {
            let tenant = match load.tenants {
                Tenants::Zipf(_) => zipf.draw(&mut random),
                _ => random.usize(..tenants),
            };
            let refused = load.refusals && place % 10 < REFUSED_OF_TEN;
            tenant + if refused { tenants } else { 0 }
        });
        Self { bodies, order: order.collect() }
    }

    /// Every request of every load with three limits, once, so that all counters exist before the loads.
    pub(crate) fn all(tenants: usize) -> Self {
        let bodies = bodies(&[ALLOWED, REFUSED], tenants, 3);
        let order = (0..bodies.len()).collect();
        Self { bodies, order }
    }

    /// One request that exceeds its limit of a few per minute.
    pub(crate) fn flood() -> Self {
        Self { bodies: bodies(&[FLOODED], 1, 1), order: vec![0] }
    }
}

/// The requests of each tenant in each domain.
fn bodies(domains: &[&str], tenants: usize, chain: usize) -> Vec<Body> {
    let of_domain = |domain| (0..tenants).map(move |tenant| body(domain, tenant, chain));
    domains.iter().flat_map(|domain| of_domain(*domain)).collect()
}

/// The entries of a tenant's requests.
pub(crate) fn entries(tenant: usize) -> [(&'static str, String); 3] {
    let tenant = format!("tenant-{tenant:06}");
    [("tenant", tenant), ("user", "u-00000001".to_owned()), ("route", "/api/items".to_owned())]
}

fn body(domain: &str, tenant: usize, limits: usize) -> Body {
    let mut request = chain(&entries(tenant)[..limits]);
    request.domain = domain.to_owned();
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(request.encoded_len().try_into().unwrap());
    request.encode(&mut framed).unwrap();
    Body { framed: framed.freeze(), refused: domain != ALLOWED }
}

/// Draws positions, the n-th with a probability in proportion to 1/n.
struct Zipf {
    /// For each position, the sum of the weights up to it.
    sums: Vec<f64>,
}

impl Zipf {
    fn new(places: usize) -> Self {
        let mut sum = 0.0;
        let sums = (1..=places).map(|place| {
            sum += 1.0 / f64::from(u32::try_from(place).unwrap());
            sum
        });
        Self { sums: sums.collect() }
    }

    fn draw(&self, random: &mut fastrand::Rng) -> usize {
        let drawn = random.f64() * self.sums.last().unwrap();
        self.sums.partition_point(|sum| *sum <= drawn).min(self.sums.len() - 1)
    }
}
