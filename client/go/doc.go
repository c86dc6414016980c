// Package sluicegate is a client of the rate limit service Sluicegate, and of any other service that implements Envoy's
// rate limit API.
//
// [Client.Check] asks whether a request may pass. [Client.Middleware] does so for each request of a net/http server,
// [Client.UnaryServerInterceptor] and [Client.StreamServerInterceptor] for each call of a gRPC server. [Client.Acquire]
// and [Pacer] wait until the limit allows, for work that queues; [Backoff] computes how long a caller waits that was
// refused.
//
//	client, err := sluicegate.New("localhost:8081")
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	limit := client.Middleware(sluicegate.HTTPOptions{
//		Domain: "public_api",
//		Descriptors: func(r *http.Request) []sluicegate.Descriptor {
//			return []sluicegate.Descriptor{sluicegate.NewDescriptor("remote_address", sluicegate.ClientIP(r, 0))}
//		},
//	})
//	return http.ListenAndServe(":8080", limit(handler))
//
// Every check is one call to the service. The client neither caches answers nor adds up hits, because the limit would
// not be exact then: other processes share it.
package sluicegate
