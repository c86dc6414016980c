package sluicegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	sluicegate "github.com/sluicegate/sluicegate/client/go"
	"google.golang.org/protobuf/encoding/protojson"
)

// vector is a case of client/conformance/answers.json; see the page beside it.
type vector struct {
	Name      string
	Overrides []bool
	Answer    json.RawMessage
	Verdict   struct {
		Allowed *bool
		Error   string
	}
	RetryAfterMs *int64
	HTTP         struct {
		Status  int
		Headers map[string]*string
		Body    *string
	}
}

func TestConformance(t *testing.T) {
	file, err := os.ReadFile("../conformance/answers.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(file, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) == 0 {
		t.Fatal("no cases")
	}
	for _, v := range vectors {
		t.Run(v.Name, v.run)
	}
}

func (v vector) run(t *testing.T) {
	answer := &rls.RateLimitResponse{}
	if err := protojson.Unmarshal(v.Answer, answer); err != nil {
		t.Fatal(err)
	}
	client := connect(t, script(t, func(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
		return answer, nil
	}))
	descriptors := make([]sluicegate.Descriptor, len(v.Overrides))
	for i, overridden := range v.Overrides {
		descriptors[i] = sluicegate.NewDescriptor("key", "value")
		if overridden {
			descriptors[i].Override = sluicegate.NewOverride(5, 15*time.Minute)
		}
	}
	v.expectVerdict(t, client, descriptors)
	v.expectHTTP(t, client, descriptors)
}

func (v vector) expectVerdict(t *testing.T, client *sluicegate.Client, descriptors []sluicegate.Descriptor) {
	verdict, err := client.Check(t.Context(), sluicegate.Check{Domain: "domain", Descriptors: descriptors})
	switch {
	case v.Verdict.Error == "override_not_applied":
		expectError(t, err, sluicegate.ErrOverrideNotApplied)
		return
	case v.Verdict.Error != "" || v.Verdict.Allowed == nil:
		t.Fatalf("unknown verdict %+v", v.Verdict)
	case err != nil:
		t.Fatal(err)
	case verdict.Allowed != *v.Verdict.Allowed:
		t.Fatalf("allowed: %v, want %v", verdict.Allowed, *v.Verdict.Allowed)
	}
	retryAfter, ok := verdict.RetryAfter()
	if ok != (v.RetryAfterMs != nil) || ok && retryAfter != time.Duration(*v.RetryAfterMs)*time.Millisecond {
		t.Fatalf("retry after %v, %v", retryAfter, ok)
	}
}

func (v vector) expectHTTP(t *testing.T, client *sluicegate.Client, descriptors []sluicegate.Descriptor) {
	limit := client.Middleware(sluicegate.HTTPOptions{
		Domain:      "domain",
		Descriptors: func(*http.Request) []sluicegate.Descriptor { return descriptors },
		FailureMode: sluicegate.FailureModeClosed,
	})
	site := httptest.NewServer(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer site.Close()
	response, err := http.Get(site.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != v.HTTP.Status {
		t.Fatalf("status %d, want %d", response.StatusCode, v.HTTP.Status)
	}
	for name, want := range v.HTTP.Headers {
		values := response.Header.Values(name)
		if want == nil && len(values) > 0 || want != nil && !reflect.DeepEqual(values, []string{*want}) {
			t.Errorf("header %s: %q", name, values)
		}
	}
	if want := v.HTTP.Body; want != nil && !sameBody(*want, string(body)) {
		t.Errorf("body %s, want %s", body, *want)
	}
}

// sameBody compares as JSON what is JSON.
func sameBody(a, b string) bool {
	var x, y any
	if errors.Join(json.Unmarshal([]byte(a), &x), json.Unmarshal([]byte(b), &y)) != nil {
		return a == b
	}
	return reflect.DeepEqual(x, y)
}
