// Command go-http is a web application that limits its requests with Sluicegate: by address, by the e-mail of a login,
// and by the tier of an API key.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	sluicegate "github.com/sluicegate/sluicegate/client/go"
)

// domain is the domain of limits.yaml.
const domain = "go_http"

// tiers has the tier of each API key. A real application looks it up where it has its customers.
var tiers = map[string]string{
	"key-of-ann":  "free",
	"key-of-bob":  "pro",
	"key-of-acme": "enterprise",
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8000", "address of the application")
	target := flag.String("sluicegate", "localhost:8081", "address of the rate limit service")
	proxies := flag.Int("trusted-proxies", 0, "number of proxies in front that append to X-Forwarded-For")
	flag.Parse()

	client, err := sluicegate.New(*target)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on %s", listener.Addr())
	server := &http.Server{Handler: handler(client, *proxies), ReadTimeout: 10 * time.Second}
	log.Fatal(server.Serve(listener))
}

// handler returns the routes of the application, each behind its limits.
func handler(client *sluicegate.Client, proxies int) http.Handler {
	perAddress := client.Middleware(sluicegate.HTTPOptions{
		Domain: domain,
		Descriptors: func(r *http.Request) []sluicegate.Descriptor {
			return []sluicegate.Descriptor{
				sluicegate.NewDescriptor("remote_address", sluicegate.ClientIP(r, proxies)),
			}
		},
		OnError: logError,
	})
	perAccount := client.Middleware(sluicegate.HTTPOptions{
		Domain: domain,
		Descriptors: func(r *http.Request) []sluicegate.Descriptor {
			email := strings.ToLower(strings.TrimSpace(sluicegate.BodyField(r, "email")))
			return []sluicegate.Descriptor{sluicegate.NewDescriptor("email", email)}
		},
		// Fails closed: without an answer, passwords could be guessed without a limit.
		FailureMode: sluicegate.FailureModeClosed,
		OnError:     logError,
	})
	perKey := client.Middleware(sluicegate.HTTPOptions{
		Domain: domain,
		Descriptors: func(r *http.Request) []sluicegate.Descriptor {
			c := r.Context().Value(customerKey{}).(customer)
			return []sluicegate.Descriptor{sluicegate.NewDescriptor("tier", c.tier, "api_key", c.apiKey)}
		},
		OnError: logError,
	})

	routes := http.NewServeMux()
	routes.Handle("GET /", http.HandlerFunc(home))
	routes.Handle("POST /login", perAccount(http.HandlerFunc(login)))
	routes.Handle("GET /api", authenticate(perKey(http.HandlerFunc(api))))
	return perAddress(routes)
}

func logError(_ *http.Request, err error) {
	log.Print(err)
}

// customer is the owner of an API key.
type customer struct{ apiKey, tier string }

// customerKey is the key of a customer in the context of a request.
type customerKey struct{}

// authenticate answers 401 without a valid API key. The tier comes from here and never from the client.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		apiKey := r.Header.Get("X-Api-Key")
		tier, found := tiers[apiKey]
		if !found {
			http.Error(w, "an API key is needed", http.StatusUnauthorized)
			return
		}
		ctx := context.WithValue(r.Context(), customerKey{}, customer{apiKey, tier})
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func home(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintln(w, "hello")
}

// login rejects every attempt, because the example has no accounts.
func login(w http.ResponseWriter, r *http.Request) {
	var attempt struct{ Email, Password string }
	if err := json.NewDecoder(r.Body).Decode(&attempt); err != nil {
		http.Error(w, "the body must be JSON", http.StatusBadRequest)
		return
	}
	http.Error(w, "wrong e-mail or password", http.StatusForbidden)
}

func api(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "tier %s\n", r.Context().Value(customerKey{}).(customer).tier)
}
