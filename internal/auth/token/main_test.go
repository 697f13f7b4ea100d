package token

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestMain(m *testing.M) { dbtest.MainWithoutLeaks(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clock is a clock that a test moves. It starts in the past, since PostgreSQL's clock limits
// which keys are deleted.
type clock struct{ t atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.t.Store(time.Now().Add(-400 * 24 * time.Hour).UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.t.Load()) }
func (c *clock) advance(d time.Duration) { c.t.Add(int64(d)) }

// shifted returns a clock that is ahead of c by d.
func (c *clock) shifted(d time.Duration) func() time.Time {
	return func() time.Time { return c.now().Add(d) }
}

const (
	testIssuer  = "https://registry.example.com"
	testService = "registry.example.com"
)

func newKeys(t testing.TB, d *db.DB, change func(*Options)) *Keys {
	t.Helper()
	o := Options{DB: d, Issuer: testIssuer, Service: testService, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	k, err := NewKeys(o)
	must(t, err)
	return k
}

// withClock returns Keys with the clock.
func withClock(t testing.TB, d *db.DB, now func() time.Time) *Keys {
	t.Helper()
	return newKeys(t, d, func(o *Options) { o.Now = now })
}

// maintain runs a batch of the loop.
func maintain(t testing.TB, k *Keys) {
	t.Helper()
	_, err := k.batch(t.Context())
	must(t, err)
}

func example() Claims {
	return Claims{
		Account: 7, Name: "alice",
		Access:  []Access{repository("acme/app", "pull", "push"), {Type: "registry", Name: "catalog", Actions: []string{"*"}}},
		Refused: []Access{repository("acme/app", "delete"), repository("other/app", "*")},
	}
}

func issue(t testing.TB, k *Keys, c Claims) string {
	t.Helper()
	raw, _, err := k.Issue(t.Context(), c)
	must(t, err)
	return raw
}

func countKeys(t testing.TB, d *db.DB) (n int) {
	t.Helper()
	must(t, d.Pool.QueryRow(t.Context(), "SELECT count(*) FROM tokenkeys").Scan(&n))
	return n
}

// eventually waits until ok returns true, at most 2 min.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// start runs fn until stop is called, or the test ends.
func start(t testing.TB, fn func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// members is a JSON object of a token.
type members map[string]any

func (m members) with(name string, value any) members {
	c := maps.Clone(m)
	c[name] = value
	return c
}

func (m members) without(name string) members {
	c := maps.Clone(m)
	delete(c, name)
	return c
}

// payloadOf returns the claims of a token as JSON members.
func payloadOf(t testing.TB, raw string) members {
	t.Helper()
	var m members
	must(t, json.Unmarshal(part(t, raw, 1), &m))
	for _, name := range []string{"iat", "nbf", "exp", "uid"} {
		if f, ok := m[name].(float64); ok {
			m[name] = int64(f)
		}
	}
	return m
}

// sign makes a token of any header and claims: text, or what json.Marshal accepts.
func sign(t testing.TB, header, claims any, signature func(text string) []byte) string {
	t.Helper()
	text := segment(t, header) + "." + segment(t, claims)
	return text + "." + base64.RawURLEncoding.EncodeToString(signature(text))
}

func segment(t testing.TB, v any) string {
	t.Helper()
	text, ok := v.(string)
	if !ok {
		b, err := json.Marshal(v)
		must(t, err)
		text = string(b)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

func by(k ed25519.PrivateKey) func(string) []byte {
	return func(text string) []byte { return ed25519.Sign(k, []byte(text)) }
}
