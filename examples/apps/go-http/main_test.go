package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// start starts a process, and returns the address after a text that it prints. The process ends with the test.
func start(t *testing.T, after string, command ...string) string {
	t.Helper()
	process := exec.Command(command[0], command[1:]...)
	// The caller's settings must not leak into the server.
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "SLUICEGATE_") {
			process.Env = append(process.Env, variable)
		}
	}
	output, err := process.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	})
	address := regexp.MustCompile(after + `(\S+)`)
	var printed strings.Builder
	for lines := bufio.NewScanner(output); lines.Scan(); {
		printed.WriteString(lines.Text() + "\n")
		if found := address.FindStringSubmatch(lines.Text()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, output) }()
			return found[1]
		}
	}
	t.Fatalf("%s did not start:\n%s", command[0], printed.String())
	return ""
}

// startApplication starts the server and the application behind one proxy, and returns its URL.
func startApplication(t *testing.T) string {
	t.Helper()
	server := os.Getenv("SLUICEGATE_BINARY")
	if server == "" {
		server = "../../../target/debug/sluicegate"
	}
	limiter := start(t, "serving grpc=", server, "serve", "--limits", "limits.yaml", "--grpc-listen", "127.0.0.1:0",
		"--http-listen", "127.0.0.1:0", "--admin-listen", "off", "--drain-delay", "0s")
	application := filepath.Join(t.TempDir(), "go-http")
	if output, err := exec.Command("go", "build", "-o", application, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return "http://" + start(t, "listening on ", application, "-listen", "127.0.0.1:0", "-sluicegate", limiter,
		"-trusted-proxies", "1")
}

// send sends a request from an address, and returns the status.
func send(t *testing.T, method, url, address, apiKey, body string) int {
	t.Helper()
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Forwarded-For", address)
	if apiKey != "" {
		request.Header.Set("X-Api-Key", apiKey)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	if response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") == "" {
		t.Fatal("429 without Retry-After")
	}
	return response.StatusCode
}

func TestRequestsAreLimited(t *testing.T) {
	url := startApplication(t)

	t.Run("100 a minute for one address", func(t *testing.T) {
		for i := range 100 {
			if status := send(t, http.MethodGet, url, "203.0.113.1", "", ""); status != http.StatusOK {
				t.Fatalf("request %d: %d", i+1, status)
			}
		}
		if status := send(t, http.MethodGet, url, "203.0.113.1", "", ""); status != http.StatusTooManyRequests {
			t.Fatalf("request 101: %d", status)
		}
		if status := send(t, http.MethodGet, url, "203.0.113.2", "", ""); status != http.StatusOK {
			t.Fatalf("another address: %d", status)
		}
	})

	t.Run("5 logins in 15 minutes for one e-mail", func(t *testing.T) {
		attempt := func(i int, email string) int {
			body := fmt.Sprintf(`{"email": %q, "password": "guess %d"}`, email, i)
			return send(t, http.MethodPost, url+"/login", fmt.Sprintf("203.0.113.%d", 10+i), "", body)
		}
		for i, email := range []string{
			"ann@example.com", "Ann@example.com", " ann@example.com", "ann@example.com", "ANN@EXAMPLE.COM",
		} {
			if status := attempt(i, email); status != http.StatusForbidden {
				t.Fatalf("attempt %d: %d", i+1, status)
			}
		}
		if status := attempt(5, "ann@example.com"); status != http.StatusTooManyRequests {
			t.Fatalf("attempt 6: %d", status)
		}
		if status := attempt(6, "eve@example.com"); status != http.StatusForbidden {
			t.Fatalf("another account: %d", status)
		}
	})

	t.Run("tiers by API key", func(t *testing.T) {
		addresses := map[string]string{
			"key-of-ann": "203.0.113.31", "key-of-bob": "203.0.113.32", "key-of-acme": "203.0.113.33",
		}
		call := func(apiKey, address string) int {
			return send(t, http.MethodGet, url+"/api", address, apiKey, "")
		}
		for _, apiKey := range []string{"", "forged"} {
			if status := call(apiKey, "203.0.113.20"); status != http.StatusUnauthorized {
				t.Fatalf("key %q: %d", apiKey, status)
			}
		}
		for apiKey, calls := range map[string]int{"key-of-ann": 10, "key-of-bob": 60, "key-of-acme": 90} {
			for i := range calls {
				if status := call(apiKey, addresses[apiKey]); status != http.StatusOK {
					t.Fatalf("%s, call %d: %d", apiKey, i+1, status)
				}
			}
			want := http.StatusTooManyRequests
			if tiers[apiKey] == "enterprise" {
				want = http.StatusOK
			}
			if status := call(apiKey, "203.0.113.21"); status != want {
				t.Fatalf("%s, call %d: %d, want %d", apiKey, calls+1, status, want)
			}
		}
	})
}
