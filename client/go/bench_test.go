package sluicegate_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	sluicegate "github.com/sluicegate/sluicegate/client/go"
)

// Requests over one connection to a handler, without and with the middleware.
func BenchmarkMiddleware(b *testing.B) {
	limits := "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 4000000000}}]"
	client := connect(b, serve(b, limits).grpc)
	limit := client.Middleware(sluicegate.HTTPOptions{Domain: "shop", Descriptors: user})
	bare := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	for name, handler := range map[string]http.Handler{"bare": bare, "limited": limit(bare)} {
		b.Run(name, func(b *testing.B) {
			site := httptest.NewServer(handler)
			defer site.Close()
			for b.Loop() {
				request, _ := http.NewRequest(http.MethodGet, site.URL, nil)
				request.Header.Set("User", "ann")
				response, err := http.DefaultClient.Do(request)
				if err != nil || response.StatusCode != http.StatusOK {
					b.Fatal(response, err)
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		})
	}
}
