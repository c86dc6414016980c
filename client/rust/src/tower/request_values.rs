//! Values of descriptors from the head of a request.

use std::{
    net::{IpAddr, SocketAddr},
    str,
};

use http::request::Parts;

/// Address of the other end of a request's connection, as an extension of the request.
///
/// [`client_ip`] reads it. Servers other than axum's and tonic's have to set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// The IP address of the client of a request that came through this number of trusted proxies, each of which appends
/// the address of its peer to `X-Forwarded-For`.
///
/// Without trusted proxies, or if the header is too short or malformed, it is the address of the peer: that of
/// [`PeerAddr`], of axum's `ConnectInfo` (feature `axum`; the server needs
/// `into_make_service_with_connect_info::<SocketAddr>()`) or of tonic's server (feature `tonic-server`). It is empty if
/// the request has none of these, so that such requests share one limit.
///
/// With more trusted proxies than there are, clients could choose their address.
#[must_use]
pub fn client_ip(request: &Parts, trusted_proxies: usize) -> String {
    let address = forwarded(request, trusted_proxies).or_else(|| Some(peer(request)?.ip()));
    // One text for one address.
    address.map(|address| address.to_canonical().to_string()).unwrap_or_default()
}

fn forwarded(request: &Parts, trusted_proxies: usize) -> Option<IpAddr> {
    let lines = request.headers.get_all("x-forwarded-for").iter();
    let addresses: Vec<&[u8]> =
        lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).collect();
    if trusted_proxies == 0 {
        return None;
    }
    let address = addresses.get(addresses.len().checked_sub(trusted_proxies)?)?;
    str::from_utf8(address).ok()?.trim().parse().ok()
}

fn peer(request: &Parts) -> Option<SocketAddr> {
    if let Some(PeerAddr(address)) = request.extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) = request.extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "tonic-server")]
    {
        use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};

        if let Some(connection) = request.extensions.get::<TcpConnectInfo>() {
            return connection.remote_addr();
        }
        if let Some(connection) = request.extensions.get::<TlsConnectInfo<TcpConnectInfo>>() {
            return connection.get_ref().remote_addr();
        }
    }
    None
}

/// The first value of a header, such as an API key. Empty if there is none, so that such requests share one limit.
#[must_use]
pub fn header<'a>(request: &'a Parts, name: &str) -> &'a [u8] {
    request.headers.get(name).map(http::HeaderValue::as_bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn request(forwarded: &[&[u8]], peer: Option<&str>) -> Parts {
        let mut request = Request::builder().uri("/");
        for line in forwarded {
            request = request.header("X-Forwarded-For", *line);
        }
        if let Some(peer) = peer {
            request = request.extension(PeerAddr(peer.parse().unwrap()));
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn client_ip_is_written_by_the_outermost_trusted_proxy() {
        let peer = Some("192.0.2.9:1234");
        for (forwarded, trusted_proxies, address) in [
            (&["203.0.113.1"] as &[&str], 0, "192.0.2.9"),
            (&["203.0.113.1"], 1, "203.0.113.1"),
            (&["198.51.100.7, 203.0.113.1"], 1, "203.0.113.1"),
            (&["198.51.100.7,203.0.113.1"], 2, "198.51.100.7"),
            (&["198.51.100.7", "203.0.113.1 ,\t203.0.113.2"], 2, "203.0.113.1"),
            (&["198.51.100.7", "203.0.113.1"], 2, "198.51.100.7"),
            (&["2001:DB8:0::1"], 1, "2001:db8::1"),
            (&["::ffff:203.0.113.1"], 1, "203.0.113.1"),
            // Too short or malformed.
            (&[], 1, "192.0.2.9"),
            (&[""], 1, "192.0.2.9"),
            (&["203.0.113.1"], 2, "192.0.2.9"),
            (&["203.0.113.1"], usize::MAX, "192.0.2.9"),
            (&["203.0.113.1,"], 1, "192.0.2.9"),
            (&["203.0.113.1:80"], 1, "192.0.2.9"),
            (&["[2001:db8::1]"], 1, "192.0.2.9"),
            (&["203.0.113.001"], 1, "192.0.2.9"),
            (&["unknown, 203.0.113.1"], 2, "192.0.2.9"),
        ] {
            let lines: Vec<&[u8]> = forwarded.iter().map(|line| line.as_bytes()).collect();
            let request = request(&lines, peer);
            assert_eq!(client_ip(&request, trusted_proxies), address, "{forwarded:?}");
        }
        assert_eq!(client_ip(&request(&[b"\xff\xfe"], peer), 1), "192.0.2.9");
        assert_eq!(client_ip(&request(&[], Some("[::ffff:192.0.2.9]:1")), 0), "192.0.2.9");
        assert_eq!(client_ip(&request(&[], None), 0), "");
    }

    #[cfg(feature = "axum")]
    #[test]
    fn the_peer_is_that_of_axum() {
        let mut request = request(&[], None);
        let address: SocketAddr = "192.0.2.7:1".parse().unwrap();
        request.extensions.insert(axum::extract::ConnectInfo(address));
        assert_eq!(client_ip(&request, 0), "192.0.2.7");
    }

    #[test]
    fn header_is_the_first_value_or_empty() {
        let head = Request::builder().header("x-api-key", "a").header("X-Api-Key", "b");
        let (head, ()) = head.body(()).unwrap().into_parts();
        assert_eq!(header(&head, "X-API-KEY"), b"a");
        assert_eq!(header(&head, "x-other"), b"");
    }
}
