package sluicegate_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	sluicegate "github.com/sluicegate/sluicegate/client/go"
	"google.golang.org/grpc"
)

// server is a running `sluicegate serve`.
type server struct {
	grpc, http string
}

// serve starts the real server with a limits file, until the test ends.
func serve(t testing.TB, limits string, flags ...string) server {
	t.Helper()
	binary := os.Getenv("SLUICEGATE_BINARY")
	if binary == "" {
		binary = "../../target/debug/sluicegate"
	}
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte(limits), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(binary, append([]string{
		"serve", "--limits", file, "--http-listen", "127.0.0.1:0", "--admin-listen", "off", "--drain-delay", "0s",
	}, flags...)...)
	if !strings.Contains(strings.Join(flags, " "), "--grpc-listen") {
		command.Args = append(command.Args, "--grpc-listen", "127.0.0.1:0")
	}
	// The caller's settings must not leak into the server.
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "SLUICEGATE_") {
			command.Env = append(command.Env, variable)
		}
	}
	var s server
	start(t, command, func(line string) bool {
		addresses := regexp.MustCompile(`serving grpc=(\S+) http=(\S+)`).FindStringSubmatch(line)
		if addresses == nil {
			return false
		}
		s = server{grpc: addresses[1], http: addresses[2]}
		return true
	})
	return s
}

// start starts a process, waits for a line of its standard error, and ends it with the test.
func start(t testing.TB, command *exec.Cmd, ready func(string) bool) *os.Process {
	t.Helper()
	output, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout = command.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGCONT)
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	})
	var printed strings.Builder
	for lines := bufio.NewScanner(output); lines.Scan(); {
		printed.WriteString(lines.Text() + "\n")
		if ready(lines.Text()) {
			go func() { _, _ = io.Copy(io.Discard, output) }()
			return command.Process
		}
	}
	t.Fatalf("%s did not start:\n%s", command.Path, printed.String())
	return nil
}

// redis starts a Redis server, until the test ends.
func redis(t *testing.T) (address string, process *os.Process) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = listener.Addr().String()
	_ = listener.Close()
	_, port, _ := net.SplitHostPort(address)
	command := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
		"--logfile", "/dev/stderr", "--dir", t.TempDir())
	return address, start(t, command, func(line string) bool {
		return strings.Contains(line, "Ready to accept connections")
	})
}

// metric returns the value of a metric without labels, and -1 if there is none.
func (s server) metric(t *testing.T, name string) float64 {
	t.Helper()
	answer, err := http.Get("http://" + s.http + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			number, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return number
		}
	}
	return -1
}

// until waits for a condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for range 1000 {
		if condition() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s", what)
}

// connect returns a client, until the test ends. Its timeout is that of a slow machine unless options say otherwise.
func connect(t testing.TB, target string, options ...sluicegate.Option) *sluicegate.Client {
	t.Helper()
	options = append([]sluicegate.Option{sluicegate.WithTimeout(30 * time.Second)}, options...)
	client, err := sluicegate.New(target, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// check asks and expects an answer.
func check(t *testing.T, client *sluicegate.Client, c sluicegate.Check) *sluicegate.Verdict {
	t.Helper()
	verdict, err := client.Check(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return verdict
}

// remaining returns what a peek reports of the first descriptor.
func remaining(t *testing.T, client *sluicegate.Client, c sluicegate.Check) uint32 {
	t.Helper()
	c.Hits = sluicegate.Peek()
	return check(t, client, c).Statuses[0].Remaining
}

// scripted is a rate limit service whose answers a test writes.
type scripted struct {
	rls.UnimplementedRateLimitServiceServer
	answer func(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error)
}

func (s *scripted) ShouldRateLimit(
	ctx context.Context, request *rls.RateLimitRequest,
) (*rls.RateLimitResponse, error) {
	return s.answer(ctx, request)
}

// script starts a scripted service, until the test ends, and returns its address.
func script(
	t *testing.T, answer func(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error),
) string {
	t.Helper()
	return listen(t, func(s *grpc.Server) { rls.RegisterRateLimitServiceServer(s, &scripted{answer: answer}) })
}

// listen starts a gRPC server, until the test ends, and returns its address.
func listen(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	register(s)
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(s.Stop)
	return listener.Addr().String()
}

// expectError fails unless err is one of a kind.
func expectError(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want %v", err, kind)
	}
}
